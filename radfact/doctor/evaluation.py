"""What the evaluation of reports needs: judges with their keys, metrics with their weights, and its commands."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from radfact.doctor.packages import install_line, lacking
from radfact.doctor.report import Item

# Variables that LangChain's chat models read: all of a row are needed, of names in one string any.
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
"""Environment variables by provider."""
_NEEDS_NO_KEY = "needs no key: a server of your own"


@dataclass(frozen=True, slots=True)
class Need:
    """What a command needs beyond the basic packages.

    Attributes:
        extras: whose packages it imports.
        judge: whether it asks a judge, which may be the offline one.
        text: what to know where nothing is missing.
    """

    extras: tuple[str, ...] = ()
    judge: bool = False
    text: str = ""


NEEDS: Mapping[str, Need] = {
    "score": Need(judge=True),
    "evaluate": Need(judge=True, text="metrics as listed above"),
    "judge-check": Need(judge=True),
    "meta agreement": Need(("meta",)),
    "meta rexamine": Need(("meta",)),
    "meta ensemble fit": Need(("meta",)),
}
"""Needs by the beginning of a command's words; what has no entry needs nothing."""


def judge_items() -> Sequence[Item]:
    """The judge that the environment names, and every provider: its package and its variables, never their values."""
    from radfact.llm.langchain import PARTNERS

    named = _named_judge()
    text = (
        f"{named} (RADFACT_JUDGE)" if named else "none by RADFACT_JUDGE; --judge names one, and offline needs nothing"
    )
    items = [Item("judge", "note", text, details={"RADFACT_JUDGE": named})]
    providers = [_provider_item(provider, module) for provider, (module, _) in PARTNERS.items()]
    items += [one for one in providers if one.details["package"] or one.state == "missing"]
    absent = [one.name for one in providers if one not in items]
    if absent:
        known = f"not installed: {', '.join(absent)}; {install_line('NAME')}, with dashes"
        items.append(Item("other providers", "note", known, details={"absent": absent}))
    return [*items, _vllm_item()]


def metric_items(weights: Mapping[str, Path] | Sequence[Path] = ()) -> Sequence[Item]:
    """Every metric as `radfact metrics` finds it.

    Args:
        weights: as `radfact.metrics.resources.Resources` takes them.
    """
    from radfact.metrics.registry import MissingRequirementError, entries
    from radfact.metrics.resources import WITHOUT_MODEL, Resources

    named = _named_judge()
    # A model is not connected to here: making its client takes seconds, and its key is looked at above.
    resources = Resources(judge="offline", weights=weights)
    items = []
    for entry in entries().values():
        if entry.judge == "model":
            known = named is not None and named.partition(":")[0] not in WITHOUT_MODEL
            state = f"asks {named}" if known else "needs a language model: --judge PROVIDER:MODEL"
            items.append(Item(entry.name, "ok" if known else "note", state))
            continue
        fault = resources.fault(entry)
        if fault is None:
            items.append(Item(entry.name, "ok", "ready"))
        elif isinstance(fault, MissingRequirementError):
            items.append(Item(entry.name, "missing", fault.need, fault.mend))
        else:
            items.append(Item(entry.name, "wrong", str(fault)))
    resources.close()
    return items


def embedding_items() -> Sequence[Item]:
    """The sentence embeddings of the GREEN summary."""
    from radfact.errors import InputError
    from radfact.metrics.green_summary import SentenceEmbedder

    name = "GREEN summary"
    try:
        SentenceEmbedder()
    except InputError as error:
        return [Item(name, "missing", str(error), install_line("metrics,model"))]
    return [Item(name, "ok", "has its sentence embeddings")]


def command_items(program: str, commands: Sequence[str], needs: Mapping[str, Need]) -> Sequence[Item]:
    """The state of each command.

    Args:
        program: whose commands they are.
        commands: words of each, such as "meta agreement".
        needs: as `NEEDS`.
    """
    return [_command_item(program, command, need_of(command, needs)) for command in commands]


def need_of(command: str, needs: Mapping[str, Need]) -> Need:
    """The need of a command: its own, or that of the group that it is in."""
    words = command.split()
    names = (" ".join(words[:count]) for count in range(len(words), 0, -1))
    return next((needs[name] for name in names if name in needs), Need())


def _command_item(program: str, command: str, need: Need) -> Item:
    name, faults = f"{program} {command}", list(lacking(("basic", *need.extras)))
    if faults:
        mends = list(dict.fromkeys(mend for _, mend in faults))
        return Item(name, "missing", "; ".join(fault for fault, _ in faults), " && ".join(mends))
    text = need.text
    if need.judge:
        text = "; ".join(filter(None, (_judge_in_words(), text)))
    return Item(name, "ok", text)


def _named_judge() -> str | None:
    return os.environ.get("RADFACT_JUDGE") or None


def _judge_in_words() -> str:
    named = _named_judge()
    return f"judge {named}" if named else "with --judge offline, or a model named by --judge"


def _provider_item(provider: str, module: str) -> Item:
    variables = KEYS[provider]
    unset = [one.replace("|", " or ") for one in variables if not any(map(os.environ.get, one.split("|")))]
    extra = provider.replace("_", "-")
    has_package = importlib.util.find_spec(module) is not None
    details = {"package": has_package, "unset": unset}
    if not has_package:
        # Nobody needs every provider: one that is not there is a fault only where its key is.
        has_key = bool(variables) and not unset
        state = f"its package is not installed{', but its key is set' if has_key else ''}"
        return Item(
            provider, "missing" if has_key else "note", state, install_line(extra) if has_key else None, False, details
        )
    if unset:
        own = "; a server of your own needs none (--base-url)" if provider == "openai" else ""
        return Item(provider, "note", f"installed; not set: {', '.join(unset)}{own}", details=details)
    found = f"installed; set: {', '.join(variables).replace('|', ' or ')}" if variables else _NEEDS_NO_KEY
    return Item(provider, "ok", found, details=details)


def _vllm_item() -> Item:
    if importlib.util.find_spec("vllm") is None:
        return Item("vllm", "note", f"not installed; for a model in this process: {install_line('vllm')}")
    return Item("vllm", "ok", "installed; vllm:FOLDER needs no key")
