"""CheXprompt: a language model counts the errors in a report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from radfact.error_categories import ERROR_CATEGORIES
from radfact.llm import ChatRequest, PromptPrefix, structured_request
from radfact.llm.response_text import strip_reasoning
from radfact.metrics.llm.llm_metric import LLMMetric, fill_prompt, load_prompt, own_prompt
from radfact.metrics.llm.responses.assessment import parse_errors, parse_sections
from radfact.metrics.llm.responses.counts import MAX_COUNT, strip_markup
from radfact.metrics.protocol import Score
from radfact.records import TextPair

_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_HEADER = re.compile(
    r"number\s+of\s+clinically\s+(significant|insignificant)\s+errors\s+by\s+type[\"']?\s*:", re.IGNORECASE
)
_FENCE = re.compile(r"^[ \t]*```[\w-]*[ \t]*$", re.MULTILINE)
_QUOTE = r"[\"'“”‘’]?"
_PAIR = re.compile(
    rf"[\s,;()\[\]{{}}•\"'-]*{_QUOTE}(?P<letter>[A-Z]){_QUOTE}\s*[,:=]\s*{_QUOTE}(?P<count>[0-9]{{1,2}}){_QUOTE}"
    r"(?!\w|\.[0-9]|\s*[/%])",
    re.IGNORECASE,
)
_END_OF_LIST = re.compile(r"[^\w\n]*(?:\n|\Z)")
_HAS_PAIR = re.compile(
    rf"(?:[(\[]\s*{_QUOTE}[A-F]{_QUOTE}\s*,|(?<!\w)[A-F]{_QUOTE}\s*[:=])\s*{_QUOTE}[0-9]", re.IGNORECASE
)


class CategoryCounts(BaseModel):
    """Number of errors of each category in `ERROR_CATEGORIES`."""

    model_config = ConfigDict(extra="forbid")

    a: _Count
    b: _Count
    c: _Count
    d: _Count
    e: _Count
    f: _Count


class ErrorCounts(BaseModel):
    """Number of errors of a candidate by significance and category. The aliases are the keys in our prompt."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    significant: CategoryCounts = Field(alias="significant errors")
    insignificant: CategoryCounts = Field(alias="insignificant errors")


def _scores(prefix: str) -> dict[str, Score]:
    return {
        f"{prefix}_errors": Score("lower", "number of errors", "errors"),
        f"{prefix}_significant": Score("lower", "number of significant errors", "errors"),
        f"{prefix}_error_free": Score("higher", "reports without errors", "0 to 100 %"),
        f"{prefix}_significant_error_free": Score("higher", "reports without significant errors", "0 to 100 %"),
    }


class CheXprompt(LLMMetric[ErrorCounts]):
    """Number of errors of a report by category and significance, counted with the published prompt.

    Shares are 100 or 0 per report, so that the mean is a percentage. Instructions, examples and parameters are those of
    the authors' code, which repeats the prompt once after an invalid response.
    """

    name = "chexprompt"
    measures = "errors per report, and the fraction of reports without errors"
    scores: Mapping[str, Score] = _scores("chexprompt")
    main_scores = ("chexprompt_errors",)
    cost = "a response of up to 128 tokens"
    for_chest_xrays = True
    source = "LLaVA-Rad (microsoft/chexprompt); MAIRA-2, table D.1"
    parameters: Mapping[str, Any] = {"temperature": 0, "top_p": 0.9, "max_tokens": 128}

    def request(self, pair: TextPair) -> ChatRequest[ErrorCounts]:
        content = fill_prompt(load_prompt("chexprompt"), reference=pair.reference, candidate=pair.candidate)
        prefix = PromptPrefix([("system", load_prompt("chexprompt_system"))])
        return ChatRequest((("user", content),), parse_published_counts, prefix)

    def compute_scores(self, response: ErrorCounts) -> Mapping[str, float]:
        counts = response.model_dump()
        significant = sum(counts["significant"].values())
        errors = significant + sum(counts["insignificant"].values())
        shares = (0.0 if errors else 100.0, 0.0 if significant else 100.0)
        return dict(zip(self.scores, (errors, significant, *shares), strict=True))


