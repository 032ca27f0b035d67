"""`--config FILE`: the options of a command by name, in YAML."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from radfact.errors import ErrorCode, InputError, suggest_name


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take the values of a file as defaults of the command's options, so that flags take precedence.

    Names are those of the flags or of the keyword arguments in Python, with dashes or underscores. A switch is true or
    false, a repeatable option a list, and one of KEY=VALUE a mapping. Options of other commands of the program are
    ignored, so that one file can serve several commands.
    """
    if path is None or context.resilient_parsing:
        return path
    values = _read(path)
    options = _options(context.command)
    known = {name for command in _commands(context.find_root().command) for name in _options(command)}
    defaults: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("_", "-")
        if name not in known or name == "config":
            hint = suggest_name(name, sorted(options.keys() - {"config"}), "--help lists the options")
            raise InputError(f"unknown option; {hint}", code=ErrorCode.UNKNOWN_NAME, file=path, field=str(key))
        if name not in options:
            continue
        parameter, is_negated = options[name]
        if is_negated and isinstance(value, bool):
            value = not value
        if parameter.name in defaults:
            raise InputError("duplicate option", code=ErrorCode.DUPLICATE, file=path, field=str(key))
        defaults[str(parameter.name)] = _convert(parameter, value, context, path, str(key))
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def _read(path: Path) -> dict[str, Any]:
    from radfact.io.yaml_files import read_yaml

    values = read_yaml(path)
    if not isinstance(values, dict):
        raise InputError(
            "expected one option per line, such as 'judge: offline'", code=ErrorCode.INVALID_FORMAT, file=path
        )
    return values


def _commands(command: Any) -> Iterator[Any]:
    yield command
    for child in getattr(command, "commands", {}).values():
        yield from _commands(child)


def _options(command: Any) -> dict[str, tuple[Any, bool]]:
    """Return the parameters of a command by name, each with whether the name is the negative one of a switch."""
    options: dict[str, tuple[Any, bool]] = {}
    for parameter in command.params:
        options[str(parameter.name).replace("_", "-")] = (parameter, False)
        if parameter.param_type_name == "option":
            options |= {flag.removeprefix("--"): (parameter, False) for flag in parameter.opts}
            options |= {flag.removeprefix("--"): (parameter, True) for flag in parameter.secondary_opts}
    options.pop("help", None)
    return options


def _convert(parameter: Any, value: Any, context: typer.Context, path: Path, key: str) -> Any:
    """Return a value of the file as the command line would give it."""
    if getattr(parameter, "multiple", False) or parameter.nargs != 1:
        if isinstance(value, dict):
            value = [f"{name}={_as_text(item)}" for name, item in value.items()]
        value = [_as_text(item) for item in (value if isinstance(value, list) else [value])]
    elif isinstance(value, list):
        value = ",".join(map(_as_text, value))
    elif isinstance(value, dict):
        raise InputError("expected one value, found a mapping", file=path, field=key)
    elif value is None:
        raise InputError("expected a value, found none; delete the name", file=path, field=key)
    elif not isinstance(value, bool):
        value = _as_text(value)
    try:
        parameter.process_value(context, value)
    except typer.BadParameter as error:
        raise InputError(error.message.removeprefix("Value error, ").rstrip("."), file=path, field=key) from None
    return value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
