"""The judge protocol: questions in, verdicts out, whoever answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

from radfact.errors import Failure, RunError, brief

if TYPE_CHECKING:
    from radfact.judges.splitter import Splitter

Status = Literal["entailment", "not_entailment"]


@dataclass(frozen=True, slots=True)
class EntailmentQuery:
    """Is `hypothesis` true, given that all `premises` (the sentences of the other report) are?"""

    premises: tuple[str, ...]
    hypothesis: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer. `evidence` holds indices into the premises; an entailment has at least one."""

    status: Status
    evidence: tuple[int, ...] = ()
    why: str | None = None


@runtime_checkable
class Judge(Protocol):
    """Anything that answers entailment questions (paper 004, RadFact)."""

    name: str

    def judge(self, questions: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        """One answer a question, in the order of the questions. Never raises for a single bad answer."""
        ...

    def describe(self) -> dict[str, Any]:
        """Everything that changes an answer (name, version, prompt hash, options), for `run.json`; JSON values only."""
        ...

    def usage(self) -> dict[str, int]:
        """What the answers cost so far: `calls`, `tokens_in`, `tokens_out`, `repairs`, `failures`, `cached`."""
        ...


@runtime_checkable
class SplittingJudge(Judge, Protocol):
    """A judge that can also say what its sentences are: by the same model, or by the same rules."""

    def make_splitter(self) -> Splitter:
        """A splitter that answers as the judge does, with an usage of its own.

        Raises:
            InputError: what it needs is not there.
        """
        ...


def query_judge(judge: Judge, questions: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
    """The judge's answers, in order; one that breaks the protocol becomes a failure, not a score in silence.

    Raises:
        RunError: there are not as many answers as questions.
    """
    answers = judge.judge(questions)
    if len(answers) != len(questions):
        raise RunError(f"judge '{judge.name}' gave {len(answers)} answers to {len(questions)} questions")
    return [_checked(answer, question) for question, answer in zip(questions, answers, strict=True)]


def plain_verdict(answer: Any) -> Verdict | None:
    """A verdict with its evidence as a tuple of int; None where the answer is no verdict, its status is none of the two
    or its evidence is anything but a sequence of whole numbers, which a bool is not."""
    if not isinstance(answer, Verdict) or answer.status not in get_args(Status):
        return None
    evidence: Any = answer.evidence
    if not isinstance(evidence, Sequence) or isinstance(evidence, str | bytes):
        return None
    if any(isinstance(index, bool) or not isinstance(index, Integral) for index in evidence):
        return None
    return replace(answer, evidence=tuple(map(int, evidence)))


def _checked(answer: Any, question: EntailmentQuery) -> Verdict | Failure:
    if isinstance(answer, Failure):
        return answer
    verdict = plain_verdict(answer)
    if verdict is None:
        return Failure(
            f"expected a Verdict of {' or '.join(get_args(Status))} with indices into the premises as its evidence, "
            f"found {brief(answer)}"
        )
    if verdict.status == "entailment" and not verdict.evidence:
        return Failure("entailment without evidence")
    if any(not 0 <= index < len(question.premises) for index in verdict.evidence):
        return Failure(f"evidence {list(verdict.evidence)} outside of the {len(question.premises)} premises")
    return verdict
