"""Results of the checks, in sections, and the availability of every command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["ok", "missing", "wrong", "note"]
"""`missing`: not installed or not found; `wrong`: present but unusable; `note`: neither good nor bad."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check.

    Attributes:
        name: what was checked.
        status: outcome.
        message: finding, in one line.
        fix: what to do about it, in one line.
        required: whether no command works without it.
        details: the finding as numbers and names, for programs.
    """

    name: str
    status: Status
    message: str
    fix: str | None = None
    required: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Section:
    """Results under a title."""

    title: str
    results: tuple[CheckResult, ...]


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All results.

    Attributes:
        program: name, version and platform of the program.
        sections: results by topic.
        commands: a result for each command; `ok` means that it can run.
    """

    program: str
    sections: tuple[Section, ...]
    commands: tuple[CheckResult, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether everything that all commands require is in order."""
        return all(result.status == "ok" for section in self.sections for result in section.results if result.required)

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            "program": self.program,
            "passed": self.passed,
            "sections": {section.title: [asdict(result) for result in section.results] for section in self.sections},
            "commands": [asdict(result) for result in self.commands],
        }

    def lines(self) -> Iterator[tuple[Status | None, str]]:
        """Yield the lines of the report, those of a result with its status."""
        yield None, self.program
        for section in self.sections:
            yield from _section_lines(section, ok_label="ok")
        if self.commands:
            yield from _section_lines(Section("Commands", self.commands), ok_label="ready")


def _section_lines(section: Section, ok_label: str) -> Iterator[tuple[Status | None, str]]:
    labels: dict[Status, str] = {"ok": ok_label, "missing": "missing", "wrong": "wrong", "note": ""}
    yield None, ""
    yield None, section.title
    width = max((len(result.name) for result in section.results), default=0)
    for result in section.results:
        yield result.status, f"  {labels[result.status]:8}{result.name:{width}}  {result.message}".rstrip()
        if result.fix is not None:
            yield "note", f"  {'':8}{'':{width}}  -> {result.fix}"


def run_checks(title: str, *checks: Callable[[], Sequence[CheckResult]]) -> Section:
    """Run checks and collect their results; an exception in a check becomes a result.

    Args:
        title: title of the section.
        checks: functions that return results.
    """
    results: list[CheckResult] = []
    for check in checks:
        try:
            results.extend(check())
        except Exception as error:  # a broken installation may raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            name = getattr(check, "__name__", "check").strip("_").removeprefix("check_").replace("_", " ")
            results.append(CheckResult(name, "wrong", f"check failed ({reason:.200})"))
    return Section(title, tuple(results))
