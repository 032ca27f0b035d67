"""CheXbert: F1 of the findings that a BERT model labels in two reports, and the similarity of its embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radfact.errors import ErrorCode, InputError
from radfact.languages import Language
from radfact.metrics.classical.encoder import Encoder
from radfact.metrics.protocol import Counts, Metric, MetricResult, PooledScore, Requirements
from radfact.records import TextPair
from radfact.statistics.bootstrap import CountsFunction, Direction

CLASSES = (
    *("Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion", "Edema", "Consolidation"),
    *("Pneumonia", "Atelectasis", "Pneumothorax", "Pleural Effusion", "Pleural Other", "Fracture"),
    *("Support Devices", "No Finding"),
)
"""In the order of the checkpoint's heads."""

FIVE = ("Cardiomegaly", "Edema", "Consolidation", "Atelectasis", "Pleural Effusion")
LABELS = ("blank", "positive", "negative", "uncertain")
"""Classes of a head. The head of No Finding has the first two only."""


def confusion_counts(
    candidate: NDArray[np.int_], reference: NDArray[np.int_], *, positive: Sequence[str] = ("positive",)
) -> Counts:
    """Count true positives, false positives, false negatives and true negatives."""
    indices = list(map(LABELS.index, positive))
    predicted, actual = np.isin(candidate, indices), np.isin(reference, indices)
    outcomes = [predicted & actual, predicted & ~actual, ~predicted & actual, ~predicted & ~actual]
    return np.concatenate(outcomes, axis=1).astype(np.float64)


def macro_f1(counts: Counts, classes: Sequence[int], *, weighted: bool = False) -> float:
    """Compute the mean F1 of classes, or weighted by their references; one without positives is 0 (scikit-learn)."""
    tp, fp, fn, _ = _select(counts, classes)
    total, support = 2 * tp + fp + fn, tp + fn
    f1 = np.divide(2 * tp, total, out=np.zeros_like(total), where=total > 0)
    return _ratio(float((f1 * support).sum()), float(support.sum())) if weighted else float(f1.mean())


def micro_average(counts: Counts, classes: Sequence[int], *, kind: str = "f1") -> float:
    """Compute F1, recall or specificity of all findings of some classes; NaN where it would divide by 0."""
    tp, fp, fn, tn = _select(counts, classes).sum(axis=1)
    fractions = {"f1": (2 * tp, 2 * tp + fp + fn), "recall": (tp, tp + fn), "specificity": (tn, tn + fp)}
    return _ratio(*fractions[kind])


def _select(counts: Counts, classes: Sequence[int]) -> Counts:
    return counts.reshape(4, len(CLASSES))[:, list(classes)]


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else float("nan")


_ALL, _FIVE = range(len(CLASSES)), tuple(map(CLASSES.index, FIVE))
_AVERAGES: Mapping[str, CountsFunction] = {
    "chexbert_macro_f1_14": partial(macro_f1, classes=_ALL),
    "chexbert_micro_f1_14": partial(micro_average, classes=_ALL),
    "chexbert_macro_f1_5": partial(macro_f1, classes=_FIVE),
    "chexbert_micro_f1_5": partial(micro_average, classes=_FIVE),
}
_PLUS = {f"{name}_plus": function for name, function in _AVERAGES.items()}
"""F1 with uncertain as positive, F1-14+ and F1-5+ in papers."""

_POOLED: Mapping[str, CountsFunction] = {
    **_AVERAGES,
    **{
        f"chexbert_{kind}_{name.lower().replace(' ', '_')}": partial(micro_average, classes=[index], kind=kind)
        for kind in ("f1", "recall", "specificity")
        for index, name in enumerate(CLASSES)
    },
    **_PLUS,
}

_RRG: Mapping[str, CountsFunction] = {
    **{f"{name}.rrg": function for name, function in _AVERAGES.items()},
    "chexbert_weighted_f1_14.rrg": partial(macro_f1, classes=_ALL, weighted=True),
    "chexbert_weighted_f1_5.rrg": partial(macro_f1, classes=_FIVE, weighted=True),
    **{f"{name}.rrg": function for name, function in _POOLED.items() if name.startswith("chexbert_f1_")},
}

WEIGHTS = {"chexbert": ("chexbert.pth", "vocab.txt")}


class CheXbert(Metric):
    """F1 of 14 and of 5 findings, F1, recall and specificity of each, and the cosine of the reports' embeddings.

    Uncertain counts as negative, as in MAIRA-2, except in the scores that end in `_plus`, where it counts as positive.
    """

    name = "chexbert"
    measures = "agreement on 14 findings, and similarity of their embeddings"
    scores: Mapping[str, Direction] = dict.fromkeys((*_POOLED, "chexbert_similarity"), "higher")
    main_scores = ("chexbert_similarity",)
    requirements = Requirements(packages=("torch", "transformers"), weights=WEIGHTS)
    cost = "two passes of BERT"
    for_chest_xrays = True
    language = Language.ENGLISH
    source = "MAIRA-2, appendix D.1, figures 3 and 5, table B.3"
    pooled = _POOLED
    dataset_scores = frozenset(_POOLED)

    def __init__(self, folder: Path) -> None:
        self._labeler = Labeler(folder)

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        candidate_labels, candidate_embeddings = self._labeler.label([pair.candidate for pair in pairs])
        reference_labels, reference_embeddings = self._labeler.label([pair.reference for pair in pairs])
        lengths = np.linalg.norm(candidate_embeddings, axis=1) * np.linalg.norm(reference_embeddings, axis=1)
        counts = confusion_counts(candidate_labels, reference_labels)
        plus = confusion_counts(candidate_labels, reference_labels, positive=("positive", "uncertain"))
        details = [
            {"candidate": _findings(candidate), "reference": _findings(reference)}
            for candidate, reference in zip(candidate_labels, reference_labels, strict=True)
        ]
        similarities = ((candidate_embeddings * reference_embeddings).sum(axis=1) / lengths).tolist()
        pooled = {name: PooledScore(plus if name in _PLUS else counts, value) for name, value in _POOLED.items()}
        return MetricResult({"chexbert_similarity": similarities}, pooled=pooled, details=details)


