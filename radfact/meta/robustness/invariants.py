"""Invariants of entailment: test a judge on rewritten report sentences for which the correct verdict is known."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from radfact.errors import ErrorCode, Failure, InputError
from radfact.judges.offline_splitter import split_narrative
from radfact.judges.protocol import EntailmentQuery, Judge, Verdict, query_judge
from radfact.meta.robustness import rewriting
from radfact.pages.meta_page import Section, Table, write_page
from radfact.records import Report, normalize_text
from radfact.statistics.proportions import wilson_interval

Kind = Literal[
    "identity", "side swap", "number change", "negation", "prior", "visibility", "order", "addition", "paraphrase"
]
EXPECTATIONS: Mapping[Kind, str] = {
    "identity": "a sentence of the report is entailed",
    "side swap": "a sentence with left and right exchanged is not entailed",
    "number change": "a sentence with another number is not entailed",
    "negation": "a negated sentence is not entailed",
    "prior": "'X was not seen on the prior examination' does not entail 'no X'",
    "visibility": "'X is not well seen on the lateral view' does not entail 'no X'",
    "order": "the verdict is the same for the premises in another order",
    "addition": "the verdict is the same with an additional premise that mentions no finding",
    "paraphrase": "equivalent normal statements entail each other",
}
"""Expected verdict of each kind of invariant."""
MAX_EXAMPLES = 10
"""Maximum number of violations of each kind that a result lists."""
_EQUIVALENT = {normalize_text(statement): group for group in rewriting.EQUIVALENT_STATEMENTS for statement in group}


@dataclass(frozen=True, slots=True)
class InvariantCase:
    """A query for which an invariant determines the verdict.

    Attributes:
        kind: kind of invariant.
        query: the query.
        original: query that must have the same verdict; None if the kind alone determines the verdict.
    """

    kind: Kind
    query: EntailmentQuery
    original: EntailmentQuery | None = None

    def is_violated(self, verdict: Verdict, original: Verdict | None) -> bool:
        """Return whether a verdict violates the invariant.

        Args:
            verdict: verdict on `query`.
            original: verdict on the original query; None without one.
        """
        if original is not None:
            return verdict.status != original.status
        return (verdict.status == "entailment") != (self.kind in ("identity", "paraphrase"))


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated invariant: the query, its verdict and the explanation of the judge."""

    premises: tuple[str, ...]
    hypothesis: str
    verdict: str
    why: str | None


