"""How far a model's corrections agree with a radiologist's (paper 001, sections 6 and 7, appendix D)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from radfact.errors import Failure
from radfact.llm import ChatClient, ChatRequest
from radfact.metrics.fineradscore import split_lines
from radfact.metrics.llm_metric import fill_prompt, load_prompt
from radfact.metrics.responses.corrections import CATEGORY_NAMES, Corrections
from radfact.metrics.responses.report_text import parse_report
from radfact.records import Pair
from radfact.statistics.error_counts import Share

Change = Literal["no_change", "delete", "rewrite", "insert", "no_insert"]

CHANGES: tuple[Change, ...] = ("no_change", "delete", "rewrite", "insert", "no_insert")


def line_changes(corrections: Corrections) -> list[Change]:
    """What becomes of each line of the candidate: no_change, delete or rewrite."""
    by_line = corrections.by_line()
    return [
        "no_change" if number not in by_line else "delete" if by_line[number].text is None else "rewrite"
        for number in range(len(corrections.lines))
    ]


def change_agreement(expert: Sequence[Corrections], model: Sequence[Corrections]) -> dict[Change, Share]:
    """How often the model does with a line, and with a report, what the radiologist did (tables 1, 4 and 7).

    Lines are compared where the radiologist left, deleted or rewrote one; insertions a report at a time, since the
    same content may be inserted in one line or in three.

    Args:
        expert: the radiologist's corrections, a report each.
        model: those of the model, of the same candidates in the same order.

    Raises:
        ValueError: the two are not of the same lines.
    """
    same, cases = Counter[Change](), Counter[Change]()
    for theirs, ours in zip(expert, model, strict=True):
        if theirs.lines != ours.lines:
            raise ValueError(f"not corrections of the same lines: {len(theirs.lines)} and {len(ours.lines)}")
        wanted, found = line_changes(theirs), line_changes(ours)
        wanted.append("insert" if theirs.insertions else "no_insert")
        found.append("insert" if ours.insertions else "no_insert")
        cases.update(wanted)
        same.update(one for one, other in zip(wanted, found, strict=True) if one == other)
    return {change: Share.of(same[change], cases[change]) for change in CHANGES}


def written_text(corrections: Corrections) -> str:
    """All lines that were rewritten or inserted, as one text: what tables 2, 5 and 8 compare, a report at a time."""
    by_line = corrections.by_line()
    rewritten = [text for number in sorted(by_line) if (text := by_line[number].text) is not None]
    return " ".join([*rewritten, *corrections.insertions])


def written_pairs(expert: Sequence[Corrections], model: Sequence[Corrections]) -> list[Pair]:
    """The model's `written_text` beside the radiologist's, for any metric of texts; reports without either are out."""
    texts = [(written_text(ours), written_text(theirs)) for theirs, ours in zip(expert, model, strict=True)]
    return [Pair(str(place), *both) for place, both in enumerate(texts) if any(both)]


def corrected_pairs(pairs: Sequence[Pair], corrections: Sequence[Corrections]) -> list[Pair]:
    """The same pairs with the corrected candidate: a metric of both says what correction gained (tables 3, 6 and 9)."""
    return [replace(pair, candidate=one.corrected_report()) for pair, one in zip(pairs, corrections, strict=True)]


@dataclass(frozen=True, slots=True)
class SeverityErrors:
    """Differences of report severities, found minus true: their mean absolute value and how often each occurs."""

    mean_absolute: float
    shares: Mapping[int, float]
    n: int


def severity_errors(expert: Sequence[int], found: Sequence[int]) -> SeverityErrors:
    """Compare report severities, each 0 to 4, the greatest of a report's lines (section 6.4, figure 2).

    Raises:
        ValueError: there are none, or not as many of each.
    """
    gaps = [ours - theirs for theirs, ours in zip(expert, found, strict=True)]
    if not gaps:
        raise ValueError("no severities to compare")
    counts = Counter(gaps)
    shares = {gap: counts[gap] / len(gaps) for gap in sorted(counts)}
    return SeverityErrors(sum(map(abs, gaps)) / len(gaps), shares, len(gaps))


def rater_errors(ratings: Sequence[Sequence[int]], *, seed: int = 42) -> SeverityErrors:
    """The disagreement of radiologists: of each report one rater at random against all the others (section 6.4).

    Args:
        ratings: the severities that the raters of each report gave; reports of a single rater are left out.
        seed: of the choice.

    Raises:
        ValueError: no report has two raters.
    """
    generator = random.Random(seed)
    expert: list[int] = []
    found: list[int] = []
    for given in ratings:
        if len(given) < 2:
            continue
        chosen = generator.randrange(len(given))
        others = [rating for place, rating in enumerate(given) if place != chosen]
        expert += others
        found += [given[chosen]] * len(others)
    return severity_errors(expert, found)


@dataclass(frozen=True, slots=True)
class CategoryShares:
    """How a category is detected, a report at a time."""

    precision: Share
    recall: Share


def category_agreement(expert: Sequence[Mapping[str, int]], model: Sequence[Corrections]) -> dict[str, CategoryShares]:
    """Precision and recall of ReXVal's categories: was one found at all in a report (appendix D).

    Args:
        expert: the number of errors by letter, of each report.
        model: corrections with their categories.
    """
    table = {}
    for letter in CATEGORY_NAMES:
        true = [counts.get(letter, 0) > 0 for counts in expert]
        found = [any(letter in item.categories for item in one.items) for one in model]
        both = sum(a and b for a, b in zip(true, found, strict=True))
        table[letter] = CategoryShares(Share.of(both, sum(found)), Share.of(both, sum(true)))
    return table


def shuffled(report: str, *, seed: int = 42) -> str:
    """A report with its lines in another order, where it has at least two different ones (section 7.1).

    Args:
        report: one narrative.
        seed: of the order, together with the report, so that reports are shuffled independently.
    """
    lines = list(split_lines(report))
    if len(set(lines)) < 2:
        return report
    generator, order = random.Random(f"{seed} {report}"), lines[:]
    while order == lines:
        generator.shuffle(order)
    return " ".join(order)


def paraphrased(client: ChatClient, reports: Sequence[str]) -> list[str | Failure]:
    """Reports in other words with the same meaning, by a language model (section 7.2); the prompt is ours.

    The paper had radiologists check that each paraphrase says the same; nothing here does.

    Raises:
        RunError: the server refuses the key or the model, or cannot be reached.
    """
    prompt = load_prompt("paraphrase")
    return client.complete_all([_paraphrase_of(report, prompt) for report in reports])


def _paraphrase_of(report: str, prompt: str) -> ChatRequest[str]:
    def read(text: str) -> str:
        return parse_report(text, report, requires_overlap=False)

    return ChatRequest((("user", fill_prompt(prompt, report=report)),), read)
