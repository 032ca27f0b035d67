"""`--config FILE`: the options of a command by name, in YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from radfact.errors import InputError, suggest_name
from radfact.io.jsonl import read_text


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take a file's values as the defaults of the command's options, so that the command line goes before them.

    Names are those of the options, with dashes or underscores. A switch is true or false; an option that may be
    repeated takes a list, one of KEY=VALUE a mapping too. Options of another command are passed over, so that one file
    can serve several commands.

    Raises:
        InputError: naming the file and the field of an unknown name or a value that does not fit.
    """
    if path is None or context.resilient_parsing:
        return path
    values = _read(path)
    known = _options(context.command)
    group: Any = context.parent.command if context.parent else None
    anywhere = {name for command in getattr(group, "commands", {}).values() for name in _options(command)}
    defaults: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("_", "-")
        if name not in anywhere or name == "config":
            hint = suggest_name(name, sorted(known), "--help names those that there are")
            raise InputError(f"no such option; {hint}", file=path, field=str(key))
        if name not in known:
            continue
        parameter, negated = known[name]
        if negated and isinstance(value, bool):
            value = not value
        if parameter.name in defaults:
            raise InputError("is given twice", file=path, field=str(key))
        defaults[str(parameter.name)] = _as_given(parameter, value, context, path, str(key))
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        values = yaml.safe_load(read_text(path))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise InputError(f"not YAML: {error.problem}", file=path, line=line) from None
    if not isinstance(values, dict):
        raise InputError("expected options by name, one a line, as in 'judge: offline'", file=path)
    return values


def _options(command: Any) -> dict[str, tuple[Any, bool]]:
    """Parameters by the names that a user knows, and whether the name stands for the opposite."""
    found: dict[str, tuple[Any, bool]] = {}
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            found[str(parameter.name)] = (parameter, False)
            continue
        found |= {option.removeprefix("--"): (parameter, False) for option in parameter.opts}
        found |= {option.removeprefix("--"): (parameter, True) for option in parameter.secondary_opts}
    found.pop("help", None)
    return found


def _as_given(parameter: Any, value: Any, context: typer.Context, path: Path, key: str) -> Any:
    """The value as the command line would have it."""
    if getattr(parameter, "multiple", False):
        if isinstance(value, dict):
            value = [f"{name}={_text(item)}" for name, item in value.items()]
        value = [_text(item) for item in (value if isinstance(value, list) else [value])]
    elif isinstance(value, list):
        value = ",".join(map(_text, value))
    elif isinstance(value, dict):
        raise InputError("expected one value, found a mapping", file=path, field=key)
    elif value is None:
        raise InputError("has no value; leave the name out instead", file=path, field=key)
    elif not isinstance(value, bool):
        value = _text(value)
    try:
        parameter.process_value(context, value)
    except typer.BadParameter as error:
        raise InputError(error.message.removeprefix("Value error, ").rstrip("."), file=path, field=key) from None
    return value


def _text(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
