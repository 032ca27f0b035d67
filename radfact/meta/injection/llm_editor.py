"""Errors and rewording by a language model: the prompts of papers 000, 002 and 003, and readers of the answers."""

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
from radfact.meta.injection.records import Change, Injected
from radfact.metrics.llm_metric import fill_prompt, load_prompt
from radfact.metrics.responses.report_text import parse_report

TRIES = 5
"""How often an error that is not plausible is asked for in all (paper 003, 4.2)."""

MODALITY, REGION = "X-ray", "chest"

_PACKAGE = "radfact.meta.injection"
_SUBTLE = "Aim for subtlety, adjusting only one word where feasible."
_NONE_LIKE = frozenset(
    {"", "none", "null", "nothing", "n/a", "deleted", "removed", "omitted", "sentence removed", "new sentence", "added"}
)


class PromptedModel:
    """A language model that is asked by one prompt of this package."""

    prompt: ClassVar[str]
    """The prompt's name."""

    def __init__(self, client: ChatClient) -> None:
        """Take the client of the model."""
        self.client = client

    @property
    def name(self) -> str:
        """The model's name."""
        return model_name(self.client)

    def describe(self) -> dict[str, Any]:
        """The model with its parameters, and the prompt."""
        return {"model": self.client.identity, "prompt": self.instructions}

    @property
    def instructions(self) -> str:
        """The prompt itself."""
        return load_prompt(self.prompt, _PACKAGE)


def model_name(client: ChatClient) -> str:
    """What stands in results for a client's model."""
    return str(client.identity.get("model", "model"))


@dataclass(frozen=True, slots=True)
class Modified:
    """A report with errors as a model wrote it, the sentences that it says it changed, and its answer as it stands."""

    report: str
    changes: tuple[Change, ...]
    answer: str


@dataclass(frozen=True, slots=True)
class Source:
    """A report that errors are put into; modality and region are told to whoever checks that they are plausible."""

    source_id: str
    report: str
    modality: str = MODALITY
    region: str = REGION


def inject_by_model(
    client: ChatClient, sources: Sequence[Source], category: CategoryLetter, count: int, *, tries: int = TRIES
) -> list[Injected | Failure]:
    """Have a model put `count` errors of a category into each report, and another question tell if they are plausible.

    The instructions are those of paper 003, F.1 (false findings, a) and F.2 (omissions, b), as the system message; the
    user message, which the paper does not print, is ours. What is not plausible (F.3) is told to the model with the
    reason, and asked for again, up to `tries` times in all; the same question would get the kept answer.

    Args:
        client: of the model, for both.
        sources: reports.
        category: a or b.
        count: errors a report.
        tries: at most so many.

    Raises:
        ValueError: there are no instructions for this category.
        RunError: as `ChatClient.complete_all`.
    """
    if category not in ("a", "b"):
        raise ValueError(f"the paper has instructions for a and b, not for '{category}'")
    prefix = PromptPrefix([("system", load_prompt(f"inject_{category}", _PACKAGE))])
    turns: dict[int, tuple[Message, ...]] = {
        place: (("user", _request(one.report, count)),) for place, one in enumerate(sources)
    }
    found: dict[int, Injected | Failure] = {}
    for _ in range(tries):
        places = [place for place in range(len(sources)) if place not in found]
        answers = client.complete_all([_ask(turns[place], prefix, sources[place], category, count) for place in places])
        written = dict(zip(places, answers, strict=True))
        found |= {place: answer for place, answer in written.items() if isinstance(answer, Failure)}
        left = {place: answer for place, answer in written.items() if isinstance(answer, Modified)}
        verdicts = client.complete_all([_check(sources[place], answer) for place, answer in left.items()])
        for (place, answer), verdict in zip(left.items(), verdicts, strict=True):
            if isinstance(verdict, Failure):
                found[place] = verdict
            elif verdict.plausible:
                found[place] = _as_injected(sources[place], answer, category, count, client)
            else:
                refused = f"These changes are not plausible: {verdict.reason}. Inject other errors instead."
                turns[place] = (*turns[place], ("assistant", answer.answer), ("user", refused))
    unplausible = Failure(f"no plausible error in {tries} tries")
    return [found.get(place, unplausible) for place in range(len(sources))]


