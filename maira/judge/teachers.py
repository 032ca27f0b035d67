"""What a judge should answer: from another judge, or from the errors that were put in on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from maira.judge.pairing import Paired
from maira.judge.samples import ChatMessage
from radfact.entailment.judge import Judge, Question, ask_judge
from radfact.entailment.llm import JudgePrompt
from radfact.entailment.prompt import Example, few_shot_messages, query, worked
from radfact.errors import Failure, InputError
from radfact.llm import ChatClient
from radfact.llm.texts import dump_yaml
from radfact.meta.injected import Injected
from radfact.metrics.asked import AskedMetric
from radfact.metrics.green import Green, green_score
from radfact.metrics.notation import CATEGORIES, TITLES, Assessment, Errors, read_assessment
from radfact.metrics.vert import Vert, VertTuned
from radfact.report import narrative, normalised_text
from radfact.sentences import Splitter

_CANDIDATE_WRONG, _REFERENCE_MISSED = frozenset("abcde"), frozenset("abcdf")
"""Kinds of errors whose sentence of the candidate the reference does not entail, and the other way round: a comparison
that is left out takes nothing back, one that is added leaves the rest true."""
_LOSS = 0.15
"""What a significant error takes from VERT's score (paper 003, D.6)."""


@dataclass(frozen=True, slots=True)
class Taught:
    """A question as messages and the answer to it.

    Attributes:
        paired: the reports it is about.
        name: of the question, unique among those of a pair.
        messages, answer: as they are trained on.
        labelled: the judgement itself, for an entailment question.
        score: the figure of the pair, for the others.
    """

    paired: Paired
    name: str
    messages: tuple[ChatMessage, ...]
    answer: str
    labelled: Example | None = None
    score: float | None = None


@dataclass(slots=True)
class Lesson:
    """All that a teacher said, and why it said nothing of some questions."""

    taught: list[Taught] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def teach_entailment(
    pairs: Sequence[Paired], prompt: JudgePrompt, splitter: Splitter, judge: Judge | None = None
) -> Lesson:
    """RadFact's questions about pairs, in both directions, with verdict and evidence.

    Args:
        pairs: reports.
        prompt: what the judge will be shown before every question.
        splitter: makes sentences of reports.
        judge: the teacher; None takes the errors that were put in as labels, of pairs that have such.

    Raises:
        RunFailed: the teacher cannot be reached.
    """
    lesson = Lesson()
    prefix = few_shot_messages(prompt.examples, prompt.system, prompt.answer_format, prompt.batch)
    begin = tuple(ChatMessage(role=role, content=content) for role, content in prefix)  # type: ignore[arg-type]
    asked = list(_questions(pairs, splitter, lesson))
    answered: Sequence[Example | str | None]
    if judge is None:
        answered = [_by_errors(one, paired.injected, way) for paired, way, one in asked]
    else:
        verdicts = ask_judge(judge, [question for _, _, question in asked])
        answered = [
            verdict.reason
            if isinstance(verdict, Failure)
            else _example(
                question,
                [question.premises[place] for place in verdict.evidence] if verdict.status == "entailment" else [],
            )
            for (_, _, question), verdict in zip(asked, verdicts, strict=True)
        ]
    for number, ((paired, way, question), example) in enumerate(zip(asked, answered, strict=True)):
        name = f"{paired.pair.sample_id}/{way}{number}"
        if isinstance(example, str):
            lesson.failures[name] = example
        elif example is not None:
            user = ChatMessage(role="user", content=query(question.premises, question.hypothesis))
            lesson.taught.append(Taught(paired, name, (*begin, user), dump_yaml(worked(example)), example))
    return lesson


def _questions(pairs: Sequence[Paired], splitter: Splitter, lesson: Lesson) -> Iterator[tuple[Paired, str, Question]]:
    """Of each pair the candidate's sentences given the reference (A), then the reference's given the candidate (B)."""
    texts = [narrative(report) for one in pairs for report in (one.pair.candidate, one.pair.reference)]
    split = splitter.split(texts)
    for place, paired in enumerate(pairs):
        candidate, reference = split[2 * place], split[2 * place + 1]
        if isinstance(candidate, Failure) or isinstance(reference, Failure):
            failed = candidate if isinstance(candidate, Failure) else reference
            lesson.failures[paired.pair.sample_id] = failed.reason if isinstance(failed, Failure) else ""
            continue
        for way, own, other in (("A", candidate, reference), ("B", reference, candidate)):
            if other:
                yield from ((paired, way, Question(tuple(other), one)) for one in dict.fromkeys(own))


def _example(question: Question, evidence: Sequence[str]) -> Example:
    label = "entailment" if evidence else "not_entailment"
    return Example(question.premises, question.hypothesis, tuple(evidence), label)  # type: ignore[arg-type]


def _by_errors(question: Question, injected: Injected | None, way: str) -> Example | None:
    """The judgement that follows from the errors; None where it does not follow from them."""
    if injected is None:
        return None
    said = normalised_text(question.hypothesis)
    same = [premise for premise in question.premises if normalised_text(premise) == said]
    if same:
        return _example(question, same[:1])
    kinds = _CANDIDATE_WRONG if way == "A" else _REFERENCE_MISSED
    for change in injected.changes:
        own = change.modified if way == "A" else change.original
        if change.category in kinds and own and said in normalised_text(own):
            return _example(question, ())
    return None


