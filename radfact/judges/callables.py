"""Custom judges and splitters: a Python function, or any object named as MODULE:OBJECT."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

from radfact.errors import ErrorCode, Failure, InputError, brief, option_error
from radfact.judges.protocol import EntailmentQuery, Judge, Splitter, Status, Verdict, normalize_verdict
from radfact.llm.protocol import accepts
from radfact.progress import COSTS
from radfact.records import normalize_text

VerdictLike = Verdict | bool | tuple[bool | Status, Sequence[int]]
"""A verdict, True or False, or (True, False or a status, indices of the premises that decide it)."""
JudgeFunction = Callable[..., VerdictLike]
"""function(premises, hypothesis), whose parameters have these names, in any order."""
SplitFunction = Callable[[str], Sequence[str]]
"""function(narrative)."""

# Exceptions of a function with a bug that does not depend on the query.
_PROGRAMMING_ERRORS = (TypeError, AttributeError, NameError, ImportError, SyntaxError, NotImplementedError)
_EXPECTED_VERDICT = "expected a Verdict, True or False, or (True, False or a status, list of indices into the premises)"
_EXPECTED_JUDGE = "expected a judge, a factory of one or a function of (premises, hypothesis)"
_PARAMETERS = dict.fromkeys(("premises", "hypothesis")).keys()


class CallableJudge:
    """A judge made of a function, for custom judges and for tests.

    The function is called by the names of its parameters, `premises` (a list of sentences) and `hypothesis`, whatever
    their order. It may return scalars and arrays of numpy.
    The evidence of a plain True is all premises. An exception fails its query; but a programming error (TypeError,
    NameError and the like, or a return value of another type) before the first verdict stops the run, because it would
    fail every query.
    """

    def __init__(self, function: JudgeFunction, name: str | None = None) -> None:
        """Take the function and the name of the judge in results (default: the name of the function).

        Raises:
            InputError: the parameters of the function have other names.
        """
        self.function = function
        module = getattr(function, "__module__", None) or type(function).__module__
        qualified_name = getattr(function, "__qualname__", None) or type(function).__qualname__
        self.name = name or f"python:{module}:{qualified_name}"
        self._order = _positions(function, self.name)
        self._usage = dict.fromkeys((*COSTS, "planned", "done"), 0)

    def judge(self, queries: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        """Return one verdict or failure per query, in order; equal queries are judged once.

        Raises:
            InputError: the function fails with a programming error before its first verdict.
        """
        self._usage["planned"] += len(queries)
        verdicts: dict[EntailmentQuery, Verdict | Failure] = {}
        for query in queries:
            if query not in verdicts:
                verdicts[query] = self._call(query)
            self._usage["done"] += 1
        return [verdicts[query] for query in queries]

    def _call(self, query: EntailmentQuery) -> Verdict | Failure:
        self._usage["calls"] += 1
        values: dict[str, Any] = {"premises": query.premises, "hypothesis": query.hypothesis}
        try:
            value = self.function(*map(values.get, self._order)) if self._order else self.function(**values)
            return _to_verdict(value, query)
        except Exception as error:
            self._usage["failures"] += 1
            if isinstance(error, _PROGRAMMING_ERRORS) and self._usage["failures"] == self._usage["calls"]:
                message = f"{self.name} fails on its first queries with {_describe_error(error)}"
                raise _invalid_plugin(message) from error
            return Failure(f"{self.name}: {_describe_error(error)}")

    def describe(self) -> dict[str, Any]:
        """Return the name, and the hash of the function's source if it is available."""
        description = {"name": self.name, "note": "Scores of a custom judge compare only with each other."}
        try:
            source = inspect.getsource(self.function)
        except (OSError, TypeError):
            return description
        return {**description, "source_sha256": hashlib.sha256(source.encode()).hexdigest()}

    def usage(self) -> dict[str, int]:
        """Return calls, failures and progress; tokens are unknown and counted as 0."""
        return dict(self._usage)


