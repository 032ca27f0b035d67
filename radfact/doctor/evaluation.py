"""Checks of what the evaluation of reports requires: judges and their keys, metrics and their weights, commands."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from radfact.doctor.packages import install_line, unmet_requirements
from radfact.doctor.results import CheckResult

KEYS: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "azure_openai": ("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_ENDPOINT", "OPENAI_API_VERSION"),
    "bedrock": ("AWS_ACCESS_KEY_ID|AWS_PROFILE|AWS_BEARER_TOKEN_BEDROCK", "AWS_DEFAULT_REGION|AWS_REGION|AWS_PROFILE"),
    "cohere": ("COHERE_API_KEY",),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "fireworks": ("FIREWORKS_API_KEY",),
    "google_genai": ("GOOGLE_API_KEY|GEMINI_API_KEY",),
    "google_vertexai": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "groq": ("GROQ_API_KEY",),
    "mistralai": ("MISTRAL_API_KEY",),
    "ollama": (),
    "openai": ("OPENAI_API_KEY",),
    "together": ("TOGETHER_API_KEY",),
    "xai": ("XAI_API_KEY",),
}
"""Environment variables of each provider's LangChain chat model; of the names in one string, any one is enough."""


@dataclass(frozen=True, slots=True)
class CommandRequirements:
    """Requirements of a command in addition to the basic packages.

    Attributes:
        extras: extras whose packages it imports.
        judge: whether it queries a judge, which may be the offline one.
        note: what to know if nothing is missing.
    """

    extras: tuple[str, ...] = ()
    judge: bool = False
    note: str = ""


COMMAND_REQUIREMENTS: Mapping[str, CommandRequirements] = {
    "score": CommandRequirements(judge=True),
    "evaluate": CommandRequirements(judge=True, note="metrics as listed above"),
    "judge-check": CommandRequirements(judge=True),
    "meta agreement": CommandRequirements(("meta",)),
    "meta rexamine": CommandRequirements(("meta",)),
    "meta ensemble fit": CommandRequirements(("meta",)),
}
"""Requirements by the beginning of a command's words; a command without an entry has none."""


def check_judges() -> Sequence[CheckResult]:
    """Check the default judge and every provider: its package and its variables, but never their values."""
    from radfact.llm.langchain import PARTNERS

    judge = _default_judge()
    message = f"{judge} (RADFACT_JUDGE)" if judge else "RADFACT_JUDGE is not set; --judge offline requires nothing"
    results = [CheckResult("judge", "note", message, details={"RADFACT_JUDGE": judge})]
    providers = [_check_provider(provider, module) for provider, (module, _) in PARTNERS.items()]
    results += [result for result in providers if result.details["package"] or result.status == "missing"]
    absent = [result.name for result in providers if result not in results]
    if absent:
        message = f"not installed: {', '.join(absent)}; {install_line('NAME')}, with dashes"
        results.append(CheckResult("other providers", "note", message, details={"absent": absent}))
    if importlib.util.find_spec("vllm") is None:
        message = f"not installed; for a model in this process: {install_line('vllm')}"
        return [*results, CheckResult("vllm", "note", message)]
    return [*results, CheckResult("vllm", "ok", "installed; vllm:PATH requires no key")]


def check_metrics(weights: Mapping[str, Path] | Sequence[Path] = ()) -> Sequence[CheckResult]:
    """Check the requirements of every metric.

    Args:
        weights: folders of weights by name, or folders that hold such folders.
    """
    from radfact.errors import InputError
    from radfact.metrics.registry import MissingRequirementError, entries
    from radfact.metrics.resources import WITHOUT_MODEL, MetricResources

    judge = _default_judge()
    # There is no client for a model here: creating it takes seconds, and `check_judges` checks its key.
    resources = MetricResources(judge="offline", weights=weights)
    results = []
    for entry in entries().values():
        try:
            is_llm_metric = entry.requirements.judge == "model"
        except InputError as error:
            results.append(CheckResult(entry.name, "wrong", str(error)))
            continue
        if is_llm_metric:
            has_model = judge is not None and judge.partition(":")[0] not in WITHOUT_MODEL
            message = f"queries {judge}" if has_model else "requires a language model: --judge PROVIDER:MODEL"
            results.append(CheckResult(entry.name, "ok" if has_model else "note", message))
            continue
        fault = resources.find_fault(entry)
        if fault is None:
            results.append(CheckResult(entry.name, "ok", "ready"))
        elif isinstance(fault, MissingRequirementError):
            results.append(CheckResult(entry.name, "missing", fault.need, fault.remedy))
        else:
            results.append(CheckResult(entry.name, "wrong", str(fault)))
    resources.close()
    return results


def check_embeddings() -> Sequence[CheckResult]:
    """Check the sentence embeddings of the GREEN summary."""
    from radfact.errors import InputError
    from radfact.results.green_summary import SentenceEmbedder

    name = "GREEN summary"
    try:
        SentenceEmbedder()
    except InputError as error:
        return [CheckResult(name, "missing", str(error), install_line("metrics,model"))]
    return [CheckResult(name, "ok", "sentence embeddings are installed")]


def check_commands(
    program: str, commands: Sequence[str], requirements: Mapping[str, CommandRequirements]
) -> Sequence[CheckResult]:
    """Check which commands can run.

    Args:
        program: name of the program.
        commands: words of each command, such as "meta agreement".
        requirements: requirements by the beginning of a command's words.
    """
    return [_check_command(program, command, requirements) for command in commands]


def _check_command(program: str, command: str, requirements: Mapping[str, CommandRequirements]) -> CheckResult:
    words = command.split()
    groups = (" ".join(words[:count]) for count in range(len(words), 0, -1))
    required = next((requirements[group] for group in groups if group in requirements), CommandRequirements())
    name, problems = f"{program} {command}", list(unmet_requirements(("basic", *required.extras)))
    if problems:
        fixes = dict.fromkeys(fix for _, fix in problems)
        return CheckResult(name, "missing", "; ".join(problem for problem, _ in problems), " && ".join(fixes))
    judge = _default_judge()
    judge_note = f"judge {judge}" if judge else "with --judge offline, or a model named by --judge"
    notes = [judge_note] if required.judge else []
    return CheckResult(name, "ok", "; ".join(filter(None, [*notes, required.note])))


def _default_judge() -> str | None:
    return os.environ.get("RADFACT_JUDGE") or None


def _check_provider(provider: str, module: str) -> CheckResult:
    variables = KEYS[provider]
    unset = [names.replace("|", " or ") for names in variables if not any(map(os.environ.get, names.split("|")))]
    has_package = importlib.util.find_spec(module) is not None
    details = {"package": has_package, "unset": unset}
    if not has_package:
        # Few users need every provider: a missing package is a problem only if its key is set.
        if not variables or unset:
            return CheckResult(provider, "note", "its package is not installed", details=details)
        fix = install_line(provider.replace("_", "-"))
        return CheckResult(
            provider, "missing", "its package is not installed, but its key is set", fix, details=details
        )
    if unset:
        hint = "; your own server requires none (--base-url)" if provider == "openai" else ""
        return CheckResult(provider, "note", f"installed; not set: {', '.join(unset)}{hint}", details=details)
    message = "requires no key: your own server"
    if variables:
        message = f"installed; set: {', '.join(variables).replace('|', ' or ')}"
    return CheckResult(provider, "ok", message, details=details)
