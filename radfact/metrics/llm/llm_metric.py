"""Base class of the metrics that query a language model once per pair."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from radfact.errors import Failure
from radfact.llm import ChatClient, ChatRequest, PromptPrefix
from radfact.llm.plan import RequestPlan, plan_requests
from radfact.metrics.protocol import Metric, MetricResult, Requirements
from radfact.records import TextPair

ResponseT = TypeVar("ResponseT")

_SLOT = re.compile(r"\{(\w+)\}")


@cache
def load_prompt(name: str, package: str = "radfact.metrics.llm") -> str:
    """Return a prompt exactly as it is sent, with unfilled slots."""
    return (resources.files(package) / "prompts" / f"{name}.txt").read_text(encoding="utf-8")


def fill_prompt(template: str, **slots: str) -> str:
    """Fill the slots `{name}` of a prompt; all other braces stay as they are."""
    return _SLOT.sub(lambda match: slots.get(match[1], match[0]), template)


@cache
def own_prompt(name: str, **slots: str) -> PromptPrefix:
    """Return a prompt of this project as system message; `examination` is that of the pair (`PatientContext`)."""
    return PromptPrefix([("system", fill_prompt(load_prompt(name), **slots))])


def complete(
    client: ChatClient, requests: Sequence[ChatRequest[ResponseT]]
) -> tuple[list[ResponseT | Failure], dict[str, int]]:
    """Query a model, and return its responses with their usage."""
    before = client.usage_counter.as_dict()
    responses = client.complete_all(requests)
    return responses, {name: count - before[name] for name, count in client.usage_counter.as_dict().items()}


class ResponsePart(BaseModel):
    """Part of a response. Unknown fields are ignored, although the schema sent to the server forbids them."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})


class LLMMetric(Metric, Generic[ResponseT]):
    """A metric that computes all its scores of a pair from one response; without a valid one, they are NaN."""

    requirements = Requirements(judge="model")

    def __init__(self, client: ChatClient) -> None:
        self.client = client

    @abstractmethod
    def request(self, pair: TextPair) -> ChatRequest[ResponseT]:
        """Build the request for a pair."""

    @abstractmethod
    def compute_scores(self, response: ResponseT) -> Mapping[str, float]:
        """Compute the scores of a pair by name."""

    def record(self, response: ResponseT) -> Mapping[str, Any]:
        """Return a response as JSON values, for a person to read. Override it for a response that is no model."""
        return response.model_dump(mode="json") if isinstance(response, BaseModel) else {}

    def plan(self, pairs: Sequence[TextPair]) -> dict[str, RequestPlan]:
        return {self.name: plan_requests(self.client, self.requests(pairs))[0]}

    def requests(self, pairs: Sequence[TextPair]) -> list[ChatRequest[ResponseT]]:
        """Build the requests for pairs, whose errors show no word of the reports and of the context."""
        requests = []
        for pair in pairs:
            age = "" if pair.context.age is None else f"{pair.context.age:g}"
            context = pair.context.indication or "", pair.context.comparison or "", age
            requests.append(replace(self.request(pair), reports=(pair.candidate, pair.reference, *context)))
        return requests

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        responses, usage = complete(self.client, self.requests(pairs))
        rows = [{} if isinstance(response, Failure) else self.compute_scores(response) for response in responses]
        details = [{} if isinstance(response, Failure) else self.record(response) for response in responses]
        failures = {index: failed.reason for index, failed in enumerate(responses) if isinstance(failed, Failure)}
        values = {name: [row.get(name, math.nan) for row in rows] for name in self.scores}
        return MetricResult(values, details=details, failures=failures, usage=usage)
