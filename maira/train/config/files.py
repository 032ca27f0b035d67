"""Configurations as YAML files: keys and values over those of a base file, and command-line overrides over both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from radfact.errors import ErrorCode, InputError
from radfact.io.yaml_files import parse_yaml, read_yaml
from radfact.records import Record, validate_model

RecordT = TypeVar("RecordT", bound=Record)
COMMAND_LINE = "the command line"


@dataclass(frozen=True)
class ConfigValues:
    """Values of a configuration and their sources."""

    values: dict[str, Any]  # with those of the bases and the overrides
    # The sources with their own keys and values, the strongest first: each override, the file, its bases.
    layers: Sequence[tuple[Path | str, Any]]
    file: Path  # of the configuration

    def validate(self, kind: type[RecordT], values: dict[str, Any], *, field: str = "") -> RecordT:
        """Return all values, or those under a key (`field`), as an instance of a class; an error names their source."""
        try:
            return validate_model(kind, values, field=field)
        except InputError as error:
            file, message = self.source_of(error.field or ""), error.message
            unknown = (error.field or "").split(".")[-1].lower().replace("-", "_")
            if error.code is ErrorCode.UNKNOWN_FIELD and (name := read_names("other trainers").get(unknown)):
                message = f"unknown field; use {name}"
            raise InputError(message, code=error.code, file=file, field=error.field) from None

    def source_of(self, field: str) -> Path | str:
        """Return the file that sets a field such as `train[0].split`, or `COMMAND_LINE`; by default the config's."""
        path = re.findall(r"[^.\[\]]+", field)
        return next((source for source, values in self.layers if path and _sets(values, path)), self.file)


def read_names(part: str) -> Any:
    return parse_yaml((resources.files("maira.train.config") / "names.yaml").read_text(encoding="utf-8"))[part]


def _sets(values: Any, path: Sequence[str]) -> bool:
    """Return whether a layer sets the value at a path; a value that is no mapping hides everything below it."""
    for key in path:
        if not isinstance(values, dict):
            return True
        if key not in values:
            return False
        values = values[key]
    return True


def read_config_values(path: Path, overrides: Sequence[str] | None = None) -> ConfigValues:
    """Read a configuration file with its bases, and apply overrides: `key=value`, with dots and indices of lists."""
    layers: list[tuple[Path | str, Any]] = [*_read_files(path, ())]
    values: dict[str, Any] = {}
    for _, own in reversed(layers):
        values = _merge(values, own)
    for override in overrides or ():
        key, equals, text = override.partition("=")
        if not (equals and key):
            message = f"expected key=value, found '{override}'"
            raise InputError(message, code=ErrorCode.INVALID_OPTION, file=COMMAND_LINE)
        try:
            value = parse_yaml(text)
        except InputError:
            raise InputError(f"expected a YAML value, found {text!r:.80}", file=COMMAND_LINE, field=key) from None
        layer: Any = value
        for name in reversed(key.split(".")):
            layer = {name: layer}
        layers.insert(0, (COMMAND_LINE, layer))
        values = _override(values, key.split("."), value, key)
    return ConfigValues(values, layers, path)


def _read_files(path: Path, derived: tuple[Path, ...]) -> list[tuple[Path, dict[str, Any]]]:
    """Return keys and values of a file, of its base, of the base's base, and so on."""
    if path.resolve() in derived:
        raise InputError("a configuration cannot be its own base", file=path, field="base")
    values = read_yaml(path)
    if not isinstance(values, dict):
        message = "expected keys and values, as in configs/phantom.yaml"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path)
    base = values.pop("base", None)
    if base is None:
        return [(path, values)]
    if not isinstance(base, str):
        raise InputError(f"expected the path of a configuration, found {base!r:.80}", file=path, field="base")
    if not (file := path.parent / base).is_file():
        raise InputError(f"{file}: no such file", code=ErrorCode.FILE_NOT_FOUND, file=path, field="base")
    return [(path, values), *_read_files(file, (*derived, path.resolve()))]


def _merge(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return the values over those of the base, mappings merged."""
    merged = {k: _merge(base[k], v) for k, v in values.items() if isinstance(v, dict) and isinstance(base.get(k), dict)}
    return base | values | merged


def _override(values: Any, path: Sequence[str], value: Any, key: str) -> Any:
    """Return mappings or a list with another value at the end of a path; `key` is the whole path, for messages."""
    if not path:
        return value
    name = path[0]
    if isinstance(values, list):
        if not name.isdecimal() or int(name) >= len(values):
            message = f"expected an index below {len(values)}, found '{name}'"
            raise InputError(message, code=ErrorCode.UNKNOWN_FIELD, file=COMMAND_LINE, field=key)
        index = int(name)
        return [*values[:index], _override(values[index], path[1:], value, key), *values[index + 1 :]]
    if not isinstance(values, dict | None):
        message = f"'{name}' cannot be set in {values!r:.80}, which has no keys"
        raise InputError(message, code=ErrorCode.UNKNOWN_FIELD, file=COMMAND_LINE, field=key)
    known = values or {}
    return known | {name: _override(known.get(name), path[1:], value, key)}
