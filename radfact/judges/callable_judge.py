"""A judge of the user's own: a plain function, or any object named as MODULE:OBJECT."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from radfact.errors import Failure, InputError, brief
from radfact.judges.protocol import EntailmentQuery, Judge, Status, Verdict, plain_verdict

Opinion = Verdict | bool | tuple[bool | Status, Sequence[int]]
"""A verdict, yes or no, or (yes or no or a status, indices of the premises that decide it)."""
JudgeFunction = Callable[[Sequence[str], str], Opinion]
"""function(premises, hypothesis)."""

# What a function raises that is written wrongly, whatever the question is.
_MISTAKES = (TypeError, AttributeError, NameError, ImportError, SyntaxError, NotImplementedError)
_EXPECTED = "expected a Verdict, True or False, or (True, False or a status, list of indices into the premises)"


class CallableJudge:
    """A judge made of a function, for users' own judges and for tests.

    A True without evidence takes all premises as its evidence. An exception leaves the question without an answer; but
    a mistake of programming (TypeError, NameError and the like, or an answer of another kind) before any question has
    been answered stops the run, because every question would meet it.
    """

    def __init__(self, function: JudgeFunction, name: str | None = None) -> None:
        """Take the function, and the name under which the judge stands in results (default: the function's own)."""
        self.function = function
        self.name = name or f"python:{_module(function)}:{_qualified_name(function)}"
        self._calls = self._failures = 0

    def judge(self, questions: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        """One answer a question, in order; equal questions are put once.

        Raises:
            InputError: the function fails by a mistake of programming before it has answered any question.
        """
        answers: dict[EntailmentQuery, Verdict | Failure] = {}
        for question in questions:
            if question not in answers:
                answers[question] = self._answer(question)
        return [answers[question] for question in questions]

    def _answer(self, question: EntailmentQuery) -> Verdict | Failure:
        self._calls += 1
        try:
            return _as_verdict(self.function(question.premises, question.hypothesis), question)
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            self._failures += 1
            if isinstance(error, _MISTAKES) and self._failures == self._calls:
                raise InputError(
                    f"{self.name} fails on its first questions with {reason:.300}", field="judge"
                ) from error
            return Failure(f"{self.name}: {reason:.300}")

    def describe(self) -> dict[str, Any]:
        """Name, and the hash of the function's source where there is one to read."""
        described = {"name": self.name, "note": "Figures of a judge of one's own compare only with each other."}
        try:
            source = inspect.getsource(self.function)
        except (OSError, TypeError):
            return described
        return {**described, "source_sha256": hashlib.sha256(source.encode()).hexdigest()}

    def usage(self) -> dict[str, int]:
        """Calls and failures; the function spends no tokens that we know of."""
        counts = {"calls": self._calls, "tokens_in": 0, "tokens_out": 0}
        return {**counts, "repairs": 0, "failures": self._failures, "cached": 0}


def as_judge(given: Judge | JudgeFunction) -> Judge:
    """What a user gives as the judge, as one.

    Raises:
        InputError: it is neither a judge nor a function.
    """
    if isinstance(given, Judge):
        return given
    if not callable(given):
        raise InputError(
            "expected a judge (load_judge makes one of a name) or a function of (premises, hypothesis), "
            f"found {type(given).__name__}",
            field="judge",
        )
    return CallableJudge(given)


def load_python_judge(path: str, arguments: Mapping[str, Any] | None = None) -> Judge:
    """The judge that "MODULE:OBJECT" names; the module may lie in the current directory.

    Args:
        path: the object is a `Judge`, a factory that returns one (a class, or a function without positional
            arguments), or a function(premises, hypothesis).
        arguments: keyword arguments of the factory.

    Raises:
        InputError: there is no such module or object, it is none of these, or the arguments do not fit.
    """
    name = f"python:{path}"
    made = judge = _find(path, name)
    if isinstance(judge, Judge) and not inspect.isclass(judge):
        _refuse_arguments(name, "a judge that is already made", arguments)
        return judge
    if not callable(judge):
        raise _of_no_use(name, judge)
    if inspect.isclass(judge) or not _takes(judge, ("a premise",), "a hypothesis"):
        made = _make(judge, name, arguments or {})
        if isinstance(made, Judge):
            return made
        if not callable(made):
            raise _of_no_use(name, made)
    else:
        _refuse_arguments(name, "a function of (premises, hypothesis)", arguments)
    return CallableJudge(made, name)


def search_here() -> None:
    """Let modules in the current directory be imported."""
    here = str(Path.cwd())
    if here not in sys.path:
        # Last, so that no file that happens to lie here takes the place of an installed module.
        sys.path.append(here)


def _find(path: str, name: str) -> Any:
    module_name, colon, object_name = path.partition(":")
    if not (colon and module_name and object_name):
        raise InputError(f"expected python:MODULE:OBJECT, found '{name}'", field="judge")
    search_here()
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(f"{name}: no module named '{error.name}' here or installed", field="judge") from None
    except Exception as error:
        raise InputError(f"{name} cannot be imported: {_line(error)}", field="judge") from error
    for part in object_name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise InputError(f"{name}: there is no '{part}' in '{module_name}'", field="judge") from None
    return found


def _make(factory: Callable[..., Any], name: str, arguments: Mapping[str, Any]) -> Any:
    if not _takes(factory, **arguments):
        given = f" with {', '.join(arguments)}" if arguments else ""
        raise InputError(
            f"{name} can be called neither as a function of (premises, hypothesis) nor as a factory{given}",
            field="judge_args" if arguments else "judge",
        )
    try:
        return factory(**arguments)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{name} cannot be set up: {_line(error)}", field="judge") from error


def _takes(function: Callable[..., Any], *positional: Any, **named: Any) -> bool:
    try:
        inspect.signature(function).bind(*positional, **named)
    except (TypeError, ValueError):
        return False
    return True


def _refuse_arguments(name: str, kind: str, arguments: Mapping[str, Any] | None) -> None:
    if arguments:
        raise InputError(f"{name} is {kind} and takes no arguments", field=f"judge_args.{next(iter(arguments))}")


def _of_no_use(name: str, found: Any) -> InputError:
    return InputError(
        f"{name}: expected a judge, a factory of one or a function of (premises, hypothesis), "
        f"found {type(found).__name__}",
        field="judge",
    )


def _as_verdict(opinion: Any, question: EntailmentQuery) -> Verdict:
    verdict = plain_verdict(_opined(opinion, question))
    if verdict is None:
        raise TypeError(f"{_EXPECTED}, found {brief(opinion)}")
    return verdict


def _opined(opinion: Any, question: EntailmentQuery) -> Any:
    """An opinion in the form of a verdict, unless it has none of the forms that there are."""
    if isinstance(opinion, bool):
        opinion = (opinion, range(len(question.premises) if opinion else 0))
    if inspect.iscoroutine(opinion):
        opinion.close()
        raise TypeError(f"{_EXPECTED}, found a coroutine; give a function that is not async")
    if not (isinstance(opinion, tuple) and len(opinion) == 2):
        return opinion
    said, evidence = opinion
    status: Any = ("entailment" if said else "not_entailment") if isinstance(said, bool) else said
    return Verdict(status, evidence)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()):.300}"


def _module(function: Any) -> str:
    return str(getattr(function, "__module__", None) or type(function).__module__)


def _qualified_name(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