class CallableSplitter:
    """A splitter made of a function of one narrative."""

    def __init__(self, function: SplitFunction, name: str | None = None) -> None:
        """Take the function and the name of the splitter in results (default: the name of the function)."""
        self.function = function
        self.name: str = name or str(getattr(function, "__qualname__", type(function).__name__))

    def split(self, narratives: Sequence[str]) -> list[list[str] | Failure]:
        """Return the sentences of each narrative, in order; an exception fails its narrative."""
        results: list[list[str] | Failure] = []
        for narrative in narratives:
            try:
                results.append(list(self.function(narrative)))
            except Exception as error:
                results.append(Failure(f"{self.name}: {_describe_error(error)}"))
        return results

    def describe(self) -> dict[str, Any]:
        """Return the name; other dependencies of a function are unknown."""
        return {"name": self.name}

    def usage(self) -> dict[str, int]:
        """Return no counts."""
        return {}


def as_judge(judge: Judge | JudgeFunction) -> Judge:
    """Return a judge as it is, and a function as a `CallableJudge`."""
    if not isinstance(judge, Judge) and not callable(judge):
        expected = "a judge (load_judge makes one of a name) or a function of (premises, hypothesis)"
        raise _invalid_plugin(f"expected {expected}, found {type(judge).__name__}")
    return judge if isinstance(judge, Judge) else CallableJudge(judge)


def as_splitter(splitter: Splitter | SplitFunction) -> Splitter:
    """Return a splitter as it is, and a function as a `CallableSplitter`."""
    if not isinstance(splitter, Splitter) and not callable(splitter):
        expected = "a splitter (load_splitter makes one of a name) or a function of one narrative"
        raise _invalid_plugin(f"expected {expected}, found {type(splitter).__name__}", "splitter")
    return splitter if isinstance(splitter, Splitter) else CallableSplitter(splitter)


def load_custom_judge(path: str, arguments: Mapping[str, Any] | None = None) -> Judge:
    """Load "MODULE:OBJECT": a `Judge`, a factory of one without positional arguments, or a function of a query."""
    name = f"python:{path}"
    module_name, colon, object_name = path.partition(":")
    if not (colon and module_name and object_name):
        raise option_error(f"expected python:MODULE:OBJECT, found '{name}'", "judge", ErrorCode.UNKNOWN_NAME)
    add_working_directory_to_path()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        message = f"{name}: no module named '{error.name}' in this directory or installed"
        raise option_error(message, "judge", ErrorCode.UNKNOWN_NAME) from None
    except Exception as error:
        raise _invalid_plugin(f"cannot import {name}: {_describe_error(error)}") from error
    try:
        judge = attrgetter(object_name)(module)
    except AttributeError as error:
        raise option_error(f"{name}: {error}", "judge", ErrorCode.UNKNOWN_NAME) from None
    is_function = callable(judge) and not isinstance(judge, Judge)
    if inspect.isclass(judge) or (
        # A function may take premises and hypothesis in their places or by their names.
        is_function and not (accepts(judge, *_PARAMETERS) or inspect.signature(judge).parameters.keys() >= _PARAMETERS)
    ):
        judge = _call_factory(judge, name, arguments or {})
    elif arguments:
        raise option_error(f"{name} is no factory and takes no arguments", f"judge_args.{next(iter(arguments))}")
    if isinstance(judge, Judge):
        return judge
    if not callable(judge):
        raise _invalid_plugin(f"{name}: {_EXPECTED_JUDGE}, found {type(judge).__name__}")
    return CallableJudge(judge, name)


