"""RaTEScore: similarity of the medical entities of two reports, weighted by the types of entities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from radfact.errors import ErrorCode, InputError
from radfact.languages import Language
from radfact.metrics.classical.encoder import Encoder
from radfact.metrics.protocol import Metric, MetricResult, Requirements, Score
from radfact.reader.segmentation import segment_sentences
from radfact.records import TextPair
from radfact.statistics.bootstrap import harmonic_mean

TYPES = ("ABNORMALITY", "ANATOMY", "DISEASE", "NON-ABNORMALITY", "NON-DISEASE")
"""Types of entities; NON- marks a finding that the report denies."""
_IS_FINDING = np.array([name != "ANATOMY" for name in TYPES])
_IS_DENIED = np.array([name.startswith("NON-") for name in TYPES])

AFFINITY = np.array(
    [
        [0.4276119164393705, 0.6240929990607657, 0.0034478181112993847, 0.5431049700217344, 0.27005425386213877],
        [0.7487824274337533, 0.2856134859160784, 0.4592143222158069, 0.02097055139911715, 0.00013736314126696204],
        [0.8396510075734789, 0.9950209388542061, 0.8460555030578727, 0.9820689020512646, 0.3789136708096537],
        [0.16546764653692908, 0.018670610691852826, 0.719397354576018, 0.0009357166071730684, 0.0927333564267591],
        [0.7759420231214385, 0.1839139293714062, 0.10073046076318157, 0.03860183811876373, 0.34065681486566446],
    ]
)
"""Weight of an entity of a type (row) whose nearest entity has a type (column): the published matrix "long"."""

PENALTY = 0.8716553966489615
"""Factor of the similarity of an affirmed and a denied finding, as published with the matrix."""

_MODEL_FILES = ("config.json", "tokenizer.json|{}", "model.safetensors|pytorch_model.bin")
WEIGHTS = {
    "ratescore": tuple(
        "|".join(f"{folder}/{name.format(vocabulary)}" for name in names.split("|"))
        for folder, vocabulary in (("ner", "spm.model"), ("encoder", "vocab.txt"))
        for names in _MODEL_FILES
    )
}


@dataclass(frozen=True, slots=True)
class Entities:
    """The entities of a report: their texts, indices of `TYPES`, and embeddings (entities, width) of length 1."""

    texts: tuple[str, ...]
    types: NDArray[np.int_]
    embeddings: NDArray[np.float64]


def match_entities(entities: Entities, others: Entities, *, penalty: float = PENALTY) -> tuple[float, list[str]]:
    """Match each entity to the nearest one of the other report; return the weighted mean, and the matches in words."""
    # Rounding errors must not decide between equal texts of different types; the first one counts.
    cosines = (entities.embeddings @ others.embeddings.T).round(9)  # (entities, others)
    indices = cosines.argmax(axis=1)
    types, other_types = entities.types, others.types[indices]
    is_opposite = _IS_FINDING[types] & _IS_FINDING[other_types] & (_IS_DENIED[types] != _IS_DENIED[other_types])
    similarities = cosines.max(axis=1) * np.where(is_opposite, penalty, 1.0)
    weights = AFFINITY[types, other_types]
    total = float(weights.sum())
    score = float((similarities * weights).sum() / total) if total else 0.0
    names = zip(_names(entities), [_names(others)[index] for index in indices], strict=True)
    lines = [
        f"{name} matches {other}, similarity {similarity:.2f}{', opposite' if opposite else ''}"
        for (name, other), similarity, opposite in zip(names, similarities, is_opposite, strict=True)
    ]
    return score, lines


def decode_spans(labels: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return the entities of IOB labels as (first token, token after the last, type of the first token)."""
    spans: list[tuple[int, int, str]] = []
    is_open = False
    for index, label in enumerate(labels):
        if label.startswith("B-"):
            spans.append((index, index + 1, label[2:]))
            is_open = True
        elif label.startswith("I-") and is_open:
            spans[-1] = (spans[-1][0], index + 1, spans[-1][2])
        else:
            is_open = False
    return spans


