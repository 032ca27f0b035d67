"""Internal consistency: the sentences of a candidate that contradict each other. No reference is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import PositiveInt

from radfact.languages import Language
from radfact.llm import ChatRequest
from radfact.llm.response_text import parse_json
from radfact.metrics.llm.llm_metric import LLMMetric, ResponsePart, own_prompt
from radfact.metrics.protocol import Metric, MetricResult, Score
from radfact.reader.contradictions import Contradiction, ContradictionReader
from radfact.reader.segmentation import segment_sentences
from radfact.records import TextPair


class Reading(NamedTuple):
    """Sentences of a report, and the contradictions between them."""

    sentences: Sequence[str]
    contradictions: Sequence[Contradiction]

    def values(self) -> tuple[float, float, float]:
        """Return the scores of a metric in order; NaN without a sentence."""
        count, contradicted = len(self.sentences), {index for item in self.contradictions for index in item[:2]}
        if not count:
            return math.nan, math.nan, math.nan
        return (count - len(contradicted)) / count, len(self.contradictions), float(not contradicted)

    def record(self) -> dict[str, Any]:
        """Return the number of sentences, and the pairs that contradict each other."""
        pairs = [
            {"first": self.sentences[item.first], "second": self.sentences[item.second], "why": item.why}
            for item in self.contradictions
        ]
        return {"sentences": len(self.sentences), "contradictions": pairs}


def _scores(prefix: str) -> dict[str, Score]:
    return {
        prefix: Score("higher", "fraction of sentences that no other sentence of the report contradicts"),
        f"{prefix}_contradictions": Score("lower", "number of pairs of sentences that contradict each other", "pairs"),
        f"{prefix}_contradiction_free": Score("higher", "fraction of reports without a contradiction"),
    }


class Consistency(Metric):
    """Contradictions within the candidate by the offline reader, without a model and without the reference."""

    name = "consistency"
    measures = "sentences of a report that no other sentence of it contradicts"
    scores: Mapping[str, Score] = _scores("consistency")
    main_scores = ("consistency",)
    needs_reference = False
    cost = "nothing"
    for_chest_xrays = True
    language = Language.ENGLISH
    source = "MAIRA-2, appendix F.2; our rules"
    is_variant = True
    worst_values: Mapping[str, float] = {"consistency": 0.0, "consistency_contradiction_free": 0.0}

    def __init__(self, *, ontology: Path | str | None = None) -> None:
        self._reader = ContradictionReader(ontology)

    def describe(self) -> dict[str, Any]:
        return {"extractor": self._reader.describe()}

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        reports = [list(segment_sentences(pair.candidate)) for pair in pairs]
        readings = [Reading(sentences, self._reader.find(sentences)) for sentences in reports]
        rows = [reading.values() for reading in readings]
        values = {name: [row[place] for row in rows] for place, name in enumerate(self.scores)}
        return MetricResult(values, details=[reading.record() for reading in readings])


class _Pair(ResponsePart):
    first: PositiveInt
    second: PositiveInt
    why: str


class _Response(ResponsePart):
    contradictions: list[_Pair]


class ConsistencyLLM(LLMMetric[Reading]):
    """Contradictions within the candidate by a language model, with our own prompt."""

    name = "consistency_llm"
    measures = "as consistency, read by a language model"
    scores: Mapping[str, Score] = _scores("consistency_llm")
    main_scores = ("consistency_llm",)
    needs_reference = False
    cost = "a short response"
    language = Language.SPACED
    source = "MAIRA-2, appendix F.2; our prompt"
    is_variant = True
    worst_values: Mapping[str, float] = {"consistency_llm": 0.0, "consistency_llm_contradiction_free": 0.0}
    parameters: Mapping[str, Any] = {"temperature": 0, "max_tokens": 1024}

    def request(self, pair: TextPair) -> ChatRequest[Reading]:
        sentences = list(segment_sentences(pair.candidate))
        numbered = "\n".join(f"{number}. {text}" for number, text in enumerate(sentences, start=1))
        prefix, schema = own_prompt(self.name, examination=pair.context.examination), _Response.model_json_schema()
        return ChatRequest((("user", numbered),), partial(_parse, sentences), prefix, schema, schema_required=False)

    def compute_scores(self, response: Reading) -> Mapping[str, float]:
        return dict(zip(self.scores, response.values(), strict=True))

    def record(self, response: Reading) -> Mapping[str, Any]:
        return response.record()


def _parse(sentences: Sequence[str], text: str) -> Reading:
    found: dict[tuple[int, ...], Contradiction] = {}
    for pair in parse_json(text, _Response).contradictions:
        first, second = sorted((pair.first, pair.second))
        if first == second or second > len(sentences):
            expected = f"two different numbers from 1 to {len(sentences)}"
            raise ValueError(f"expected {expected}, found {pair.first} and {pair.second}")
        found[first, second] = Contradiction(first - 1, second - 1, pair.why)
    return Reading(sentences, [found[place] for place in sorted(found)])
