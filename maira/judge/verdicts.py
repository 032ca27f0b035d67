"""RadFact's questions with their answers: from errors that were put in on purpose, or from another judge."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from maira.judge.pairing import ReportPair
from maira.judge.training_examples import ExampleSet, TrainingExample, chat_messages
from radfact.errors import Failure
from radfact.judges import Splitter
from radfact.judges.llm_judge import JudgePrompt
from radfact.judges.prompt import Example, Label, few_shot_messages, query_message, worked_response
from radfact.judges.protocol import EntailmentQuery, Judge, Verdict, query_judge
from radfact.llm.response_text import dump_yaml
from radfact.meta.injection.records import InjectedReport
from radfact.records import narrative, normalised_text

_CANDIDATE_WRONG, _REFERENCE_MISSED = frozenset("abcde"), frozenset("abcdf")
"""Kinds of errors whose sentence of the candidate the reference does not entail, and the other way round: a comparison
that is left out takes nothing back, one that is added leaves the rest true."""
_OTHERS = 2
"""Entailed questions in other words, in a balanced draw, for each whose hypothesis is a premise word for word."""

_Asked = tuple[ReportPair, str, EntailmentQuery]
"""A pair, the way it is asked about, and the question."""


def make_entailment_examples(
    pairs: Sequence[ReportPair], prompt: JudgePrompt, splitter: Splitter, teachers: Mapping[str, Judge | None]
) -> ExampleSet:
    """RadFact's questions about pairs, in both directions, with verdict and evidence.

    Args:
        pairs: reports.
        prompt: what the judge will be shown before every question.
        splitter: makes sentences of reports.
        teachers: judges by name, asked in their order, each what none before has answered; None in the place of a judge
            takes the errors that were put in as labels, where the answer follows from them.

    Raises:
        RunError: a teacher cannot be reached.
    """
    lesson = ExampleSet()
    begin = few_shot_messages(prompt.examples, prompt.system, prompt.answer_format, prompt.batch)
    asked = list(_questions(pairs, splitter, lesson))
    answers: list[tuple[str, Example | str | None]] = [("", None)] * len(asked)
    for name, judge in teachers.items():
        places = [place for place, (_, answer) in enumerate(answers) if not isinstance(answer, Example)]
        given = _answers(judge, [asked[place] for place in places])
        for place, answer in zip(places, given, strict=True):
            answers[place] = (name, answer or answers[place][1])
    for number, ((paired, way, question), (teacher, answer)) in enumerate(zip(asked, answers, strict=True)):
        name = f"{paired.pair.sample_id}/{way}{number}"
        if isinstance(answer, str):
            lesson.failures[name] = answer
        elif answer is not None:
            messages = chat_messages((*begin, ("user", query_message(question.premises, question.hypothesis))))
            lesson.taught.append(
                TrainingExample(paired, name, messages, dump_yaml(worked_response(answer)), teacher, answer)
            )
    return lesson


def _questions(pairs: Sequence[ReportPair], splitter: Splitter, lesson: ExampleSet) -> Iterator[_Asked]:
    """Of each pair the candidate's sentences given the reference (A), then the reference's given the candidate (B)."""
    texts = [narrative(report) for one in pairs for report in (one.pair.candidate, one.pair.reference)]
    split = splitter.split(texts)
    for place, paired in enumerate(pairs):
        candidate, reference = split[2 * place], split[2 * place + 1]
        if isinstance(candidate, Failure):
            lesson.failures[paired.pair.sample_id] = candidate.reason
        elif isinstance(reference, Failure):
            lesson.failures[paired.pair.sample_id] = reference.reason
        else:
            for way, own, other in (("A", candidate, reference), ("B", reference, candidate)):
                if other:
                    yield from ((paired, way, EntailmentQuery(tuple(other), one)) for one in dict.fromkeys(own))


def _answers(judge: Judge | None, asked: Sequence[_Asked]) -> list[Example | str | None]:
    """Answers in order: a text says why there is none, None that the teacher has nothing to say of it."""
    if judge is None:
        return [_by_errors(question, paired.injected, way) for paired, way, question in asked]
    verdicts = query_judge(judge, [question for _, _, question in asked])
    return [_said(question, verdict) for (_, _, question), verdict in zip(asked, verdicts, strict=True)]


def _said(question: EntailmentQuery, verdict: Verdict | Failure) -> Example | str:
    if isinstance(verdict, Failure):
        return verdict.reason
    entailed = verdict.status == "entailment"
    return _example(question, [question.premises[place] for place in verdict.evidence] if entailed else [])


def _example(question: EntailmentQuery, evidence: Sequence[str]) -> Example:
    label: Label = "entailment" if evidence else "not_entailment"
    return Example(question.premises, question.hypothesis, tuple(evidence), label)


def _by_errors(question: EntailmentQuery, injected: InjectedReport | None, way: str) -> Example | None:
    """The judgement that follows from the errors; None where it does not follow from them."""
    if injected is None:
        return None
    same = _word_for_word(question)
    if same:
        return _example(question, same[:1])
    said = normalised_text(question.hypothesis)
    kinds = _CANDIDATE_WRONG if way == "A" else _REFERENCE_MISSED
    for change in injected.changes:
        own = change.modified if way == "A" else change.original
        if change.category in kinds and own and said in normalised_text(own):
            return _example(question, ())
    return None


def _word_for_word(question: EntailmentQuery) -> list[str]:
    said = normalised_text(question.hypothesis)
    return [premise for premise in question.premises if normalised_text(premise) == said]


def balance(taught: Sequence[TrainingExample], seed: int, *, few_copies: bool = True) -> list[TrainingExample]:
    """As many questions that are entailed as that are not; of the former at most a third are a premise word for word.

    Args:
        taught: entailment questions.
        seed: of the draw.
        few_copies: keep to the third at any price; False takes more of them where there are too few others.
    """
    same: list[TrainingExample] = []
    others: list[TrainingExample] = []
    wrong: list[TrainingExample] = []
    for one in taught:
        if one.labeled is None:
            continue
        if one.labeled.status != "entailment":
            wrong.append(one)
        else:
            (same if _word_for_word(EntailmentQuery(one.labeled.reference, one.labeled.phrase)) else others).append(one)
    most = min(len(same), len(others) // _OTHERS) if few_copies else len(same)
    half = min(len(wrong), len(others) + most)
    verbatim = min(most, max(half // (1 + _OTHERS), half - len(others)))
    drawn = random.Random(f"{seed}/balance")
    draws = ((same, verbatim), (others, half - verbatim), (wrong, half))
    kept = {id(one) for kind, count in draws for one in drawn.sample(kind, count)}
    return [one for one in taught if id(one) in kept]


def held_out_judgments(taught: Sequence[TrainingExample]) -> list[Mapping[str, Any]]:
    """Entailment questions in the published layout, which `radfact judge-check` reads; one entry a report."""
    found: dict[tuple[str, ...], list[Example]] = {}
    for one in taught:
        if one.labeled is not None:
            found.setdefault((one.paired.pair.sample_id, *one.labeled.reference), []).append(one.labeled)
    return [
        {
            "input": {"phrases_A": [one.phrase for one in examples], "phrases_B": list(examples[0].reference)},
            "output": {"phrases_A_evidenced": [worked_response(one) for one in examples], "phrases_B_evidenced": []},
        }
        for examples in found.values()
    ]
