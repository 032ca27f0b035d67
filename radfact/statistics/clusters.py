"""What the bootstrap and randomization tests draw: samples, or clusters of them such as the studies of a patient."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Resampling:
    """Numbers of the clusters that the bootstrap draws, of their samples, and of the samples without a label."""

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


def id_order(sample_id: str) -> tuple[str, str]:
    """Return the key that sorts ids, 2 before 10: the order of the input must not change what is drawn."""
    return re.sub(r"[0-9]+", lambda number: number[0].zfill(20), str(sample_id)), str(sample_id)


@dataclass(frozen=True)
class Clusters:
    """The clusters of samples, drawn in the order of `ids`; each sample without a label is its own cluster."""

    by: str | None
    labels: Sequence[str | None]
    ids: Sequence[str] = ()

    @classmethod
    def of_single(cls, samples: int) -> Clusters:
        """Return samples each of which is its own cluster."""
        return cls(None, [None] * samples)

    @cached_property
    def order(self) -> list[int]:
        """Indices of the samples in the order of the draws."""
        keys = [id_order(key) for key in self.ids]
        return sorted(range(len(self.labels)), key=keys.__getitem__ if keys else None)

    @cached_property
    def codes(self) -> NDArray[np.int64]:
        """Index of the cluster of each sample; clusters are in the order of their first sample."""
        seen: dict[object, int] = {}
        codes = np.zeros(len(self.labels), dtype=np.int64)
        for index in self.order:
            label = self.labels[index]
            codes[index] = seen.setdefault(index if label is None else label, len(seen))
        return codes

    @property
    def count(self) -> int:
        """Number of clusters."""
        return int(self.codes.max(initial=-1)) + 1

    def select(self, indices: Sequence[int] | NDArray[np.int_]) -> Clusters:
        """Return the clusters of some samples."""
        ids = [self.ids[index] for index in indices] if self.ids else ()
        return Clusters(self.by, [self.labels[index] for index in indices], ids)

    def sum(self, table: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum of the rows of each cluster, (samples, k) -> (clusters, k)."""
        table = table[self.order]
        if self.by is None:
            return table
        sums = np.zeros((self.count, *table.shape[1:]))
        np.add.at(sums, self.codes[self.order], table)
        return sums

    def resampling(self) -> Resampling:
        """Return what the bootstrap draws."""
        unlabeled = 0 if self.by is None else sum(label is None for label in self.labels)
        return Resampling(self.by, self.count, len(self.labels), unlabeled)


def clusters_of(by: str | None, labels: Sequence[str | None], ids: Sequence[str]) -> Clusters:
    """Return the clusters of samples, which are single samples if none has a label; None and NaN are no labels."""
    labels = [label if label == label else None for label in labels]
    return Clusters(None if all(label is None for label in labels) else by or "cluster", labels, ids)


def draw_weights(generator: np.random.Generator, replicates: int, clusters: Clusters) -> NDArray[np.float64]:
    """Return how often each sample is in each bootstrap replicate, (replicates, samples); none of a single cluster."""
    n = clusters.count
    replicates = replicates if n > 1 else 0
    draws = [np.bincount(generator.choice(n, n, replace=True), minlength=n) for _ in range(replicates)]
    return np.array(draws, dtype=np.float64).reshape(replicates, n)[:, clusters.codes]
