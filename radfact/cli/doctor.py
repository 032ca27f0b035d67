"""`radfact doctor`: what is installed, and what each command lacks."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer.main import get_command

from radfact import machine
from radfact.cli.command import with_options
from radfact.cli.main import create_app
from radfact.cli.tables import new_console, say
from radfact.errors import ExitCode
from radfact.io.jsonl import dumps
from radfact.llm.call_errors import PROVIDERS
from radfact.llm.langchain import PARTNERS
from radfact.metrics.options import MetricOptions
from radfact.metrics.registry import MissingRequirementError, entries
from radfact.metrics.resources import MetricResources
from radfact.options import only

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
COMMAND_EXTRAS: Mapping[str, str] = {"meta agreement": "meta", "meta rexamine": "meta", "meta ensemble fit": "meta"}
"""Extra whose packages a command imports, by the beginning of its words; the first that fits counts."""
KEYS: Mapping[str, Sequence[str]] = PROVIDERS["keys"]
"""Variables of providers, if not just PROVIDER_API_KEY; of the names in one string, any is enough."""
_NAME_WIDTH = 22
_STYLES = {"ok": "green", "missing": "yellow", "wrong": "red", "note": None}


@dataclass(frozen=True, slots=True)
class CheckResult:
    name: str
    status: Literal["ok", "missing", "wrong", "note"]
    message: str
    fix: str | None = None


@with_options
def doctor(metrics: Annotated[MetricOptions, only("weights")], json: Json = False) -> None:
    """Check the installation, and which commands can run.

    API keys are listed by name; their values are never shown. Exit code 1: a package that every command requires is
    missing or in an unsupported version.
    """
    # Of the program that runs, only this command is imported.
    commands = run_checks(Commands=lambda: check_commands("radfact", command_words(get_command(create_app()))))
    show(check_all(metrics.weights) | commands, json)


def check_all(weights: Mapping[str, Path] | Sequence[Path] = ()) -> dict[str, list[CheckResult]]:
    """Check what the evaluation of reports requires; return the results by section."""
    metrics = partial(_check_metrics, weights)
    return run_checks(Packages=_check_packages, GPUs=_check_gpus, Judges=_check_judges, Metrics=metrics)


def run_checks(**checks: Callable[[], Iterable[CheckResult]]) -> dict[str, list[CheckResult]]:
    """Return the results of checks by name; an exception, which a broken installation may raise, becomes a result."""
    sections: dict[str, list[CheckResult]] = {}
    for title, check in checks.items():
        try:
            sections[title] = list(check())
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            sections[title] = [CheckResult(title, "wrong", f"check failed ({reason:.200})")]
    return sections


def check_commands(
    program: str, commands: Iterable[str], extras: Mapping[str, str] = COMMAND_EXTRAS
) -> Iterator[CheckResult]:
    requirements = machine.requirements()
    unmet = {name: "; ".join(machine.unmet(requirements[name])) for name in {"", *extras.values()}}
    for command in commands:
        extra = next((extra for words, extra in extras.items() if f"{command} ".startswith(f"{words} ")), "")
        problems = {name: unmet[name] for name in ("", extra) if unmet[name]}
        fix = " && ".join(map(machine.install_line, problems)) or None
        yield CheckResult(f"{program} {command}", "missing" if problems else "ok", "; ".join(problems.values()), fix)


def _check_packages() -> Iterator[CheckResult]:
    for extra, required in machine.requirements().items():
        problems = "; ".join(machine.unmet(required))
        message = problems or ", ".join(f"{item.name} {machine.installed_version(item.name)}" for item in required)
        fix = machine.install_line(extra) if problems else None
        yield CheckResult(extra or "basic", "missing" if problems else "ok", message, fix)


def _check_gpus() -> Iterator[CheckResult]:
    if program := shutil.which("nvidia-smi"):
        command = [program, "--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader"]
        process = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        for line in (process.stdout or process.stderr).splitlines():
            yield CheckResult("GPU", "wrong" if process.returncode else "ok", line)
    else:
        yield CheckResult("GPU", "note", "none found; models run on the CPU")


def _check_judges() -> Iterator[CheckResult]:
    judge = os.environ.get("RADFACT_JUDGE")
    yield CheckResult("RADFACT_JUDGE", "note", judge or "not set; --judge offline requires nothing")
    for provider, (module, _) in PARTNERS.items():
        fix = machine.install_line(provider.replace("_", "-"))
        variables = KEYS.get(provider, (f"{provider.upper()}_API_KEY",))
        unset = [names.replace("|", " or ") for names in variables if not any(map(os.environ.get, names.split("|")))]
        key = f"not set: {', '.join(unset)}" if unset else "key is set" if variables else "requires no key"
        if importlib.util.find_spec(module):
            yield CheckResult(provider, "note" if unset else "ok", f"installed; {key}")
        elif variables and not unset:
            # Few users need every provider: a missing package is a problem only if its key is set.
            yield CheckResult(provider, "missing", f"not installed; {key}", fix)


def _check_metrics(weights: Mapping[str, Path] | Sequence[Path]) -> Iterator[CheckResult]:
    # Without a client of a model: creating it takes seconds, and the keys are checked above.
    resources = MetricResources(judge="offline", weights=weights)
    for entry in entries().values():
        fault = resources.find_fault(entry)
        if not isinstance(fault, MissingRequirementError):
            yield CheckResult(entry.name, "wrong" if fault else "ok", str(fault or "ready"))
        elif entry.declared.requirements.judge == "model":
            yield CheckResult(entry.name, "note", "requires a language model: --judge PROVIDER:MODEL")
        else:
            yield CheckResult(entry.name, "missing", str(fault))


def show(sections: Mapping[str, list[CheckResult]], as_json: bool) -> None:
    """Print the results of checks; the exit code is 1 if a package that every command requires is missing."""
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    program = f"{machine.PROJECT} {machine.project_version()}, {system}"
    passed = sections["Packages"][0].status == "ok"
    if as_json:
        rows = {title: [asdict(result) for result in results] for title, results in sections.items()}
        print(dumps({"program": program, "passed": passed, "commands": rows.pop("Commands"), "sections": rows}))
    else:
        console = new_console()
        say(console, program)
        for title, results in sections.items():
            say(console, f"\n{title}")
            for result in results:
                style, label = _STYLES[result.status], result.status.replace("note", "")
                text = f"  {label:8}{result.name:{_NAME_WIDTH}} {result.message}".rstrip()
                say(console, text, style=style, wrap=console.is_terminal, indent=_NAME_WIDTH + 11)
                if result.fix:
                    say(console, f"{'':10}-> {result.fix}", style=style, wrap=False)
    if not passed:
        raise typer.Exit(ExitCode.FAILURE)


def command_words(command: object, parents: tuple[str, ...] = ()) -> list[str]:
    """Return the words of every command in a group and its subgroups: "score", "meta agreement"."""
    if (subcommands := getattr(command, "commands", None)) is None:
        return [" ".join(parents)]
    return [words for name, child in subcommands.items() for words in command_words(child, (*parents, name))]
