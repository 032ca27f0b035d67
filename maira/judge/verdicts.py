"""Training examples of entailment judges, labeled by injected errors or by other judges."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from maira.judge.pairing import ReportPair
from maira.judge.samples import Labeled, TrainingExample, label_in_turn
from radfact.errors import Failure
from radfact.judges import Splitter
from radfact.judges.llm_judge import JudgePrompt
from radfact.judges.prompt import Example, few_shot_messages, query_message, worked_response
from radfact.judges.protocol import EntailmentQuery, Judge, query_judge
from radfact.llm.response_text import dump_yaml
from radfact.records import narrative, normalize_text

_CANDIDATE_WRONG, _REFERENCE_MISSED = frozenset("abcde"), frozenset("abcdf")
"""Categories of errors whose sentence of the candidate is not entailed by the reference, and the other way round: an
omitted comparison contradicts nothing, an added one leaves the rest true."""
_PARAPHRASES_PER_COPY = 2
"""Entailed hypotheses in other words, in a balanced draw, for each that is a copy of a premise."""


class _PairQuery(NamedTuple):
    """A query about a pair; the direction is A for sentences of the candidate, B for those of the reference."""

    paired: ReportPair
    direction: str
    query: EntailmentQuery


def make_entailment_examples(
    pairs: Sequence[ReportPair], prompt: JudgePrompt, splitter: Splitter, teachers: Mapping[str, Judge | None]
) -> Labeled:
    """Make entailment queries about pairs, in both directions; None instead of a judge labels by injected errors."""
    prefix = few_shot_messages(prompt.examples, prompt.system, prompt.answer_format, prompt.batch)

    def make(name: str, pair_query: _PairQuery, teacher: str, label: Example) -> TrainingExample:
        paired, _, query = pair_query
        messages = (*prefix, ("user", query_message(query.premises, query.hypothesis)))
        return TrainingExample(paired, name, messages, dump_yaml(worked_response(label)), teacher, label)

    failures: dict[str, str] = {}
    queries = enumerate(_make_queries(pairs, splitter, failures))
    items = {f"{query.paired.pair.sample_id}/{query.direction}{number}": query for number, query in queries}
    examples, unlabeled = label_in_turn(items, teachers, _label, make)
    return examples, failures | unlabeled


def _make_queries(pairs: Sequence[ReportPair], splitter: Splitter, failures: dict[str, str]) -> Iterator[_PairQuery]:
    """Yield for each pair the candidate's sentences given the reference (A), then the other way round (B)."""
    texts = [narrative(report) for paired in pairs for report in (paired.pair.candidate, paired.pair.reference)]
    split = splitter.split(texts)
    for paired, candidate, reference in zip(pairs, split[::2], split[1::2], strict=True):
        if isinstance(candidate, Failure):
            failures[paired.pair.sample_id] = candidate.reason
        elif isinstance(reference, Failure):
            failures[paired.pair.sample_id] = reference.reason
        else:
            for direction, hypotheses, premises in (("A", candidate, reference), ("B", reference, candidate)):
                for hypothesis in dict.fromkeys(hypotheses) if premises else ():
                    yield _PairQuery(paired, direction, EntailmentQuery(tuple(premises), hypothesis))


def _label(judge: Judge | None, queries: Sequence[_PairQuery]) -> list[Example | str | None]:
    """Return examples in order, reasons for failures, or None for queries that the teacher cannot answer."""
    if judge is None:
        return [_label_by_errors(query) for query in queries]
    labels: list[Example | str | None] = []
    for (_, _, query), verdict in zip(queries, query_judge(judge, [query for *_, query in queries]), strict=True):
        if isinstance(verdict, Failure):
            labels.append(verdict.reason)
        else:
            evidence = verdict.evidence if verdict.status == "entailment" else ()
            labels.append(_make_example(query, [query.premises[index] for index in evidence]))
    return labels


def _make_example(query: EntailmentQuery, evidence: Sequence[str]) -> Example:
    return Example(query.premises, query.hypothesis, tuple(evidence), "entailment" if evidence else "not_entailment")


def _label_by_errors(pair_query: _PairQuery) -> Example | None:
    """Return the example that follows from the injected errors; None if they do not determine the verdict."""
    paired, direction, query = pair_query
    if paired.injected is None:
        return None
    if copies := _copies(query):
        return _make_example(query, copies[:1])
    hypothesis = normalize_text(query.hypothesis)
    categories = _CANDIDATE_WRONG if direction == "A" else _REFERENCE_MISSED
    for change in paired.injected.changes:
        text = change.modified if direction == "A" else change.original
        if change.category in categories and text and hypothesis in normalize_text(text):
            return _make_example(query, ())
    return None


def _copies(query: EntailmentQuery) -> list[str]:
    """Return the premises that are the hypothesis word for word."""
    hypothesis = normalize_text(query.hypothesis)
    return [premise for premise in query.premises if normalize_text(premise) == hypothesis]


def balance(examples: Sequence[TrainingExample], seed: int, *, few_copies: bool = True) -> list[TrainingExample]:
    """Draw as many entailed examples as others; at most a third of the entailed ones are copies, if `few_copies`."""
    groups: dict[str, list[TrainingExample]] = {"copies": [], "paraphrases": [], "not entailed": []}
    for example in examples:
        if isinstance(label := example.label, Example):
            entailed = "copies" if _copies(label.query) else "paraphrases"
            groups[entailed if label.status == "entailment" else "not entailed"].append(example)
    copies, paraphrases, not_entailed = groups.values()
    limit = min(len(copies), len(paraphrases) // _PARAPHRASES_PER_COPY) if few_copies else len(copies)
    half = min(len(not_entailed), len(paraphrases) + limit)
    copy_count = min(limit, max(half // (1 + _PARAPHRASES_PER_COPY), half - len(paraphrases)))
    rng = random.Random(f"{seed}/balance")
    draws = ((copies, copy_count), (paraphrases, half - copy_count), (not_entailed, half))
    drawn = {id(example) for group, count in draws for example in rng.sample(group, count)}
    return [example for example in examples if id(example) in drawn]


def held_out_judgments(examples: Sequence[TrainingExample]) -> list[Mapping[str, Any]]:
    """Return entailment examples in the published layout, which `radfact judge-check` reads, one entry per report."""
    reports: dict[tuple[str, ...], list[Example]] = {}
    for example in examples:
        if isinstance(label := example.label, Example):
            reports.setdefault((example.paired.pair.sample_id, *label.reference), []).append(label)
    return [
        {
            "input": {"phrases_A": [entry.phrase for entry in entries], "phrases_B": list(entries[0].reference)},
            "output": {"phrases_A_evidenced": [worked_response(entry) for entry in entries], "phrases_B_evidenced": []},
        }
        for entries in reports.values()
    ]
