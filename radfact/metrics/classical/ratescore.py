"""RaTEScore: similarity of the medical entities of two reports, weighted by the types of entities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radfact.errors import ErrorCode, InputError
from radfact.languages import Language
from radfact.metrics.protocol import Metric, MetricResult, Requirements, Score
from radfact.reader.segmentation import segment_sentences
from radfact.records import TextPair

TYPES = ("ABNORMALITY", "ANATOMY", "DISEASE", "NON-ABNORMALITY", "NON-DISEASE")
"""Types of entities; NON- marks a finding that the report denies."""

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

NER_BATCH_SIZE = 32
NER_MAX_TOKENS = 512
ENTITY_BATCH_SIZE = 256
ENTITY_MAX_TOKENS = 30

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

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, slots=True)
class Matches:
    """The entities of a report matched to the nearest ones of the other report; arrays (entities,).

    The similarities are cosines after the penalty for opposite findings, of which exactly one is denied. The score is
    their mean, weighted by the types; 0 if all weights are 0.
    """

    indices: NDArray[np.int_]
    similarities: NDArray[np.float64]
    is_opposite: NDArray[np.bool_]
    score: float


def match_entities(entities: Entities, others: Entities, *, penalty: float = PENALTY) -> Matches:
    """Match each entity to the nearest one of the other report."""
    # Rounding errors must not decide between equal texts of different types; the first one counts.
    cosines = (entities.embeddings @ others.embeddings.T).round(9)  # (entities, others)
    indices = cosines.argmax(axis=1)
    types, other_types = entities.types, others.types[indices]
    is_finding, is_denied = (
        np.array([test(name) for name in TYPES]) for test in (lambda name: name != "ANATOMY", lambda name: "-" in name)
    )
    is_opposite = is_finding[types] & is_finding[other_types] & (is_denied[types] != is_denied[other_types])
    similarities = cosines.max(axis=1) * np.where(is_opposite, penalty, 1.0)
    weights = AFFINITY[types, other_types]
    total = float(weights.sum())
    score = float((similarities * weights).sum() / total) if total else 0.0
    return Matches(indices, similarities, is_opposite, score)


def harmonic_mean(first: float, second: float) -> float:
    """Compute the harmonic mean of the scores in both directions; 0 if their sum is 0."""
    return 2 * first * second / (first + second) if first + second else 0.0


def decode_spans(labels: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return the entities of IOB labels as (first token, token after the last, type of the first token).

    A token "I-" that does not follow an entity is no entity; one that does belongs to it, whatever its type.
    """
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

    Each entity of a report is matched to the nearest one of the other report, by the cosine of their embeddings. The
    score of a report is the mean of these cosines, weighted by both types, where a denied and an affirmed finding have
    a lower cosine. RaTEScore is the harmonic mean of the scores of both reports.

    A report without entities has the score 0 if the other one has some; a pair without any entity has no score.

    Source: RaTEScore, section 3, and the package RaTEScore 0.6.0. The constants are from the package; the paper's
    equations were not checked against it.
    """

    name = "ratescore"
    display_name = "RaTEScore"
    measures = "similarity of medical entities by type, with a penalty for opposite findings"
    scores: Mapping[str, Score] = {"ratescore": Score("higher", "harmonic mean of both directions")}
    requirements = Requirements(packages=("torch", "transformers"), weights=WEIGHTS)
    cost = "two passes of DeBERTa, one of MPNet for each entity"
    language = Language.ENGLISH
    source = "RaTEScore; package RaTEScore 0.6.0"
    _without_entities: float | None = None

    def __init__(self, folder: Path, *, penalty: float = PENALTY) -> None:
        """Load the models."""
        if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not 0 <= penalty <= 1:
            message = f"expected a number from 0 to 1, found {penalty!r}"
            raise InputError(message, code=ErrorCode.INVALID_OPTION, field="penalty")
        self._penalty = float(penalty)
        self._recognizer = EntityRecognizer(folder / "ner")
        self._encoder = EntityEncoder(folder / "encoder")

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        """Score pairs, with the entities of both reports and their matches as details."""
        entities = self.read([text for pair in pairs for text in (pair.candidate, pair.reference)])
        reports = list(zip(entities[0::2], entities[1::2], strict=True))
        values: list[float] = []
        details: list[dict[str, list[str]]] = []
        failures: dict[int, str] = {}
        for index, (candidate, reference) in enumerate(reports):
            if len(candidate) and len(reference):
                matches = match_entities(candidate, reference, penalty=self._penalty)
                reverse = match_entities(reference, candidate, penalty=self._penalty)
                values.append(harmonic_mean(matches.score, reverse.score))
                details.append(
                    {
                        "candidate": _describe(candidate, reference, matches),
                        "reference": _describe(reference, candidate, reverse),
                    }
                )
                continue
            default = 0.0 if len(candidate) or len(reference) else float("nan")
            values.append(default if self._without_entities is None else self._without_entities)
            details.append({"candidate": _names(candidate), "reference": _names(reference)})
            if np.isnan(values[-1]):
                failures[index] = "neither report has a medical entity"
        (name,) = self.scores
        without = sum(not (len(candidate) and len(reference)) for candidate, reference in reports)
        return MetricResult(
            {name: values}, details=details, failures=failures, counts={"ratescore_without_entities": without}
        )

    def read(self, texts: Sequence[str]) -> list[Entities]:
        """Return the entities of texts with their embeddings."""
        entities_by_text = self._recognizer.recognize(texts)
        embeddings = self._encoder.encode([text for entities in entities_by_text for text, _ in entities])
        return [
            Entities(
                tuple(text for text, _ in entities),
                np.array([TYPES.index(kind) for _, kind in entities], dtype=np.int_),
                np.array([embeddings[text] for text, _ in entities], dtype=np.float64),
            )
            for entities in entities_by_text
        ]


class PackageRaTEScore(RaTEScore):
    """RaTEScore as the package RaTEScore and ReXrank compute it: 0.5 for a pair in which a report has no entity."""

    variant = "rexrank"
    difference = "0.5 if a report has no entity"
    source = "RaTEScore 0.6.0, ReXrank"
    scores: Mapping[str, Score] = {"ratescore.rexrank": Score("higher", "harmonic mean of both directions")}
    _without_entities = 0.5


RaTEScore.variants = {PackageRaTEScore.variant: PackageRaTEScore}


def _names(entities: Entities) -> list[str]:
    return [f"{text} ({TYPES[kind]})" for text, kind in zip(entities.texts, entities.types, strict=True)]


def _describe(entities: Entities, others: Entities, matches: Matches) -> list[str]:
    names, other_names = _names(entities), _names(others)
    return [
        f"{name} matches {other_names[match]}, similarity {similarity:.2f}{', opposite' if is_opposite else ''}"
        for name, match, similarity, is_opposite in zip(
            names, matches.indices, matches.similarities, matches.is_opposite, strict=True
        )
    ]


class EntityRecognizer:
    """The published token classifier of medical entities."""

    def __init__(self, folder: Path) -> None:
        """Load the model and its tokenizer."""
        from transformers import AutoModelForTokenClassification

        self._model, self._tokenizer, self._device = _load(AutoModelForTokenClassification, folder)
        labels = self._model.config.id2label
        self._labels = [str(labels[index]) for index in range(len(labels))]
        expected = {"O", *(f"{prefix}-{kind}" for prefix in "BI" for kind in TYPES)}
        if set(self._labels) != expected:
            message = f"expected the labels of RaTE-NER, B-ABNORMALITY and others; found {', '.join(self._labels):.200}"
            raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=folder / "config.json", field="id2label")

    def recognize(self, texts: Sequence[str]) -> list[list[tuple[str, str]]]:
        """Return the entities of each text with their types, in order."""
        sentences = [[f"{sentence}." for sentence in segment_sentences(text)] for text in texts]
        entities = self._read_sentences(sorted({item for items in sentences for item in items}, key=len))
        return [[entity for item in items for entity in entities[item]] for items in sentences]

    def _read_sentences(self, sentences: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
        import torch

        entities: dict[str, list[tuple[str, str]]] = {}
        for start in range(0, len(sentences), NER_BATCH_SIZE):
            batch = sentences[start : start + NER_BATCH_SIZE]
            encoded = self._tokenizer(
                batch,
                padding=True,
                truncation=True,
                max_length=NER_MAX_TOKENS,
                return_special_tokens_mask=True,
                return_tensors="pt",
            )
            is_word = encoded.pop("special_tokens_mask") == 0  # (sentences, tokens); padding is special
            with torch.inference_mode():
                logits = self._model(**encoded.to(self._device)).logits  # (sentences, tokens, labels)
            best = logits.argmax(dim=2).cpu()
            ids = encoded["input_ids"].cpu()
            for index, sentence in enumerate(batch):
                labels = [self._labels[label] for label in best[index][is_word[index]].tolist()]
                tokens = self._tokenizer.convert_ids_to_tokens(ids[index][is_word[index]].tolist())
                entities[sentence] = [
                    (self._tokenizer.convert_tokens_to_string(tokens[first:stop]).strip(), kind)
                    for first, stop, kind in decode_spans(labels)
                ]
        return entities


class EntityEncoder:
    """The published encoder of names of biomedical concepts: the hidden state of the first token, as in the package."""

    def __init__(self, folder: Path) -> None:
        """Load the model and its tokenizer."""
        from transformers import AutoModel

        self._model, self._tokenizer, self._device = _load(AutoModel, folder)

    def encode(self, texts: Sequence[str]) -> dict[str, NDArray[np.float64]]:
        """Return embeddings (width,) of length 1 by text."""
        import torch

        distinct = sorted(set(texts), key=len)
        embeddings: dict[str, NDArray[np.float64]] = {}
        for start in range(0, len(distinct), ENTITY_BATCH_SIZE):
            batch = distinct[start : start + ENTITY_BATCH_SIZE]
            encoded = self._tokenizer(
                batch, padding=True, truncation=True, max_length=ENTITY_MAX_TOKENS, return_tensors="pt"
            )
            with torch.inference_mode():
                hidden = self._model(**encoded.to(self._device)).last_hidden_state[:, 0]  # (texts, width)
            vectors = hidden.double().cpu().numpy()
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            embeddings |= dict(zip(batch, vectors, strict=True))
        return embeddings


def _load(factory: Any, folder: Path) -> tuple[Any, Any, Any]:
    """Load a model in 32 bits and its tokenizer from a folder alone, and choose the device."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoTokenizer

    try:
        model, loaded = factory.from_pretrained(
            str(folder), local_files_only=True, dtype=torch.float32, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"cannot be loaded: {reason:.200}", code=ErrorCode.INVALID_FORMAT, file=folder) from None
    # A missing weight would be random. The pooler is not used.
    missing = sorted(name for name in loaded["missing_keys"] if "pooler" not in name)
    if missing:
        message = f"expected the weights of {type(model).__name__}; {missing[0]} is missing"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=folder)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return model.to(device).eval(), tokenizer, device