class CheXpromptJson(CheXprompt):
    """CheXprompt with a shorter prompt of this project and a response in JSON, not comparable with published scores."""

    name = "chexprompt_json"
    measures = "errors per report as in CheXprompt, with a prompt of this project"
    scores: Mapping[str, Score] = _scores("chexprompt_json")
    main_scores = ("chexprompt_json_errors",)
    cost = "a response"
    for_chest_xrays = False
    source = "our prompt; MAIRA-2, table D.1"
    is_variant = True
    parameters: Mapping[str, Any] = {"temperature": 0, "max_tokens": 1024}

    def request(self, pair: TextPair) -> ChatRequest[ErrorCounts]:
        messages = (("user", f"Reference report:\n{pair.reference}\n\nCandidate report:\n{pair.candidate}"),)
        prefix = own_prompt(self.name, examination=pair.context.examination)
        return structured_request(messages, ErrorCounts, lambda counts: counts, parse_error_counts, prefix=prefix)


def parse_published_counts(text: str) -> ErrorCounts:
    """Parse the published lists, or JSON with the counts of all letters."""
    try:
        return ErrorCounts.model_validate(parse_error_lists(text))
    except ValueError as error:
        response = strip_reasoning(text)
        with suppress(ValueError):
            # Counts outside of the JSON may be others.
            if not _HAS_PAIR.search(response.partition("{")[0] + response.rpartition("}")[2]):
                return parse_error_counts(text, only_json=True)
        raise error from None


def parse_error_lists(text: str) -> dict[str, dict[str, int]]:
    """Parse lists with each letter once; the authors' parser also accepts missing, repeated and unknown ones."""
    lines = _FENCE.sub("", strip_reasoning(text)).splitlines()
    _, *parts = _HEADER.split("\n".join(map(strip_markup, lines)))
    lists: dict[str, dict[str, int]] = {}
    for kind, body in zip(map(str.lower, parts[::2]), parts[1::2], strict=True):
        counts = _parse_list(body, kind)
        if lists.setdefault(kind, counts) != counts:
            raise ValueError(f"it has two lists of clinically {kind} errors that differ; give one")
    for kind in ("significant", "insignificant"):
        if kind not in lists:
            raise ValueError(f"it has no line 'Number of clinically {kind} errors by type: [(A, n_A), ...]'")
    return lists


def _parse_list(body: str, kind: str) -> dict[str, int]:
    pairs: list[tuple[str, int]] = []
    position = 0
    while match := _PAIR.match(body, position):
        pairs.append((match["letter"].lower(), int(match["count"])))
        position = match.end()
    letters = sorted(letter for letter, _ in pairs)
    if letters != sorted(ERROR_CATEGORIES):
        found = ", ".join(letters).upper() or "none"
        raise ValueError(
            f"expected one count of each of A to F in the list of clinically {kind} errors, found counts of {found}; "
            "write it as [(A, n_A), (B, n_B), (C, n_C), (D, n_D), (E, n_E), (F, n_F)]"
        )
    rest = body[position:].partition("Explanation")[0]
    if not _END_OF_LIST.match(rest) or _HAS_PAIR.search(rest):
        raise ValueError(f"expected the list of clinically {kind} errors alone, found more text after it")
    return dict(pairs)


def parse_error_counts(text: str, *, only_json: bool = False) -> ErrorCounts:
    """Parse a response that does not follow the JSON schema: other JSON, or GREEN's notation."""
    sections = parse_sections(text)
    # In text, the next section shows that a section is complete. JSON must have all keys of the prompt.
    is_json = not all(isinstance(body, str) for body in sections.get("significant", ()))
    if only_json and not is_json:
        raise ValueError("expected a JSON object")
    significant = parse_errors(sections, "significant", complete=is_json)
    insignificant = parse_errors(sections, "insignificant", complete=True)
    counts = [{letter: item.count for letter, item in errors.items()} for errors in (significant, insignificant)]
    return ErrorCounts.model_validate(dict(zip(ErrorCounts.model_fields, counts, strict=True)))
