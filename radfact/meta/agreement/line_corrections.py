"""Comparison of a model's line corrections with a radiologist's, and the paper's changes to the reports.

Source: FineRadScore, sections 6 and 7 and appendix D. Tables are those of the paper.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from radfact.errors import Failure
from radfact.llm import ChatClient, ChatRequest
from radfact.metrics.llm.fineradscore import split_lines
from radfact.metrics.llm.llm_metric import fill_prompt, load_prompt
from radfact.metrics.llm.responses.corrections import CATEGORY_NAMES, Corrections
from radfact.metrics.llm.responses.report_text import parse_report
from radfact.records import Pair
from radfact.statistics.rater_agreement import Share

Change = Literal["no_change", "delete", "rewrite", "insert", "no_insert"]
CHANGES: tuple[Change, ...] = get_args(Change)


def line_changes(corrections: Corrections) -> list[Change]:
    """Return the change of each line of the candidate: no_change, delete or rewrite."""
    by_line = corrections.by_line()
    return [
        "no_change" if number not in by_line else "delete" if by_line[number].text is None else "rewrite"
        for number in range(len(corrections.lines))
    ]


def change_agreement(expert: Sequence[Corrections], model: Sequence[Corrections]) -> dict[Change, Share]:
    """Return how often the model makes the radiologist's change, by change of the radiologist (tables 1, 4 and 7).

    Changes are compared per line, insertions per report, since the same content may be inserted in one line or three.
    """
    same, cases = Counter[Change](), Counter[Change]()
    for theirs, ours in zip(expert, model, strict=True):
        if theirs.lines != ours.lines:
            raise ValueError(f"expected corrections of the same lines, found {len(theirs.lines)} and {len(ours.lines)}")
        true, predicted = line_changes(theirs), line_changes(ours)
        true.append("insert" if theirs.insertions else "no_insert")
        predicted.append("insert" if ours.insertions else "no_insert")
        cases.update(true)
        same.update(change for change, prediction in zip(true, predicted, strict=True) if change == prediction)
    return {change: Share.of(same[change], cases[change]) for change in CHANGES}


def corrected_text(corrections: Corrections) -> str:
    """Return all rewritten and inserted lines as one text, which tables 2, 5 and 8 compare per report."""
    by_line = corrections.by_line()
    rewritten = [text for number in sorted(by_line) if (text := by_line[number].text) is not None]
    return " ".join([*rewritten, *corrections.insertions])


def corrected_text_pairs(expert: Sequence[Corrections], model: Sequence[Corrections]) -> list[Pair]:
    """Pair the model's `corrected_text` with the radiologist's; reports without either are excluded."""
    texts = [(corrected_text(ours), corrected_text(theirs)) for theirs, ours in zip(expert, model, strict=True)]
    return [Pair(str(index), *both) for index, both in enumerate(texts) if any(both)]


def corrected_pairs(pairs: Sequence[Pair], corrections: Sequence[Corrections]) -> list[Pair]:
    """Replace candidates by corrected ones; their scores show the gain of correction."""
    return [replace(pair, candidate=item.corrected_report()) for pair, item in zip(pairs, corrections, strict=True)]


@dataclass(frozen=True, slots=True)
class CategoryShares:
    """Detection of a category per report."""

    precision: Share
    recall: Share


def detect_categories(expert: Sequence[Mapping[str, int]], model: Sequence[Corrections]) -> dict[str, CategoryShares]:
    """Return precision and recall of each of ReXVal's categories per report: does it occur at all (appendix D)?"""
    table = {}
    for letter in CATEGORY_NAMES:
        true = [counts.get(letter, 0) > 0 for counts in expert]
        predicted = [any(letter in item.categories for item in corrections.items) for corrections in model]
        both = sum(a and b for a, b in zip(true, predicted, strict=True))
        table[letter] = CategoryShares(Share.of(both, sum(predicted)), Share.of(both, sum(true)))
    return table


def shuffle_lines(report: str, *, seed: int = 42) -> str:
    """Return a report with its lines in another order, if it has at least two different ones (section 7.1)."""
    lines = list(split_lines(report))
    if len(set(lines)) < 2:
        return report
    generator, order = random.Random(f"{seed} {report}"), lines[:]
    while order == lines:
        generator.shuffle(order)
    return " ".join(order)


def paraphrase(client: ChatClient, texts: Sequence[str]) -> list[str | Failure]:
    """Paraphrase texts with a language model and a prompt of this project (section 7.2).

    In the paper radiologists checked that each paraphrase has the same content; here nothing checks this.
    """
    prompt = load_prompt("paraphrase")

    def request(source: str) -> ChatRequest[str]:
        def parse(response: str) -> str:
            return parse_report(response, source, requires_overlap=False)

        return ChatRequest((("user", fill_prompt(prompt, report=source)),), parse)

    return client.complete_all([request(text) for text in texts])