class RaTEScore(Metric):
    """RaTEScore with the published models, affinity matrix "long" and penalty.

    A report without entities has the score 0 if the other one has some; a pair without any entity has no score. The
    constants are from the package; the paper's equations were not checked against it. See `docs/metrics.md`.
    """

    name = "ratescore"
    measures = "similarity of medical entities by type, with a penalty for opposite findings"
    scores: Mapping[str, Score] = {"ratescore": Score("higher", "harmonic mean of both directions")}
    requirements = Requirements(packages=("torch", "transformers"), weights=WEIGHTS)
    cost = "two passes of DeBERTa, one of MPNet for each entity"
    language = Language.ENGLISH
    source = "RaTEScore; package RaTEScore 0.6.0"
    _without_entities: float | None = None

    def __init__(self, folder: Path, *, penalty: float = PENALTY) -> None:
        if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not 0 <= penalty <= 1:
            message = f"expected a number from 0 to 1, found {penalty!r}"
            raise InputError(message, code=ErrorCode.INVALID_OPTION, field="penalty")
        self._penalty = float(penalty)
        self._recognizer = Encoder.load(
            "AutoModelForTokenClassification", folder / "ner", batch_size=32, max_tokens=512
        )
        labels = self._recognizer.model.config.id2label
        self._labels = [str(labels[index]) for index in range(len(labels))]
        if set(self._labels) != {"O", *(f"{prefix}-{kind}" for prefix in "BI" for kind in TYPES)}:
            message = f"expected the labels of RaTE-NER, B-ABNORMALITY and others; found {', '.join(self._labels):.200}"
            file = folder / "ner" / "config.json"
            raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=file, field="id2label")
        self._encoder = Encoder.load("AutoModel", folder / "encoder", batch_size=256, max_tokens=30)

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        entities = self.read([text for pair in pairs for text in (pair.candidate, pair.reference)])
        values: list[float] = []
        details: list[dict[str, list[str]]] = []
        without = 0
        for candidate, reference in zip(entities[0::2], entities[1::2], strict=True):
            sides = {"candidate": (candidate, reference), "reference": (reference, candidate)}
            if candidate.texts and reference.texts:
                matches = {side: match_entities(*pair, penalty=self._penalty) for side, pair in sides.items()}
                values.append(harmonic_mean(*(score for score, _ in matches.values())))
                details.append({side: lines for side, (_, lines) in matches.items()})
                continue
            without += 1
            default = 0.0 if candidate.texts or reference.texts else float("nan")
            values.append(default if self._without_entities is None else self._without_entities)
            details.append({side: _names(entities) for side, (entities, _) in sides.items()})
        (name,) = self.scores
        return MetricResult(
            {name: values},
            details=details,
            failures={i: "neither report has a medical entity" for i, value in enumerate(values) if np.isnan(value)},
            counts={"ratescore_without_entities": without},
        )

    def read(self, texts: Sequence[str]) -> list[Entities]:
        entities_by_text = self._recognize(texts)
        embeddings: dict[str, NDArray[np.float64]] = {}
        for batch, _, output in self._encoder.read([text for entities in entities_by_text for text, _ in entities]):
            # The hidden state of the first token, as in the package.
            vectors = output.last_hidden_state[:, 0].double().cpu().numpy()  # (texts, width)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            embeddings |= zip(batch, vectors, strict=True)
        return [
            Entities(
                tuple(text for text, _ in entities),
                np.array([TYPES.index(kind) for _, kind in entities], dtype=np.int_),
                np.array([embeddings[text] for text, _ in entities], dtype=np.float64),
            )
            for entities in entities_by_text
        ]

    def _recognize(self, texts: Sequence[str]) -> list[list[tuple[str, str]]]:
        """Return the entities of each text with their types, in order."""
        sentences = [[f"{sentence}." for sentence in segment_sentences(text)] for text in texts]
        tokenizer, entities = self._recognizer.tokenizer, dict[str, list[tuple[str, str]]]()
        batches = self._recognizer.read(
            [item for items in sentences for item in items], return_special_tokens_mask=True
        )
        for batch, encoded, output in batches:
            is_word = encoded["special_tokens_mask"].cpu() == 0  # (sentences, tokens); padding is special
            best, ids = output.logits.argmax(dim=2).cpu(), encoded["input_ids"].cpu()
            for index, sentence in enumerate(batch):
                labels = [self._labels[label] for label in best[index][is_word[index]].tolist()]
                tokens = tokenizer.convert_ids_to_tokens(ids[index][is_word[index]].tolist())
                entities[sentence] = [
                    (tokenizer.convert_tokens_to_string(tokens[first:stop]).strip(), kind)
                    for first, stop, kind in decode_spans(labels)
                ]
        return [[entity for item in items for entity in entities[item]] for items in sentences]


class PackageRaTEScore(RaTEScore):
    """RaTEScore as the package RaTEScore and ReXrank compute it: 0.5 for a pair in which a report has no entity."""

    variant = "rexrank"
    difference = "0.5 if a report has no entity"
    source = "RaTEScore 0.6.0, ReXrank"
    scores: Mapping[str, Score] = {"ratescore.rexrank": Score("higher", "harmonic mean of both directions")}
    scores_empty = True
    _without_entities = 0.5


def _names(entities: Entities) -> list[str]:
    return [f"{text} ({TYPES[kind]})" for text, kind in zip(entities.texts, entities.types, strict=True)]