@dataclass(frozen=True, slots=True)
class InvariantResult:
    """Violations of one kind of invariant.

    Attributes:
        kind: kind of invariant.
        expectation: expected verdict.
        checked: number of cases with a valid verdict.
        violations: number of checked cases that violate the invariant.
        failures: number of cases without a valid verdict, which are not checked.
        rate: violations divided by checked cases; None if no case was checked.
        interval: 95% Wilson interval of the rate, assuming independent cases; None if no case was checked.
        examples: the first violations, at most `MAX_EXAMPLES`.
    """

    kind: Kind
    expectation: str
    checked: int
    violations: int
    failures: int
    rate: float | None
    interval: tuple[float, float] | None
    examples: tuple[Violation, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return asdict(self)


def make_cases(reports: Sequence[Report], *, limit: int | None = None, seed: int = 42) -> list[InvariantCase]:
    """Create test cases of all kinds from reports.

    The offline rules split narratives, so that the cases do not depend on the judge.

    Args:
        reports: narratives or lists of sentences. Empty reports are skipped.
        limit: maximum number of cases of each kind; None for all.
        seed: random seed for the selection of cases, hypotheses, orders and templates.

    Raises:
        InputError: no report contains a sentence.
    """
    premises = [sentences for report in reports if (sentences := _sentences(report))]
    if not premises:
        raise InputError("expected reports with sentences, found none", code=ErrorCode.EMPTY_INPUT)
    generator = random.Random(seed)
    by_kind: dict[Kind, list[InvariantCase]] = {kind: [] for kind in EXPECTATIONS}
    for index, report in enumerate(premises):
        for case in _report_cases(report, premises[index - 1], generator):
            by_kind[case.kind].append(case)
    for cases in by_kind.values():
        generator.shuffle(cases)
    return [case for cases in by_kind.values() for case in cases[:limit]]


def check_invariants(judge: Judge, cases: Sequence[InvariantCase]) -> list[InvariantResult]:
    """Run a judge on all cases and count the violations of each kind.

    Args:
        judge: the judge.
        cases: cases from `make_cases`.

    Raises:
        RunError: the judge cannot be reached or returns too few verdicts.
    """
    queries = list(dict.fromkeys(query for case in cases for query in (case.query, case.original) if query))
    verdicts = dict(zip(queries, query_judge(judge, queries), strict=True))
    results = []
    for kind, expectation in EXPECTATIONS.items():
        checked = failures = 0
        violations: list[Violation] = []
        for case in cases:
            if case.kind != kind:
                continue
            verdict = verdicts[case.query]
            original = None if case.original is None else verdicts[case.original]
            if isinstance(verdict, Failure) or isinstance(original, Failure):
                failures += 1
                continue
            checked += 1
            if case.is_violated(verdict, original):
                violations.append(Violation(case.query.premises, case.query.hypothesis, verdict.status, verdict.why))
        count = len(violations)
        rate, interval = (count / checked if checked else None), wilson_interval(count, checked)
        examples = tuple(violations[:MAX_EXAMPLES])
        results.append(InvariantResult(kind, expectation, checked, count, failures, rate, interval, examples))
    return results


def results_table(results: Sequence[InvariantResult]) -> Table:
    """Return a table with one row per kind."""
    return Table(
        ("invariant", "checked", "violations", "rate", "95% interval", "failed"),
        [
            (
                result.kind,
                result.checked,
                result.violations,
                "-" if result.rate is None else f"{result.rate:.2%}",
                "-" if result.interval is None else f"{100 * result.interval[0]:.2f} to {result.interval[1]:.2%}",
                result.failures,
            )
            for result in results
        ],
    )


def write_invariants_page(path: Path, judge: str, results: Sequence[InvariantResult]) -> None:
    """Write an HTML page with the results and examples of all kinds.

    Args:
        path: HTML file.
        judge: name of the judge.
        results: results of `check_invariants`.
    """
    sections = [Section("Violations", [results_table(results)])]
    for result in results:
        rows = [
            (" ".join(example.premises), example.hypothesis, example.verdict, example.why)
            for example in result.examples
        ]
        table = Table(("report", "hypothesis", "verdict", "reason"), rows)
        sections.append(Section(f"{result.kind}: {result.expectation}", [table] if rows else ["No violation."]))
    write_page(path, f"Invariants of entailment: {judge}", (), sections)


def _sentences(report: Report) -> tuple[str, ...]:
    singles = split_narrative(report) if isinstance(report, str) else [sentence.text for sentence in report]
    return tuple(dict.fromkeys(single for single in singles if any(c.isalpha() for c in single)))


def _report_cases(report: tuple[str, ...], other: tuple[str, ...], generator: random.Random) -> Iterator[InvariantCase]:
    """Yield the cases of one report.

    Args:
        report: sentences of the report.
        other: sentences of another report, used as hypotheses.
        generator: random generator for templates, orders and hypotheses.
    """
    for index, sentence in enumerate(report):
        rest = report[:index] + report[index + 1 :]
        yield InvariantCase("identity", EntailmentQuery(report, sentence))
        yield from _contradiction_cases(sentence, rest, report)
        if phrase := rewriting.extract_finding(sentence):
            template = generator.randrange(6)
            hypothesis = f"No {phrase}."
            yield InvariantCase("prior", EntailmentQuery((rewriting.deny_on_prior(phrase, template),), hypothesis))
            yield InvariantCase(
                "visibility", EntailmentQuery((rewriting.limit_visibility(phrase, template),), hypothesis)
            )
        for statement in _EQUIVALENT.get(normalize_text(sentence), ()):
            if normalize_text(statement) != normalize_text(sentence):
                yield InvariantCase("paraphrase", EntailmentQuery((sentence,), statement))
                yield InvariantCase("paraphrase", EntailmentQuery((statement,), sentence))
    hypothesis = generator.choice(generator.choice((report, other)))
    query = EntailmentQuery(report, hypothesis)
    if len(report) > 1:
        shuffled = tuple(generator.sample(report, len(report)))
        yield InvariantCase("order", EntailmentQuery(shuffled, hypothesis), query)
    words = rewriting.content_words(hypothesis)
    neutral = [text for text in rewriting.NEUTRAL_STATEMENTS if words.isdisjoint(rewriting.content_words(text))]
    if neutral:
        added = EntailmentQuery((generator.choice(neutral), *report), hypothesis)
        yield InvariantCase("addition", added, query)


def _contradiction_cases(sentence: str, rest: Sequence[str], report: tuple[str, ...]) -> Iterator[InvariantCase]:
    """Yield rewritten sentences that the report must not entail, unless another sentence of it may entail them."""
    if swapped := rewriting.swap_sides(sentence):
        side = rewriting.find_sides(sentence)
        # Another sentence may state the finding on the other side.
        if not any(rewriting.states_both_sides(text) or rewriting.find_sides(text) - side for text in rest):
            yield InvariantCase("side swap", EntailmentQuery(report, swapped))
    if changed := rewriting.change_number(sentence):
        new = rewriting.find_numbers(changed) - rewriting.find_numbers(sentence)
        if not any(new & rewriting.find_numbers(text) for text in rest):
            yield InvariantCase("number change", EntailmentQuery(report, changed))
    if negated := rewriting.negate(sentence):
        words, denies = rewriting.content_words(sentence), rewriting.is_denial(sentence)
        if rewriting.states_normal(sentence) and not all(rewriting.is_denial(text) for text in rest):
            return  # "The lungs are not clear" follows from any finding of the lungs.
        # Another sentence may state the opposite.
        if not any(rewriting.is_denial(text) != denies and words & rewriting.content_words(text) for text in rest):
            yield InvariantCase("negation", EntailmentQuery(report, negated))