def _positions(function: JudgeFunction, name: str) -> list[str]:
    """Return the order in which a function takes premises and hypothesis without their names; empty if it has these."""
    if accepts(function, **dict.fromkeys(_PARAMETERS)):
        return []
    try:
        parameters = () if inspect.isbuiltin(function) else inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of an extension module
        parameters = ()
    names = ["_" if item.kind is item.VAR_POSITIONAL else item.name for item in parameters]
    is_swapped = names[:1] == ["hypothesis"] or names[1:2] == ["premises"]
    order = ["hypothesis", "premises"] if is_swapped else ["premises", "hypothesis"]
    # A parameter such as `_` is unused, and the other one has its name; `*_` are both.
    fits = all(found == expected or found[0] == "_" for found, expected in zip(names, order, strict=False))
    if not (fits and _PARAMETERS.isdisjoint(names[2:]) and accepts(function, *_PARAMETERS)):
        raise _invalid_plugin(f"{name}: expected parameters named premises and hypothesis, found ({', '.join(names)})")
    return order


def add_working_directory_to_path() -> None:
    """Allow imports of modules in the current directory."""
    directory = str(Path.cwd())
    if directory not in sys.path:
        # Last, so that no file in the directory replaces an installed module.
        sys.path.append(directory)


def _call_factory(factory: Callable[..., Any], name: str, arguments: Mapping[str, Any]) -> Any:
    if not accepts(factory, **arguments):
        names = f" with {', '.join(arguments)}" if arguments else ""
        message = f"{name}: {_EXPECTED_JUDGE}{names}, found a callable with other parameters"
        raise option_error(message, "judge_args") if arguments else _invalid_plugin(message)
    try:
        return factory(**arguments)
    except InputError:
        raise
    except Exception as error:
        raise _invalid_plugin(f"cannot set up {name}: {_describe_error(error)}") from error


def _invalid_plugin(message: str, field: str = "judge") -> InputError:
    return option_error(message, field, ErrorCode.INVALID_PLUGIN)


def _to_verdict(value: Any, query: EntailmentQuery) -> Verdict:
    """Convert the return value of a judge function; TypeError if it is not `VerdictLike`."""
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError(f"{_EXPECTED_VERDICT}, found a coroutine; give a function that is not async")
    parts = _without_numpy(value)
    if isinstance(parts, bool):
        parts = (parts, range(len(query.premises) if parts else 0))
    if isinstance(parts, tuple) and len(parts) == 2:
        status, evidence = map(_without_numpy, parts)
        if isinstance(status, bool):
            status = "entailment" if status else "not_entailment"
        parts = Verdict(status, evidence)
    verdict = normalize_verdict(parts)
    if verdict is None:
        raise TypeError(f"{_EXPECTED_VERDICT}, found {brief(value)}")
    return verdict


def _without_numpy(value: Any) -> Any:
    """Return a scalar or an array of numpy or torch as Python's own."""
    return value.tolist() if hasattr(value, "tolist") else value


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()):.300}"


class MockJudge(CallableJudge):
    """A judge with fixed verdicts, also available as `load_judge("mock")`.

    Its name in results is "mock", and its description says that its scores mean nothing.
    """

    def __init__(self, verdicts: JudgeFunction | Mapping[str, VerdictLike] | bool | None = None) -> None:
        """Take the verdicts.

        Args:
            verdicts: a function as in `CallableJudge`; a mapping from hypotheses to verdicts, where a missing
                hypothesis is not entailed; one verdict for all queries; or None, which entails a hypothesis that equals
                a premise up to case, punctuation and spaces.
        """

        def judge(premises: Sequence[str], hypothesis: str) -> VerdictLike:
            if verdicts is None:
                text = normalize_text(hypothesis)
                indices = [index for index, premise in enumerate(premises) if normalize_text(premise) == text]
                return bool(indices), indices
            return fixed.get(hypothesis, False) if isinstance(fixed, Mapping) else fixed

        fixed = cast("Mapping[str, VerdictLike] | bool", verdicts)
        super().__init__(verdicts if callable(verdicts) else judge, "mock")

    def describe(self) -> dict[str, Any]:
        """Return the name and a warning."""
        return {"name": self.name, "note": "Mock judge for tests: the scores mean nothing."}
