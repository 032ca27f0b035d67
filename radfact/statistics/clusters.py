"""Clusters of samples, such as the studies of a patient, which the bootstrap and randomization tests keep together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Resampling:
    """What the bootstrap draws.

    Attributes:
        by: what the samples of a cluster share, such as `patient_id`; None if samples are drawn.
        clusters: number of clusters, including those of samples without a label.
        samples: number of samples.
        unlabeled: number of samples without a label, each of which is its own cluster.
    """

    by: str | None
    clusters: int
    samples: int
    unlabeled: int = 0

    def describe(self) -> str:
        """Return the resampling as one line without a full stop."""
        if self.by is None:
            return f"resampled by sample: {self.samples} samples"
        number = "1 cluster" if self.clusters == 1 else f"{self.clusters} clusters"
        text = f"resampled by {self.by.removesuffix('_id')}: {self.samples} samples in {number}"
        if self.unlabeled:
            unlabeled = "1 sample" if self.unlabeled == 1 else f"each of {self.unlabeled} samples"
            text += f"; {unlabeled} without a {self.by} is its own cluster"
        if self.clusters == 1:
            text += "; no intervals and no p-values from a single cluster"
        return text


@dataclass(frozen=True)
class Clusters:
    """The clusters of samples.

    Attributes:
        by: what the samples of a cluster share, such as `patient_id`.
        labels: one per sample; a sample with None is its own cluster.
    """

    by: str
    labels: Sequence[str | None]

    @cached_property
    def codes(self) -> NDArray[np.int64]:
        """Index of the cluster of each sample; clusters are in the order of their first sample."""
        seen: dict[object, int] = {}
        keys = (index if label is None else label for index, label in enumerate(self.labels))
        return np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.int64)

    @cached_property
    def count(self) -> int:
        """Number of clusters."""
        return int(self.codes.max()) + 1 if len(self.codes) else 0

    def select(self, indices: Sequence[int] | NDArray[np.int_]) -> Clusters:
        """Return the clusters of some samples."""
        return Clusters(self.by, [self.labels[index] for index in indices])

    def sum(self, table: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum of the rows of each cluster, (samples, k) -> (clusters, k)."""
        sums = np.zeros((self.count, *table.shape[1:]))
        np.add.at(sums, self.codes, table)
        return sums

    def resampling(self) -> Resampling:
        """Return what the bootstrap draws."""
        return Resampling(self.by, self.count, len(self.labels), sum(label is None for label in self.labels))


def clusters_of(by: str | None, labels: Sequence[str | None]) -> Clusters | None:
    """Return the clusters of samples; None if no sample has a label."""
    return None if all(label is None for label in labels) else Clusters(by or "cluster", labels)


def resampling_of(clusters: Clusters | None, samples: int) -> Resampling:
    """Return what the bootstrap draws from samples."""
    return Resampling(None, samples, samples) if clusters is None else clusters.resampling()


def draw_weights(
    generator: np.random.Generator, samples: int, replicates: int, clusters: Clusters | None = None
) -> NDArray[np.float64]:
    """Return how often each sample is in each bootstrap replicate, (replicates, samples)."""
    n = samples if clusters is None else clusters.count
    draws = [np.bincount(generator.choice(n, n, replace=True), minlength=n) for _ in range(replicates)]
    weights = np.array(draws, dtype=np.float64).reshape(replicates, n)
    return weights if clusters is None else weights[:, clusters.codes]
