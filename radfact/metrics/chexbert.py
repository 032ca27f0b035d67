"""CheXbert: 14 findings of two reports compared, and the similarity of the vectors that they are read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radfact.errors import InputError
from radfact.io.pairs import Pair
from radfact.metrics.protocol import Counts, Pooled, Scored
from radfact.records import narrative
from radfact.statistics.bootstrap import Direction

CLASSES = (
    *("Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion", "Edema", "Consolidation"),
    *("Pneumonia", "Atelectasis", "Pneumothorax", "Pleural Effusion", "Pleural Other", "Fracture"),
    *("Support Devices", "No Finding"),
)
"""In the order of the checkpoint's heads."""

FIVE = ("Cardiomegaly", "Edema", "Consolidation", "Atelectasis", "Pleural Effusion")
LABELS = ("blank", "positive", "negative", "uncertain")
"""What a head says, by the place of its highest value; that of No Finding has the first two only."""

BATCH = 32
LONGEST = 512


def outcomes(candidate: NDArray[np.int_], reference: NDArray[np.int_]) -> Counts:
    """What each sample adds to the counts, (samples, 4 * classes): true positives of all classes, then false
    positives, false negatives and true negatives.

    Args:
        candidate: (samples, classes), places in `LABELS`. A finding counts where it is positive; uncertain is none, as
            MAIRA-2 counts.
        reference: likewise.
    """
    said, true = candidate == LABELS.index("positive"), reference == LABELS.index("positive")
    return np.concatenate([said & true, said & ~true, ~said & true, ~said & ~true], axis=1).astype(np.float64)


def macro_f1(counts: Counts, classes: Sequence[int]) -> float:
    """Mean over classes of their F1; 0 for one that neither side shows, as scikit-learn's report has it."""
    hits, false, missed, _ = _of(counts, classes)
    total = 2 * hits + false + missed
    return float(np.divide(2 * hits, total, out=np.zeros_like(total), where=total > 0).mean())


def micro_f1(counts: Counts, classes: Sequence[int]) -> float:
    """F1 of the findings of all classes together; NaN where there are none."""
    hits, false, missed, _ = _of(counts, classes).sum(axis=1)
    return _ratio(2 * hits, 2 * hits + false + missed)


def class_f1(counts: Counts, index: int) -> float:
    """F1 of one class; NaN where neither side shows it."""
    return micro_f1(counts, [index])


def class_recall(counts: Counts, index: int) -> float:
    """Share of the references with a finding whose candidate has it too; NaN where no reference has it."""
    hits, _, missed, _ = _of(counts, [index])[:, 0]
    return _ratio(hits, hits + missed)


def class_specificity(counts: Counts, index: int) -> float:
    """Share of the references without a finding whose candidate is without it; NaN where all references have it."""
    _, false, _, rejected = _of(counts, [index])[:, 0]
    return _ratio(rejected, rejected + false)


def _of(counts: Counts, classes: Sequence[int]) -> Counts:
    """(4, classes): hits, false alarms, misses, true rejections."""
    return counts.reshape(4, len(CLASSES))[:, list(classes)]


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else float("nan")


_ALL, _FIVE = range(len(CLASSES)), tuple(map(CLASSES.index, FIVE))
_POOLED = {
    "chexbert_macro_f1_14": partial(macro_f1, classes=_ALL),
    "chexbert_micro_f1_14": partial(micro_f1, classes=_ALL),
    "chexbert_macro_f1_5": partial(macro_f1, classes=_FIVE),
    "chexbert_micro_f1_5": partial(micro_f1, classes=_FIVE),
    **{
        f"chexbert_{kind}_{name.lower().replace(' ', '_')}": partial(function, index=index)
        for kind, function in (("f1", class_f1), ("recall", class_recall), ("specificity", class_specificity))
        for index, name in enumerate(CLASSES)
    },
}


class CheXbert:
    """F1 of the 14 and of the 5 findings, each finding by itself, and the cosine of the reports' CheXbert vectors.

    Source: paper 004, D.1, figures 3 and 5, table B.3.
    """

    name = "chexbert"
    figures: Mapping[str, Direction] = dict.fromkeys((*_POOLED, "chexbert_similarity"), "higher")
    headline = ("chexbert_similarity",)
    pooled = _POOLED
    of_the_set = frozenset(_POOLED)

    def __init__(self, folder: Path) -> None:
        """Load the labeller.

        Args:
            folder: with `chexbert.pth`, the published checkpoint (BERT and 14 linear heads), and `vocab.txt`, the
                words of bert-base-uncased.

        Raises:
            InputError: a file is not what it should be.
            ModuleNotFoundError: torch or transformers is not installed.
        """
        self._labeller = Labeller(folder)

    def score(self, pairs: Sequence[Pair]) -> Scored:
        """Similarities of the pairs, counts of the findings, and the findings of both reports as details."""
        candidates, references = (
            self._labeller.read([narrative(getattr(pair, side)) for pair in pairs])
            for side in ("candidate", "reference")
        )
        counts = outcomes(candidates.labels, references.labels)
        details = [
            {"candidate": _findings(said), "reference": _findings(true)}
            for said, true in zip(candidates.labels, references.labels, strict=True)
        ]
        return Scored(
            {"chexbert_similarity": cosines(candidates.vectors, references.vectors)},
            pooled={name: Pooled(counts, value) for name, value in self.pooled.items()},
            details=details,
        )


