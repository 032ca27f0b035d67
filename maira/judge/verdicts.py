"""Training examples of entailment judges, labeled by injected errors or by other judges."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from maira.judge.pairing import ReportPair
from maira.judge.training_examples import ExampleSet, TrainingExample, chat_messages
from radfact.errors import Failure
from radfact.judges import Splitter
from radfact.judges.llm_judge import JudgePrompt
from radfact.judges.prompt import Example, Label, few_shot_messages, query_message, worked_response
from radfact.judges.protocol import EntailmentQuery, Judge, Verdict, query_judge
from radfact.llm.response_text import dump_yaml
from radfact.meta.injection.records import InjectedReport
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
) -> ExampleSet:
    """Make entailment queries about pairs, in both directions, with verdict and evidence.

    Args:
        pairs: reports.
        prompt: system message and worked examples before every query.
        splitter: splits reports into sentences.
        teachers: judges by name, in order; each labels the queries without a verdict so far. None instead of a
            judge labels by the injected errors, where they determine the verdict.

    Raises:
        RunError: a teacher cannot be reached.
    """
    example_set = ExampleSet()
    prefix = few_shot_messages(prompt.examples, prompt.system, prompt.answer_format, prompt.batch)
    queries = list(_make_queries(pairs, splitter, example_set))
    # An example, or the reason why there is none; None if the teachers do not know.
    labels: list[tuple[str, Example | str | None]] = [("", None)] * len(queries)
    for name, judge in teachers.items():
        indices = [index for index, (_, label) in enumerate(labels) if not isinstance(label, Example)]
        new_labels = _label_queries(judge, [queries[index] for index in indices])
        for index, label in zip(indices, new_labels, strict=True):
            labels[index] = (name, label or labels[index][1])
    for number, ((paired, direction, query), (teacher, label)) in enumerate(zip(queries, labels, strict=True)):
        name = f"{paired.pair.sample_id}/{direction}{number}"
        if isinstance(label, str):
            example_set.failures[name] = label
        elif label is not None:
            messages = chat_messages((*prefix, ("user", query_message(query.premises, query.hypothesis))))
            answer = dump_yaml(worked_response(label))
            example_set.examples.append(TrainingExample(paired, name, messages, answer, teacher, label))
    return example_set


def _make_queries(pairs: Sequence[ReportPair], splitter: Splitter, example_set: ExampleSet) -> Iterator[_PairQuery]:
    """Yield for each pair the candidate's sentences given the reference (A), then the other way round (B)."""
    texts = [narrative(report) for paired in pairs for report in (paired.pair.candidate, paired.pair.reference)]
    split = splitter.split(texts)
    for index, paired in enumerate(pairs):
        candidate, reference = split[2 * index], split[2 * index + 1]
        if isinstance(candidate, Failure):
            example_set.failures[paired.pair.sample_id] = candidate.reason
        elif isinstance(reference, Failure):
            example_set.failures[paired.pair.sample_id] = reference.reason
        else:
            for direction, hypotheses, premises in (("A", candidate, reference), ("B", reference, candidate)):
                if premises:
                    for hypothesis in dict.fromkeys(hypotheses):
                        yield _PairQuery(paired, direction, EntailmentQuery(tuple(premises), hypothesis))


def _label_queries(judge: Judge | None, queries: Sequence[_PairQuery]) -> list[Example | str | None]:
    """Return examples in order, reasons for failures, or None for queries that the teacher cannot answer."""
    if judge is None:
        return [_label_by_errors(query, paired.injected, direction) for paired, direction, query in queries]
    verdicts = query_judge(judge, [query for _, _, query in queries])
    return [_label_by_verdict(query, verdict) for (_, _, query), verdict in zip(queries, verdicts, strict=True)]


def _label_by_verdict(query: EntailmentQuery, verdict: Verdict | Failure) -> Example | str:
    if isinstance(verdict, Failure):
        return verdict.reason
    entailed = verdict.status == "entailment"
    return _make_example(query, [query.premises[index] for index in verdict.evidence] if entailed else [])


def _make_example(query: EntailmentQuery, evidence: Sequence[str]) -> Example:
    label: Label = "entailment" if evidence else "not_entailment"
    return Example(query.premises, query.hypothesis, tuple(evidence), label)


def _label_by_errors(query: EntailmentQuery, injected: InjectedReport | None, direction: str) -> Example | None:
    """Return the example that follows from the injected errors; None if they do not determine the verdict."""
    if injected is None:
        return None
    if copies := _copies(query):
        return _make_example(query, copies[:1])
    hypothesis = normalize_text(query.hypothesis)
    categories = _CANDIDATE_WRONG if direction == "A" else _REFERENCE_MISSED
    for change in injected.changes:
        text = change.modified if direction == "A" else change.original
        if change.category in categories and text and hypothesis in normalize_text(text):
            return _make_example(query, ())
    return None


def _copies(query: EntailmentQuery) -> list[str]:
    """Return the premises that are the hypothesis word for word."""
    hypothesis = normalize_text(query.hypothesis)
    return [premise for premise in query.premises if normalize_text(premise) == hypothesis]


def balance(examples: Sequence[TrainingExample], seed: int, *, few_copies: bool = True) -> list[TrainingExample]:
    """Draw as many entailed examples as others; at most a third of the entailed ones are copies of a premise.

    Args:
        examples: of entailment.
        seed: of the draw.
        few_copies: never exceed a third; False takes more copies if there are too few paraphrases.
    """
    copies: list[TrainingExample] = []
    paraphrases: list[TrainingExample] = []
    not_entailed: list[TrainingExample] = []
    for example in examples:
        if (labeled := example.labeled) is None:
            continue
        if labeled.status != "entailment":
            not_entailed.append(example)
        elif _copies(EntailmentQuery(labeled.reference, labeled.phrase)):
            copies.append(example)
        else:
            paraphrases.append(example)
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
        if (labeled := example.labeled) is not None:
            reports.setdefault((example.paired.pair.sample_id, *labeled.reference), []).append(labeled)
    return [
        {
            "input": {"phrases_A": [entry.phrase for entry in entries], "phrases_B": list(entries[0].reference)},
            "output": {
                "phrases_A_evidenced": [worked_response(entry) for entry in entries],
                "phrases_B_evidenced": [],
            },
        }
        for entries in reports.values()
    ]
