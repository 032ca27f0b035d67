"""Injection of errors and rewriting of reports by a language model, with the prompts of the papers.

Source: GREEN, appendix A.4; ReXamine-Global, appendix A; VERT, section 4.2 and appendix F.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from radfact.error_categories import ERROR_CATEGORIES, CategoryLetter
from radfact.errors import Failure
from radfact.llm import ChatClient, ChatRequest, Message, PromptPrefix
from radfact.llm.response_text import bodies, read_data, strip_reasoning
from radfact.meta.datasets.reports import SiteReport
from radfact.meta.injection.records import InjectedError, InjectedReport
from radfact.metrics.llm.llm_metric import fill_prompt, load_prompt
from radfact.metrics.llm.responses.report_text import parse_report

TRIES = 5
"""Requests for plausible errors in one report (VERT, section 4.2)."""

MODALITY, REGION = "X-ray", "chest"

_PACKAGE = "radfact.meta.injection"
_SUBTLE = "Aim for subtlety, adjusting only one word where feasible."
_OPERATION = "changed by a model"
_NO_SENTENCE = frozenset(
    {"", "none", "null", "nothing", "n/a", "deleted", "removed", "omitted", "sentence removed", "new sentence", "added"}
)


def model_name(client: ChatClient) -> str:
    """Return the name of a client's model for results."""
    return str(client.identity.get("model", "model"))


class _PromptedModel:
    """A language model with one prompt of this package."""

    prompt: ClassVar[str]
    """Name of the prompt."""

    def __init__(self, client: ChatClient) -> None:
        """Create it with the client of the model."""
        self.client = client

    @property
    def name(self) -> str:
        """Name of the model."""
        return model_name(self.client)

    @property
    def instructions(self) -> str:
        """Text of the prompt."""
        return load_prompt(self.prompt, _PACKAGE)

    def describe(self) -> dict[str, Any]:
        """Return the model with its parameters, and the prompt."""
        return {"model": self.client.identity, "prompt": self.instructions}


class ModelStyler(_PromptedModel):
    """Rewrites reports in a standard style; findings and impression become one text."""

    prompt = "standardize"

    def standardize(self, reports: Sequence[str]) -> list[str | Failure]:
        """Return each report in the standard style."""
        system = ("system", self.instructions)
        requests = [_report_request((system, ("user", report)), report) for report in reports]
        responses = self.client.complete_all(requests)
        return [*responses]