def teach_scores(pairs: Sequence[Paired], task: str, client: ChatClient | None) -> Lesson:
    """GREEN's answers, or VERT's scores with one decimal, about pairs.

    Args:
        pairs: reports.
        task: "green" or "vert".
        client: of the model that teaches; None takes the errors that were put in as labels, of pairs that have such.

    Raises:
        RunFailed: the teacher cannot be reached.
    """
    asks: AskedMetric[Any] = (Green if task == "green" else VertTuned)(_NOBODY if client is None else client)
    lesson = Lesson()
    answers: list[Assessment | Failure]
    if client is None:
        pairs = [one for one in pairs if one.injected is not None]
        answers = [assess_errors(one.injected) for one in pairs if one.injected is not None]
    else:
        answers = (Green if task == "green" else Vert)(client).assess([one.pair for one in pairs])
    for paired, answer in zip(pairs, answers, strict=True):
        name = paired.pair.sample_id
        if isinstance(answer, Failure):
            lesson.failures[name] = answer.reason
            continue
        try:
            text, score = _green(answer) if task == "green" else _vert(answer)
        except ValueError as error:
            lesson.failures[name] = f"the teacher's answer cannot be written down: {error}"
            continue
        asked = asks.question(narrative(paired.pair.candidate), narrative(paired.pair.reference))
        messages = tuple(ChatMessage(role=role, content=content) for role, content in asked.messages)  # type: ignore[arg-type]
        lesson.taught.append(Taught(paired, name, messages, text, score=score))
    return lesson


def _green(answer: Assessment) -> tuple[str, float]:
    return write_assessment(answer), green_score(answer.matched, answer.significant.total)


def _vert(answer: Assessment) -> tuple[str, float]:
    score = f"{answer.score:.1f}"
    return score, float(score)


def write_assessment(answer: Assessment) -> str:
    """An answer in GREEN's notation (paper 000, appendix A.1).

    Raises:
        ValueError: read again, it would say something else.
    """
    findings = "; ".join(answer.findings)
    text = "\n\n".join(
        (
            f"{TITLES['explanation']}:\n{answer.explanation}".rstrip(),
            f"{TITLES['significant']}:\n{_error_lines(answer.significant)}",
            f"{TITLES['insignificant']}:\n{_error_lines(answer.insignificant)}",
            f"{TITLES['matched']}:\n{answer.matched}. {findings}".rstrip(),
        )
    )
    again = read_assessment(text)
    for said, meant in ((again.significant, answer.significant), (again.insignificant, answer.insignificant)):
        if said.counts != meant.counts:
            raise ValueError("its errors are not told apart")
    if again.matched != answer.matched:
        raise ValueError("its matched findings are not told apart")
    return text


def _error_lines(errors: Errors) -> str:
    return "\n".join(
        f"({letter}) {name}: {count}. {'; '.join(said)}".rstrip()
        for (letter, name), count, said in zip(CATEGORIES.items(), errors.counts, errors.said, strict=True)
    )


def assess_errors(injected: Injected) -> Assessment:
    """What GREEN and VERT should say of errors that were put in; each counts as significant.

    The findings that match are the sentences that reference and candidate share, and VERT's score is that of paper 003,
    D.6: max(0, 1 - 0.15 x errors).
    """
    from radfact.meta.sentences import Sentences

    said: dict[str, list[str]] = {letter: [] for letter in CATEGORIES}
    for change in injected.changes:
        said[change.category].append(_clean(change.modified or f"{change.original} is left out"))
    kept = {normalised_text(one) for one in Sentences.of(injected.candidate).sentences}
    findings = tuple(_clean(one) for one in Sentences.of(injected.reference).sentences if normalised_text(one) in kept)
    counts = tuple(len(said[letter]) for letter in CATEGORIES)
    kinds = [CATEGORIES[letter].lower() for letter in CATEGORIES if said[letter]]
    explanation = f"The candidate differs from the reference: {'; '.join(kinds)}." if kinds else "No differences."
    none = Errors((0,) * len(CATEGORIES), ((),) * len(CATEGORIES))
    errors = Errors(counts, tuple(tuple(said[letter]) for letter in CATEGORIES))
    return Assessment(errors, none, len(findings), findings, explanation, max(0.0, 1 - _LOSS * sum(counts)))


def _clean(text: str) -> str:
    return " ".join(text.replace(";", ",").split()).rstrip(".")


def held_out_judgements(taught: Sequence[Taught]) -> list[Mapping[str, Any]]:
    """Entailment questions in the published layout, which `radfact judge-check` reads; one entry a report."""
    found: dict[tuple[str, ...], list[Example]] = {}
    for one in taught:
        if one.labelled is not None:
            found.setdefault((one.paired.pair.sample_id, *one.labelled.reference), []).append(one.labelled)
    return [
        {
            "input": {"phrases_A": [one.phrase for one in examples], "phrases_B": list(examples[0].reference)},
            "output": {"phrases_A_evidenced": [worked(one) for one in examples], "phrases_B_evidenced": []},
        }
        for examples in found.values()
    ]


def check_pairs(pairs: Sequence[Paired], by_errors: bool) -> None:
    """See to it that there is something to label.

    Raises:
        InputError: errors are to be the labels, and no report has room for any.
    """
    if by_errors and all(one.injected is None for one in pairs):
        raise InputError("no pair has errors that were put in: the pairing 'permuted' makes such", field="pairings")


class _Nobody:
    """In the place of a client where only questions are written."""


_NOBODY: Any = _Nobody()
