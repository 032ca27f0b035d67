"""A model's answer as a verdict: strict on meaning, lenient on form (YAML or JSON, fenced or not, loosely quoted)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, get_args

from radfact.judges.protocol import Status, Verdict
from radfact.llm.response_text import EMPTY_WORDS, bodies, read_data, read_list, unquoted
from radfact.records import normalised_text

EVIDENCE_COVER = 0.6
"""Share of a quoted evidence text that the longest common substring with a premise must cover."""

_ENTAILED = frozenset({"entailment", "entailed", "yes", "true"})
_NOT_ENTAILED = frozenset(
    {"not entailment", "not entailed", "non entailment", "neutral", "contradiction", "contradicted", "no", "false"}
)
_KEY = re.compile(
    r"^[\s{*\"']*(?:-\s+[{*\"']*(?=number|phrase))?(number|phrase|evidence|status)[\"'*]*\s*:[*\s]*(.*)$",
    re.IGNORECASE,
)
_STATUS_LINE = re.compile(r"^\s*[\"'*]*status[\"'*]*\s*:", re.IGNORECASE | re.MULTILINE)
_NUMBER = re.compile(r"\d+")

Fields = Mapping[str, Any]


@dataclass(slots=True)
class ReportAnswer:
    """What can be used of the answer to all hypotheses of a report, and what is wrong with the rest.

    `verdicts` holds, by the hypothesis' index from 0, the verdict and the number of dropped evidence texts.
    """

    verdicts: dict[int, tuple[Verdict, int]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def parse_answer(text: str, premises: Sequence[str]) -> tuple[Verdict, int]:
    """Read the answer to one question.

    Args:
        text: YAML or JSON with `evidence` and `status`, fenced or not.
        premises: the sentences that evidence may quote.

    Returns:
        The verdict, and how many evidence texts matched no premise and were dropped.

    Raises:
        ValueError: no status, an unknown one, or an entailment without evidence among the premises.
    """
    for body in bodies(text):
        if fields := _one(body):
            return _verdict(fields, premises)
    return _verdict({}, premises)


def parse_report_answer(text: str, premises: Sequence[str], hypotheses: Sequence[str]) -> ReportAnswer:
    """Read the answers to all hypotheses of a report; never raises.

    An item belongs to the hypothesis with its number, or, without a number of the list, to the one that it quotes. An
    item that carries one hypothesis' number and quotes another belongs to none, nor do two that disagree.

    Args:
        text: YAML or JSON, a list of `number`, `phrase`, `evidence` and `status`, fenced or not.
        premises: the sentences that evidence may quote.
        hypotheses: the sentences that were asked about, in the order of their numbers.
    """
    items: Sequence[Fields] = next(filter(None, map(_many, bodies(text))), [])
    answer = ReportAnswer()
    disputed: set[int] = set()
    for item in items:
        try:
            index = _belongs(item, hypotheses)
        except ValueError as error:
            answer.faults.append(str(error))
            continue
        try:
            found = _verdict(item, premises)
        except ValueError as error:
            answer.faults.append(f"number {index + 1}: {error}")
            disputed.add(index)
            continue
        if answer.verdicts.setdefault(index, found) != found:
            answer.faults.append(f"number {index + 1} is answered twice, differently")
            disputed.add(index)
    for index in disputed:
        answer.verdicts.pop(index, None)
    absent = sorted(set(range(len(hypotheses))) - set(answer.verdicts) - disputed)
    if absent:
        answer.faults.append(f"no answer to number {', '.join(str(index + 1) for index in absent)}")
    return answer


def match_evidence(quoted: str, premises: Sequence[str]) -> int | None:
    """The first premise that a quotation means: verbatim, then normalised, then by the longest common substring."""
    if quoted in premises:
        return list(premises).index(quoted)
    wanted, known = normalised_text(quoted), [normalised_text(premise) for premise in premises]
    if wanted in known:
        return known.index(wanted)
    best, best_size = None, 0
    for index, premise in enumerate(known):
        size = SequenceMatcher(None, wanted, premise, autojunk=False).find_longest_match().size
        if size > best_size:
            best, best_size = index, size
    return best if wanted and best_size >= EVIDENCE_COVER * len(wanted) else None


def _verdict(fields: Fields, premises: Sequence[str]) -> tuple[Verdict, int]:
    word = _word(fields.get("status"))
    if word not in _ENTAILED | _NOT_ENTAILED:
        found = f"found '{word:.40}'" if word else "found none"
        raise ValueError(f"status must be {' or '.join(get_args(Status))}, {found}")
    matches = [match_evidence(quoted, premises) for quoted in _quotations(fields.get("evidence"))]
    evidence = tuple(sorted({match for match in matches if match is not None}))
    dropped = matches.count(None)
    if word in _NOT_ENTAILED:
        return Verdict("not_entailment", evidence), dropped
    if not evidence:
        raise ValueError("entailment needs evidence: quote at least one sentence of the reference word for word")
    return Verdict("entailment", evidence), dropped


def _word(status: Any) -> str:
    """A status as words in lower case; JSON's true and false are words too."""
    text = str(status) if isinstance(status, str | bool) else ""
    return " ".join(re.split(r"[\s_-]+", text.strip(" .*\"'`").lower()))