def _request(report: str, count: int) -> str:
    return f"Number of errors to inject: {count}\n\nRadiology report:\n{report}"


def _ask(
    messages: tuple[Message, ...], prefix: PromptPrefix, source: Source, category: CategoryLetter, count: int
) -> ChatRequest[Modified]:
    return ChatRequest(messages, lambda text: read_modified(text, source.report, category, count), prefix=prefix)


def _as_injected(
    source: Source, answer: Modified, category: CategoryLetter, count: int, client: ChatClient
) -> Injected:
    return Injected(
        sample_id=f"{source.source_id}_{category}{count}",
        source_id=source.source_id,
        reference=source.report,
        candidate=answer.report,
        category=category,
        changes=answer.changes,
        by=model_name(client),
    )


def read_modified(text: str, report: str, category: CategoryLetter, count: int) -> Modified:
    """A model's report with errors, from JSON; keys may have spaces for underscores.

    Raises:
        ValueError: there is no JSON with these keys, the report is not changed, or not `count` sentences are, or a
            sentence is in neither report.
    """
    data = _object(text, "modified_report")
    modified = data["modified_report"]
    details = data.get("changes_detail")
    if not isinstance(modified, str) or not modified.strip():
        raise ValueError("modified_report is no text")
    if _words(modified) == _words(report):
        raise ValueError("modified_report is the report as it was")
    if not isinstance(details, list) or len(details) != count:
        said = len(details) if isinstance(details, list) else "none"
        raise ValueError(f"changes_detail must list {count} changed sentences, one an error; it lists {said}")
    changes = []
    for one in details:
        if not isinstance(one, Mapping):
            raise ValueError("an entry of changes_detail is no object")
        entry = _plain(one)
        original, written = _text(entry.get("original")), _text(entry.get("modified"))
        if original is None and written is None:
            raise ValueError("an entry of changes_detail has neither original nor modified")
        if original is not None and _words(original) not in _words(report):
            raise ValueError(f"'{original:.80}' is not in the report that was given; copy the sentence as it stands")
        if written is not None and _words(written) not in _words(modified):
            raise ValueError(f"'{written:.80}' is not in modified_report; copy the sentence as it stands")
        operation = _text(entry.get("explanation")) or "changed by a model"
        changes.append(Change(category=category, operation=operation, original=original, modified=written))
    return Modified(modified.strip(), tuple(changes), text)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether all changes are plausible, and why not."""

    plausible: bool
    reason: str


def _check(source: Source, answer: Modified) -> ChatRequest[Verdict]:
    listed = "\n".join(
        f'{number}. Original: "{one.original or "(nothing)"}" Modified: "{one.modified or "(deleted)"}"'
        for number, one in enumerate(answer.changes, start=1)
    )
    content = (
        f"Imaging modality: {source.modality}\nBody region: {source.region}\n\n"
        f"Radiology report:\n{answer.report}\n\nModifications:\n{listed}"
    )
    return ChatRequest(
        (("user", content),), read_verdict, prefix=PromptPrefix([("system", load_prompt("plausible", _PACKAGE))])
    )


def read_verdict(text: str) -> Verdict:
    """What a model says of plausibility, from JSON.

    Raises:
        ValueError: there is no such JSON.
    """
    data = _object(text, "plausible")
    said = data["plausible"]
    plausible = {"true": True, "yes": True, "false": False, "no": False}.get(str(said).strip().lower())
    if plausible is None:
        raise ValueError(f"plausible must be true or false, not '{said}'")
    return Verdict(plausible, str(data.get("reason") or "").strip())


def modify_by_model(
    client: ChatClient, sources: Sequence[Source], categories: Sequence[Sequence[CategoryLetter]], *, seed: int = 42
) -> list[Injected | Failure]:
    """Have a model work errors of some categories into each report, or reword it where there are none (paper 000, A.4).

    Half of the questions ask for subtlety, drawn by seed and report. The kinds are known, not the sentences.

    Args:
        client: of the model.
        sources: reports.
        categories: of each report; none asks for the same meaning in other words.
        seed: of who is asked for subtlety.

    Raises:
        RunError: as `ChatClient.complete_all`.
    """
    asks = []
    for one, letters in zip(sources, categories, strict=True):
        subtle = _SUBTLE if random.Random(f"{seed}/{one.source_id}").random() > 0.5 else ""
        kinds = ", ".join(ERROR_CATEGORIES[letter] for letter in letters)
        slots = {"report": one.report, "error_types": kinds, "subtle_change": subtle}
        prompt = fill_prompt(load_prompt("modify" if letters else "rephrase", _PACKAGE), **slots)
        asks.append(_ask_candidate(prompt, one.report, changed=bool(letters)))
    answers = client.complete_all(asks)
    found: list[Injected | Failure] = []
    for one, letters, answer in zip(sources, categories, answers, strict=True):
        if isinstance(answer, Failure):
            found.append(answer)
            continue
        changes = tuple(Change(category=letter, operation="changed by a model") for letter in letters)
        by = model_name(client)
        key = f"{one.source_id}_{''.join(letters) or 'reworded'}"
        found.append(
            Injected(
                sample_id=key,
                source_id=one.source_id,
                reference=one.report,
                candidate=answer,
                changes=changes,
                by=by,
            )
        )
    return found


def draw_categories(source_id: str, *, seed: int = 42) -> tuple[CategoryLetter, ...]:
    """A random combination of up to three categories; the paper does not say how its combinations are drawn."""
    drawn = random.Random(f"{seed}/{source_id}/categories")
    letters: tuple[CategoryLetter, ...] = get_args(CategoryLetter)
    return tuple(sorted(drawn.sample(letters, drawn.randint(0, 3))))


def _ask_candidate(prompt: str, source: str, *, changed: bool) -> ChatRequest[str]:
    return ChatRequest((("user", prompt),), lambda text: read_candidate(text, source, changed=changed))


def read_candidate(text: str, source: str, *, changed: bool = False) -> str:
    """The report that follows [Candidate]: in an answer, up to what else is said.

    Args:
        text: the answer.
        source: the report that the candidate is made from.
        changed: whether it must differ from it.

    Raises:
        ValueError: there is no [Candidate]:, or no report after it.
    """
    parts = re.split(r"\W*\bcandidate(?: report)?[\]*_]*[ \t]*:", strip_reasoning(text), maxsplit=1, flags=re.IGNORECASE)
    if len(parts) < 2:
        raise ValueError("expected a report after [Candidate]:")
    return read_report(parts[1], source, changed=changed)


def ask_report(messages: tuple[Message, ...], source: str, *, changed: bool = False) -> ChatRequest[str]:
    """Ask for a report made from another one, and nothing else; `changed` as in `read_report`."""
    return ChatRequest(messages, lambda text: read_report(text, source, changed=changed))


def read_report(text: str, source: str, *, changed: bool = False) -> str:
    """The report that an answer is, as `radfact.metrics.responses.report_text.parse_report` reads it.

    Args:
        text: the answer.
        source: the report that it is made from.
        changed: whether it must differ from it.

    Raises:
        ValueError: it is no report, or the source as it was.
    """
    report = parse_report(text, source)
    if changed and _words(report) == _words(source):
        raise ValueError("the report is as it was; expected errors in it")
    return report


def _object(text: str, key: str) -> dict[str, Any]:
    for body in bodies(text):
        start = body.find("{")
        data = read_data(body[start : body.rfind("}") + 1]) if start >= 0 else None
        if isinstance(data, Mapping) and key in (plain := _plain(data)):
            return plain
    raise ValueError(f"expected a JSON object with {key}")


def _plain(data: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key).strip().lower().replace(" ", "_"): value for key, value in data.items()}


def _words(text: str) -> str:
    """A text by its words alone, a space around each, so that whole sentences are found in it."""
    return " ".join(("", *re.findall(r"[^\W_]+", text.lower()), ""))


def _text(value: Any) -> str | None:
    text = value.strip() if isinstance(value, str) else ""
    return None if text.lower().strip(" ()[]<>.-") in _NONE_LIKE else text