class RrgCheXbert(CheXbert):
    """CheXbert F1 as in F1CheXbert and the RRG24 shared task: uncertain as positive, and No Finding as a class."""

    variant = "rrg"
    difference = "uncertain counts as positive; adds means weighted by the number of references with the finding"
    source = "F1CheXbert 0.0.2, RadEval 2.2"
    scores: Mapping[str, Direction] = dict.fromkeys(_RRG, "higher")
    main_scores = ("chexbert_micro_f1_5.rrg",)
    pooled = _RRG
    dataset_scores = frozenset(_RRG)

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        result = super().score(pairs)
        counts = result.pooled["chexbert_micro_f1_14_plus"].counts
        pooled = {name: PooledScore(counts, value) for name, value in _RRG.items()}
        return MetricResult({}, pooled=pooled, details=result.details)


def _findings(labels: NDArray[np.int_]) -> dict[str, str]:
    return {CLASSES[index]: LABELS[label] for index, label in enumerate(labels) if LABELS[label] != "blank"}


class Labeler:
    """The published CheXbert: BERT and a linear head per finding on the hidden state of the first token."""

    def __init__(self, folder: Path) -> None:
        """Load `chexbert.pth` and `vocab.txt`; the checkpoint's tensors determine all sizes."""
        from transformers import BertConfig, BertModel, BertTokenizer

        path = Path(folder) / "chexbert.pth"
        weights = _load_checkpoint(path)
        heads = [weights.pop(f"linear_heads.{index}.{part}", None) for index in _ALL for part in ("weight", "bias")]
        bert = {name.removeprefix("bert."): value for name, value in weights.items() if name.startswith("bert.")}
        bert.pop("embeddings.position_ids", None)
        if not bert or any(head is None for head in heads):
            raise _invalid_checkpoint("expected CheXbert: BERT and 14 linear heads", path)
        try:
            words, width = bert["embeddings.word_embeddings.weight"].shape
            config = BertConfig(
                vocab_size=words,
                hidden_size=width,
                num_hidden_layers=sum(name.endswith(".attention.self.query.weight") for name in bert),
                # The weights do not tell the number of heads; a head of BERT has 64 dimensions at any size.
                num_attention_heads=max(1, width // 64),
                intermediate_size=len(bert["encoder.layer.0.intermediate.dense.bias"]),
                max_position_embeddings=len(bert["embeddings.position_embeddings.weight"]),
                type_vocab_size=len(bert["embeddings.token_type_embeddings.weight"]),
            )
            model = BertModel(config)
            model.load_state_dict(bert, strict=True)
        except (KeyError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise _invalid_checkpoint(f"expected the tensors of BERT: {reason:.200}", path) from None
        tokenizer = BertTokenizer.from_pretrained(str(folder))
        self._encoder = Encoder(model, tokenizer, batch_size=32, max_tokens=512)
        self._heads = list(zip(heads[0::2], heads[1::2], strict=True))
        if len(tokenizer) > words:
            message = f"expected {words} words as in the checkpoint, found {len(tokenizer)}"
            raise InputError(message, code=ErrorCode.MISMATCH, file=Path(folder) / "vocab.txt")

    def label(self, texts: Sequence[str]) -> tuple[NDArray[np.int_], NDArray[np.float64]]:
        """Label texts; each is truncated to 510 tokens, as published."""
        import torch

        clean = [" ".join(text.split()) for text in texts]
        embeddings: dict[str, NDArray[np.float32]] = {}
        labels: dict[str, list[int]] = {}
        for batch, _, output in self._encoder.read(clean):
            hidden = output.last_hidden_state[:, 0].float().cpu()  # (texts, width)
            scores = [(hidden @ weight.T + bias).argmax(dim=1) for weight, bias in self._heads]
            embeddings |= zip(batch, hidden.numpy(), strict=True)
            labels |= zip(batch, torch.stack(scores, dim=1).tolist(), strict=True)  # (texts, 14)
        return (
            np.array([labels[text] for text in clean], dtype=np.int_).reshape(-1, len(CLASSES)),
            np.array([embeddings[text] for text in clean], dtype=np.float64).reshape(len(clean), -1),
        )


def _load_checkpoint(path: Path) -> dict[str, Any]:
    import pickle

    import torch

    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        message = f"expected a checkpoint of tensors: {error!s:.200}"
        raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=path) from None
    weights = checkpoint.get("model_state_dict") if isinstance(checkpoint, dict) else None
    if not isinstance(weights, dict):
        raise _invalid_checkpoint("missing; expected the published checkpoint", path)
    for name, value in weights.items():
        if not isinstance(value, torch.Tensor):
            raise _invalid_checkpoint(f"expected a tensor '{name}', found {type(value).__name__}", path)
    return {name.removeprefix("module."): value.float() for name, value in weights.items()}


def _invalid_checkpoint(message: str, path: Path) -> InputError:
    return InputError(message, code=ErrorCode.INVALID_FORMAT, file=path, field="model_state_dict")
