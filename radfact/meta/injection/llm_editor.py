"""Injection of errors and rewriting of reports by a model (GREEN, A.4; ReXamine-Global, A; VERT, 4.2 and F)."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

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

_PACKAGE = "radfact.meta.injection"
_SUBTLE = "Aim for subtlety, adjusting only one word where feasible."
_OPERATION = "changed by a model"
_NO_SENTENCE = frozenset(
    {"", "none", "null", "nothing", "n/a", "deleted", "removed", "omitted", "sentence removed", "new sentence", "added"}
)


def model_name(client: ChatClient) -> str:
    return str(client.identity.get("model", "model"))


class ModelEditor:
    """Rewrites reports with a prompt of ReXamine-Global: a system message, or `perturb`, which follows the report."""

    def __init__(self, client: ChatClient, prompt: Literal["standardize", "perturb"]) -> None:
        self.client, self.prompt = client, prompt
        self.instructions = load_prompt(prompt, _PACKAGE)

    @property
    def name(self) -> str:
        return model_name(self.client)

    def describe(self) -> dict[str, Any]:
        return {"model": self.client.identity, "prompt": self.instructions}

    def edit(self, reports: Sequence[SiteReport]) -> list[InjectedReport | Failure]:
        requests = []
        for report in (row.report for row in reports):
            messages: tuple[Message, ...] = ("system", self.instructions), ("user", report)
            if self.prompt == "perturb":
                messages = (("user", f"{report}\n\n{self.instructions}"),)
            parse = partial(_parse_rewritten, source=report, changed=self.prompt == "perturb")
            requests.append(ChatRequest(messages, parse))
        return _rewrite(self.client, reports, requests)


def _rewrite(
    client: ChatClient, reports: Sequence[SiteReport], requests: Sequence[ChatRequest[str]]
) -> list[InjectedReport | Failure]:
    responses = zip(reports, client.complete_all(requests), strict=True)
    return [
        response if isinstance(response, Failure) else InjectedReport.of(report, response, by=model_name(client))
        for report, response in responses
    ]


def inject_with_model(
    client: ChatClient, reports: Sequence[SiteReport], category: CategoryLetter, count: int
) -> list[InjectedReport | Failure]:
    """Inject errors with a model (VERT, F.1 for category a, F.2 for b), which then checks that they are plausible."""
    prefix = PromptPrefix([("system", load_prompt(f"inject_{category}", _PACKAGE))])
    turns: dict[int, tuple[Message, ...]] = {
        index: (("user", f"Number of errors to inject: {count}\n\nRadiology report:\n{report.report}"),)
        for index, report in enumerate(reports)
    }

    def parse(text: str, source: SiteReport) -> tuple[str, InjectedReport]:
        return text, parse_modified_report(text, source, category, count)

    results: dict[int, InjectedReport | Failure] = {}
    for _ in range(TRIES):
        indices = [index for index in range(len(reports)) if index not in results]
        requests = [ChatRequest(turns[i], partial(parse, source=reports[i]), prefix=prefix) for i in indices]
        responses = dict(zip(indices, client.complete_all(requests), strict=True))
        results |= {index: response for index, response in responses.items() if isinstance(response, Failure)}
        modified = {index: response for index, response in responses.items() if not isinstance(response, Failure)}
        checks = client.complete_all([_plausibility_request(row) for _, row in modified.values()])
        for (index, (text, row)), check in zip(modified.items(), checks, strict=True):
            if isinstance(check, Failure):
                results[index] = check
            elif check is None:
                results[index] = row.model_copy(update={"by": model_name(client)})
            else:
                # The same request would return the cached response.
                refusal = f"These changes are not plausible: {check}. Inject other errors instead."
                turns[index] = (*turns[index], ("assistant", text), ("user", refusal))
    return [results.get(index, Failure(f"no plausible error in {TRIES} tries")) for index in range(len(reports))]


def _plausibility_request(modified: InjectedReport) -> ChatRequest[str | None]:
    changes = "\n".join(
        f'{number}. Original: "{change.original or "(nothing)"}" Modified: "{change.modified or "(deleted)"}"'
        for number, change in enumerate(modified.changes, start=1)
    )
    content = (
        f"Imaging modality: {modified.modality or ''}\nBody region: {modified.anatomy or ''}\n\n"
        f"Radiology report:\n{modified.candidate}\n\nModifications:\n{changes}"
    )
    prefix = PromptPrefix([("system", load_prompt("plausible", _PACKAGE))])
    return ChatRequest((("user", content),), parse_plausibility, prefix=prefix)


def parse_modified_report(text: str, source: SiteReport, category: CategoryLetter, count: int) -> InjectedReport:
    """Parse a report with errors from JSON; keys may have spaces in place of underscores."""
    data = _find_object(text, "modified_report")
    modified = data["modified_report"]
    details = data.get("changes_detail")
    if not isinstance(modified, str) or not modified.strip():
        raise ValueError("modified_report is no text")
    if _words(modified) == _words(source.report):
        raise ValueError("modified_report is the report as it was")
    objects = [detail for detail in details if isinstance(detail, Mapping)] if isinstance(details, list) else []
    if not isinstance(details, list) or not len(objects) == len(details) == count:
        raise ValueError(f"changes_detail must list {count} objects with the changed sentences, one per error")
    changes = []
    for entry in map(_normalize_keys, objects):
        original, changed = _sentence(entry.get("original")), _sentence(entry.get("modified"))
        if original is None and changed is None:
            raise ValueError("an entry of changes_detail has neither original nor modified")
        for sentence, place, words in (
            (original, "the report that was given", _words(source.report)),
            (changed, "modified_report", _words(modified)),
        ):
            if sentence is not None and _words(sentence) not in words:
                raise ValueError(f"'{sentence:.80}' is not in {place}; copy the sentence as it stands")
        operation = _sentence(entry.get("explanation")) or _OPERATION
        changes.append(InjectedError(category=category, operation=operation, original=original, modified=changed))
    sample_id = f"{source.sample_id}_{category}{count}"
    return InjectedReport.of(source, modified.strip(), sample_id=sample_id, category=category, changes=tuple(changes))


def parse_plausibility(text: str) -> str | None:
    """Return why changes are not plausible; None if all are."""
    data = _find_object(text, "plausible")
    value = data["plausible"]
    plausible = {"true": True, "yes": True, "false": False, "no": False}.get(str(value).strip().lower())
    if plausible is None:
        raise ValueError(f"plausible must be true or false, not '{value}'")
    return None if plausible else str(data.get("reason") or "").strip()


def inject_mixed_with_model(
    client: ChatClient, reports: Sequence[SiteReport], categories: Sequence[Sequence[CategoryLetter]], *, seed: int = 42
) -> list[InjectedReport | Failure]:
    """Inject errors of several categories, half of the times subtle ones, or paraphrase reports (GREEN, A.4)."""
    requests = []
    for report, letters in zip(reports, categories, strict=True):
        is_subtle = random.Random(f"{seed}/{report.sample_id}").random() > 0.5
        slots = {
            "report": report.report,
            "error_types": ", ".join(ERROR_CATEGORIES[letter] for letter in letters),
            "subtle_change": _SUBTLE if is_subtle else "",
        }
        prompt = fill_prompt(load_prompt("modify" if letters else "rephrase", _PACKAGE), **slots)
        parse = partial(parse_candidate, source=report.report, changed=bool(letters))
        requests.append(ChatRequest((("user", prompt),), parse))
    results = _rewrite(client, reports, requests)
    for index, (letters, result) in enumerate(zip(categories, results, strict=True)):
        if isinstance(result, InjectedReport):
            sample_id = f"{result.source_id}_{''.join(letters) or 'reworded'}"
            changes = tuple(InjectedError(category=letter, operation=_OPERATION) for letter in letters)
            results[index] = result.model_copy(update={"sample_id": sample_id, "changes": changes})
    return results


def draw_categories(source_id: str, *, seed: int = 42) -> tuple[CategoryLetter, ...]:
    """Draw up to three categories; the GREEN paper does not describe how it combines them."""
    generator = random.Random(f"{seed}/{source_id}/categories")
    letters: tuple[CategoryLetter, ...] = get_args(CategoryLetter)
    return tuple(sorted(generator.sample(letters, generator.randint(0, 3))))


def parse_candidate(text: str, source: str, *, changed: bool = False) -> str:
    """Parse the report after "[Candidate]:" in a response."""
    _, *rest = re.split(r"(?i)\W*\bcandidate(?: report)?[\]*_]*[ \t]*:", strip_reasoning(text), maxsplit=1)
    if not rest:
        raise ValueError("expected a report after [Candidate]:")
    return _parse_rewritten(rest[0], source, changed=changed)


def _parse_rewritten(text: str, source: str, *, changed: bool) -> str:
    report = parse_report(text, source)
    if changed and _words(report) == _words(source):
        raise ValueError("the report is as it was; expected errors in it")
    return report


def _find_object(text: str, key: str) -> dict[str, Any]:
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