def _quotations(evidence: Any) -> list[str]:
    texts = evidence if isinstance(evidence, list) else [evidence]
    stripped = [text.strip() for text in texts if isinstance(text, str)]
    return [text for text in stripped if text.lower() not in EMPTY_WORDS]


def _one(body: str) -> Fields:
    """The fields of one answer; empty if there are none."""
    data = read_data(body)
    if isinstance(data, str | bool) and _word(data) in _ENTAILED | _NOT_ENTAILED:
        return {"status": data}
    if isinstance(data, list) and len(data) == 1:
        data = data[0]
    fields = _named(data)
    # A model that runs on invents further questions and answers; the first answer is the one to ours.
    if fields and len(_STATUS_LINE.findall(body)) < 2:
        return fields
    return next((block for block in _blocks(body) if "status" in block), {})


def _many(body: str) -> list[Fields]:
    """The fields of each answer of a report; empty if there are none."""
    data = read_data(body)
    if isinstance(data, dict) and not _named(data):
        lists = [value for value in data.values() if isinstance(value, list)]
        data = lists[0] if lists else [_with_number(key, value) for key, value in data.items()]
    items: list[Fields] = [_named(item) for item in (data if isinstance(data, list) else [data])]
    return items if items and all(items) else [block for block in _blocks(body) if "status" in block]


def _with_number(key: Any, value: Any) -> Any:
    return {"number": key, **value} if isinstance(value, dict) else value


def _named(data: Any) -> dict[str, Any]:
    """A mapping with a status and readable evidence, its keys in lower case; anything else gives an empty one."""
    if not isinstance(data, dict):
        return {}
    fields = {str(key).strip().lower(): value for key, value in data.items() if isinstance(key, str | int)}
    evidence = fields.get("evidence")
    texts = evidence if isinstance(evidence, list) else [evidence]
    readable = all(isinstance(text, str | None) for text in texts)
    return fields if "status" in fields and readable else {}


def _blocks(body: str) -> list[dict[str, Any]]:
    """Answers read line by line where the whole is no YAML; one begins at its number, or where a key comes again."""
    blocks: list[dict[str, list[str]]] = []
    key = ""
    for line in body.splitlines():
        if match := _KEY.match(line):
            key = match[1].lower()
            if not blocks or key in blocks[-1] or (key == "number" and blocks[-1]):
                blocks.append({})
            blocks[-1][key] = [match[2]]
        elif key == "evidence":
            blocks[-1][key].append(line)
    return [
        {key: read_list(lines) if key == "evidence" else _scalar(lines[0]) for key, lines in block.items()}
        for block in blocks
    ]


def _scalar(text: str) -> str:
    return unquoted(text.strip(" \t,}"))


def _belongs(item: Fields, hypotheses: Sequence[str]) -> int:
    """The index of the hypothesis that an item answers.

    Raises:
        ValueError: it carries no number of the list and quotes no hypothesis, or one's number and another's text.
    """
    phrase, number = item.get("phrase"), _NUMBER.search(str(item.get("number", "")))
    said = normalised_text(phrase) if isinstance(phrase, str) else ""
    quoted = [index for index, one in enumerate(hypotheses) if said and normalised_text(one) == said]
    index = int(number[0]) - 1 if number and len(number[0]) < 9 else -1
    if not 0 <= index < len(hypotheses):
        if not quoted:
            shown = f"number {number[0]:.9}" if number else "an answer without a number"
            raise ValueError(f"{shown} belongs to none of the {len(hypotheses)} hypotheses")
        return quoted[0]
    if quoted and index not in quoted:
        raise ValueError(f"number {index + 1} quotes the hypothesis of number {quoted[0] + 1}")
    return index