def cosines(left: NDArray[np.float64], right: NDArray[np.float64]) -> list[float]:
    """Cosine of the angle between each two rows; both (samples, width)."""
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return [float(value) for value in (left * right).sum(axis=1) / lengths]


def _findings(labels: NDArray[np.int_]) -> dict[str, str]:
    return {CLASSES[index]: LABELS[label] for index, label in enumerate(labels) if LABELS[label] != "blank"}


class Read:
    """What the labeller makes of texts: `labels` (texts, 14), places in `LABELS`, and `vectors` (texts, width)."""

    def __init__(self, labels: NDArray[np.int_], vectors: NDArray[np.float64]) -> None:
        self.labels, self.vectors = labels, vectors


class Labeller:
    """The published CheXbert: BERT's first vector and a linear head a finding."""

    def __init__(self, folder: Path) -> None:
        """Load it from `chexbert.pth` and `vocab.txt`; sizes are those of the checkpoint's tensors.

        Raises:
            InputError: naming the file that is not what it should be.
        """
        import torch
        from transformers import BertModel, BertTokenizer

        path = Path(folder) / "chexbert.pth"
        weights = _weights(path)
        heads = [weights.pop(f"linear_heads.{index}.{part}", None) for index in _ALL for part in ("weight", "bias")]
        bert = {name.removeprefix("bert."): value for name, value in weights.items() if name.startswith("bert.")}
        bert.pop("embeddings.position_ids", None)
        if not bert or any(head is None for head in heads):
            raise InputError("expected CheXbert: BERT and 14 linear heads", file=path, field="model_state_dict")
        try:
            self._model = BertModel(_config(bert))
            self._model.load_state_dict(bert, strict=True)
        except KeyError as error:
            raise InputError(f"not BERT: without {error}", file=path, field="model_state_dict") from None
        except (RuntimeError, ValueError) as error:
            raise InputError(f"not BERT: {' '.join(str(error).split())[:200]}", file=path) from None
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model.to(self._device).eval()
        self._heads = list(zip(heads[0::2], heads[1::2], strict=True))
        self._tokenizer = BertTokenizer.from_pretrained(str(folder))
        if len(self._tokenizer) > len(bert["embeddings.word_embeddings.weight"]):
            raise InputError("has more words than the checkpoint", file=Path(folder) / "vocab.txt")

    def read(self, texts: Sequence[str]) -> Read:
        """Findings and vectors of texts, in their order; one that is longer than 510 tokens is cut there, as
        published."""
        import torch

        clean = [" ".join(text.split()) for text in texts]
        distinct = sorted(set(clean), key=len)
        vectors: dict[str, NDArray[np.float32]] = {}
        labels: dict[str, list[int]] = {}
        for start in range(0, len(distinct), BATCH):
            some = distinct[start : start + BATCH]
            tokens = self._tokenizer(some, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
            with torch.inference_mode():
                hidden = self._model(**tokens.to(self._device)).last_hidden_state[:, 0].float().cpu()  # (texts, width)
                said = [(hidden @ weight.T + bias).argmax(dim=1) for weight, bias in self._heads]
            for place, text in enumerate(some):
                vectors[text] = hidden[place].numpy()
                labels[text] = [int(one[place]) for one in said]
        return Read(
            np.array([labels[text] for text in clean], dtype=np.int_).reshape(-1, len(CLASSES)),
            np.array([vectors[text] for text in clean], dtype=np.float64).reshape(len(clean), -1),
        )


def _weights(path: Path) -> dict[str, Any]:
    """Tensors of a checkpoint by name, without the prefix that data parallelism leaves."""
    import pickle

    import torch

    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise InputError(f"not a checkpoint of tensors: {error!s:.200}", file=path) from None
    if not isinstance(held, dict) or not isinstance(held.get("model_state_dict"), dict):
        raise InputError("missing; expected the published checkpoint", file=path, field="model_state_dict")
    weights = held["model_state_dict"]
    for name, value in weights.items():
        if not isinstance(value, torch.Tensor):
            raise InputError(
                f"expected a tensor, found {type(value).__name__}", file=path, field=f"model_state_dict.{name}"
            )
    return {name.removeprefix("module."): value.float() for name, value in weights.items()}


def _config(bert: Mapping[str, Any]) -> Any:
    from transformers import BertConfig

    words, width = bert["embeddings.word_embeddings.weight"].shape
    return BertConfig(
        vocab_size=words,
        hidden_size=width,
        num_hidden_layers=sum(name.endswith(".attention.self.query.weight") for name in bert),
        # A head of BERT has 64 dimensions, whatever its size; the weights do not say.
        num_attention_heads=max(1, width // 64),
        intermediate_size=len(bert["encoder.layer.0.intermediate.dense.bias"]),
        max_position_embeddings=len(bert["embeddings.position_embeddings.weight"]),
        type_vocab_size=len(bert["embeddings.token_type_embeddings.weight"]),
    )