class ModelInjector(_PromptedModel):
    """Injects a few errors by the paper's second prompt, appended to the report; experts must count the errors."""

    prompt = "perturb"

    def inject_reports(self, reports: Sequence[SiteReport]) -> list[InjectedReport | Failure]:
        """Return a candidate of every report."""
        requests = [
            _report_request((("user", f"{report.report}\n\n{self.instructions}"),), report.report, changed=True)
            for report in reports
        ]
        responses = self.client.complete_all(requests)
        return [
            response
            if isinstance(response, Failure)
            else InjectedReport(
                sample_id=report.sample_id,
                source_id=report.sample_id,
                reference=report.report,
                candidate=response,
                by=self.name,
                site=report.site,
            )
            for report, response in zip(reports, responses, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class SourceReport:
    """A report to inject errors into; modality and region are part of the query for plausibility."""

    source_id: str
    report: str
    modality: str = MODALITY
    region: str = REGION


@dataclass(frozen=True, slots=True)
class ModifiedReport:
    """A response of a model: a report with errors, the changed sentences, and the text of the response."""

    report: str
    changes: tuple[InjectedError, ...]
    response: str


@dataclass(frozen=True, slots=True)
class Plausibility:
    """Whether all changes are plausible, and the reason."""

    plausible: bool
    reason: str


def inject_with_model(
    client: ChatClient, sources: Sequence[SourceReport], category: CategoryLetter, count: int, *, tries: int = TRIES
) -> list[InjectedReport | Failure]:
    """Inject errors of one category with a model, which then checks whether they are plausible.

    The instructions (VERT, F.1 for category a and F.2 for b) are the system message. The paper does not print its user
    message, so that message is ours. If errors are not plausible (F.3), a new request states the reason, because the
    same request would return the cached response.
    """
    if category not in ("a", "b"):
        raise ValueError(f"expected category a or b, found '{category}'")
    prefix = PromptPrefix([("system", load_prompt(f"inject_{category}", _PACKAGE))])
    turns: dict[int, tuple[Message, ...]] = {
        index: (("user", f"Number of errors to inject: {count}\n\nRadiology report:\n{source.report}"),)
        for index, source in enumerate(sources)
    }

    def request(index: int) -> ChatRequest[ModifiedReport]:
        report = sources[index].report
        return ChatRequest(
            turns[index], lambda text: parse_modified_report(text, report, category, count), prefix=prefix
        )

    results: dict[int, InjectedReport | Failure] = {}
    for _ in range(tries):
        indices = [index for index in range(len(sources)) if index not in results]
        attempts = client.complete_all([request(index) for index in indices])
        responses = dict(zip(indices, attempts, strict=True))
        results |= {index: response for index, response in responses.items() if isinstance(response, Failure)}
        modified = {index: response for index, response in responses.items() if isinstance(response, ModifiedReport)}
        checks = client.complete_all([_plausibility_request(sources[index], r) for index, r in modified.items()])
        for (index, response), check in zip(modified.items(), checks, strict=True):
            if isinstance(check, Failure):
                results[index] = check
            elif check.plausible:
                results[index] = InjectedReport(
                    sample_id=f"{sources[index].source_id}_{category}{count}",
                    source_id=sources[index].source_id,
                    reference=sources[index].report,
                    candidate=response.report,
                    category=category,
                    changes=response.changes,
                    by=model_name(client),
                )
            else:
                refusal = f"These changes are not plausible: {check.reason}. Inject other errors instead."
                turns[index] = (*turns[index], ("assistant", response.response), ("user", refusal))
    return [results.get(index, Failure(f"no plausible error in {tries} tries")) for index in range(len(sources))]


def _plausibility_request(source: SourceReport, modified: ModifiedReport) -> ChatRequest[Plausibility]:
    changes = "\n".join(
        f'{number}. Original: "{change.original or "(nothing)"}" Modified: "{change.modified or "(deleted)"}"'
        for number, change in enumerate(modified.changes, start=1)
    )
    content = (
        f"Imaging modality: {source.modality}\nBody region: {source.region}\n\n"
        f"Radiology report:\n{modified.report}\n\nModifications:\n{changes}"
    )
    prefix = PromptPrefix([("system", load_prompt("plausible", _PACKAGE))])
    return ChatRequest((("user", content),), parse_plausibility, prefix=prefix)


def parse_modified_report(text: str, report: str, category: CategoryLetter, count: int) -> ModifiedReport:
    """Parse a report with errors from JSON; keys may have spaces in place of underscores."""
    data = _find_object(text, "modified_report")
    modified = data["modified_report"]
    details = data.get("changes_detail")
    if not isinstance(modified, str) or not modified.strip():
        raise ValueError("modified_report is no text")
    if _words(modified) == _words(report):
        raise ValueError("modified_report is the report as it was")
    if not isinstance(details, list) or len(details) != count:
        found = len(details) if isinstance(details, list) else "none"
        raise ValueError(f"changes_detail must list {count} changed sentences, one per error; it lists {found}")
    changes = []
    for detail in details:
        if not isinstance(detail, Mapping):
            raise ValueError("an entry of changes_detail is no object")
        entry = _normalize_keys(detail)
        original, changed = _sentence(entry.get("original")), _sentence(entry.get("modified"))
        if original is None and changed is None:
            raise ValueError("an entry of changes_detail has neither original nor modified")
        for sentence, place, words in (
            (original, "the report that was given", _words(report)),
            (changed, "modified_report", _words(modified)),
        ):
            if sentence is not None and _words(sentence) not in words:
                raise ValueError(f"'{sentence:.80}' is not in {place}; copy the sentence as it stands")
        operation = _sentence(entry.get("explanation")) or _OPERATION
        changes.append(InjectedError(category=category, operation=operation, original=original, modified=changed))
    return ModifiedReport(modified.strip(), tuple(changes), text)


def parse_plausibility(text: str) -> Plausibility:
    """Parse a check of plausibility from JSON."""
    data = _find_object(text, "plausible")
    value = data["plausible"]
    plausible = {"true": True, "yes": True, "false": False, "no": False}.get(str(value).strip().lower())
    if plausible is None:
        raise ValueError(f"plausible must be true or false, not '{value}'")
    return Plausibility(plausible, str(data.get("reason") or "").strip())


def inject_mixed_with_model(
    client: ChatClient,
    sources: Sequence[SourceReport],
    categories: Sequence[Sequence[CategoryLetter]],
    *,
    seed: int = 42,
) -> list[InjectedReport | Failure]:
    """Inject errors of several categories with a model, or paraphrase reports without a category.

    Half of the requests, drawn by seed and report, ask for subtle errors. The changed sentences are not known.

    Source: GREEN, appendix A.4.
    """
    requests = []
    for source, letters in zip(sources, categories, strict=True):
        is_subtle = random.Random(f"{seed}/{source.source_id}").random() > 0.5
        slots = {
            "report": source.report,
            "error_types": ", ".join(ERROR_CATEGORIES[letter] for letter in letters),
            "subtle_change": _SUBTLE if is_subtle else "",
        }
        prompt = fill_prompt(load_prompt("modify" if letters else "rephrase", _PACKAGE), **slots)
        requests.append(_candidate_request(prompt, source.report, changed=bool(letters)))
    responses = client.complete_all(requests)
    return [
        response
        if isinstance(response, Failure)
        else InjectedReport(
            sample_id=f"{source.source_id}_{''.join(letters) or 'reworded'}",
            source_id=source.source_id,
            reference=source.report,
            candidate=response,
            changes=tuple(InjectedError(category=letter, operation=_OPERATION) for letter in letters),
            by=model_name(client),
        )
        for source, letters, response in zip(sources, categories, responses, strict=True)
    ]


def draw_categories(source_id: str, *, seed: int = 42) -> tuple[CategoryLetter, ...]:
    """Draw up to three categories; the GREEN paper does not describe how it combines them."""
    generator = random.Random(f"{seed}/{source_id}/categories")
    letters: tuple[CategoryLetter, ...] = get_args(CategoryLetter)
    return tuple(sorted(generator.sample(letters, generator.randint(0, 3))))


def _candidate_request(prompt: str, source: str, *, changed: bool) -> ChatRequest[str]:
    return ChatRequest((("user", prompt),), lambda text: parse_candidate(text, source, changed=changed))


def _report_request(messages: tuple[Message, ...], source: str, *, changed: bool = False) -> ChatRequest[str]:
    return ChatRequest(messages, lambda text: _parse_rewritten(text, source, changed=changed))


def parse_candidate(text: str, source: str, *, changed: bool = False) -> str:
    """Parse the report after "[Candidate]:" in a response."""
    parts = re.split(
        r"\W*\bcandidate(?: report)?[\]*_]*[ \t]*:", strip_reasoning(text), maxsplit=1, flags=re.IGNORECASE
    )
    if len(parts) < 2:
        raise ValueError("expected a report after [Candidate]:")
    return _parse_rewritten(parts[1], source, changed=changed)


def _parse_rewritten(text: str, source: str, *, changed: bool) -> str:
    report = parse_report(text, source)
    if changed and _words(report) == _words(source):
        raise ValueError("the report is as it was; expected errors in it")
    return report


def _find_object(text: str, key: str) -> dict[str, Any]:
    """Return the first JSON object with a key."""
    for body in bodies(text):
        start = body.find("{")
        data = read_data(body[start : body.rfind("}") + 1]) if start >= 0 else None
        if isinstance(data, Mapping) and key in (normalized := _normalize_keys(data)):
            return normalized
    raise ValueError(f"expected a JSON object with {key}")


def _normalize_keys(data: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key).strip().lower().replace(" ", "_"): value for key, value in data.items()}


def _words(text: str) -> str:
    """Return the words of a text with spaces around each, so that whole sentences are found in it."""
    return " ".join(("", *re.findall(r"[^\W_]+", text.lower()), ""))


def _sentence(value: Any) -> str | None:
    """Return a sentence of a response; None for an empty one or words such as "deleted"."""
    text = value.strip() if isinstance(value, str) else ""
    return None if text.lower().strip(" ()[]<>.-") in _NO_SENTENCE else text
