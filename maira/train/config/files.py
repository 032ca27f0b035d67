"""Configurations as YAML files: keys and values over those of a base file, and command-line overrides over both."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from radfact.errors import ErrorCode, InputError
from radfact.io.yaml_files import parse_yaml, read_yaml
from radfact.records import Record, validate_model

RecordT = TypeVar("RecordT", bound=Record)
COMMAND_LINE = "the command line"


@dataclass(frozen=True)
class ConfigValues:
    """Values of a configuration and their sources.

    Attributes:
        values: keys and values, with those of the bases and the overrides.
        files: the file and its bases, each with its own keys and values.
        overrides: of the command line, as `key=value`.
    """

    values: dict[str, Any]
    files: Sequence[tuple[Path, dict[str, Any]]]
    overrides: Sequence[str]

    def validate(self, kind: type[RecordT], values: dict[str, Any], *, field: str = "") -> RecordT:
        """Return values as an instance of a class.

        Args:
            kind: class of the configuration, or of the values under one of its keys.
            values: all values, or those under the key.
            field: the key.

        Raises:
            InputError: a value is wrong; its file, or the command line, and its field are named.
        """
        try:
            return validate_model(kind, values, field=field)
        except InputError as error:
            file = self.source_of(error.field or "")
            raise InputError(error.message, code=error.code, file=file, field=error.field) from None

    def source_of(self, field: str) -> Path | str:
        """Return the file that sets a field, such as `faults.spike` or `train[0].split`, or `COMMAND_LINE`.

        A missing field, and the configuration as a whole, belong to the configuration's file.
        """
        path = _split(field)
        overridden = [_split(override.partition("=")[0]) for override in self.overrides]
        if any(path[: len(key)] == key for key in overridden):
            return COMMAND_LINE
        for file, values in self.files:
            if path and _sets(values, path):
                return file
        # A mapping that exists only because an override sets a key in it.
        is_implied = path and any(key[: len(path)] == path for key in overridden)
        return COMMAND_LINE if is_implied else self.files[0][0]


def _split(field: str) -> list[str]:
    return re.findall(r"[^.\[\]]+", field)


def _sets(values: Any, path: Sequence[str]) -> bool:
    """Return whether a file sets the value at a path; a value that is no mapping hides everything below it."""
    for key in path:
        if not isinstance(values, dict):
            return True
        if key not in values:
            return False
        values = values[key]
    return True


def read_config_values(path: Path, overrides: Sequence[str] | None = None) -> ConfigValues:
    """Read a configuration file with its bases and apply overrides.

    Args:
        path: YAML file.
        overrides: `key=value`, where keys have dots and indices of lists.

    Raises:
        InputError: a file is not a YAML mapping, bases form a circle, a key is duplicated, or an override is invalid.
    """
    files = _read_files(path, ())
    values: dict[str, Any] = {}
    for _, own in reversed(files):
        values = _merge(values, own)
    # `files` must keep the values before the overrides.
    values = copy.deepcopy(values)
    for override in overrides or ():
        _override(values, override)
    return ConfigValues(values, files, overrides or ())


def _read_files(path: Path, derived: tuple[Path, ...]) -> list[tuple[Path, dict[str, Any]]]:
    """Return keys and values of a file, of its base, of the base's base, and so on."""
    if path.resolve() in derived:
        raise InputError("a configuration cannot be its own base", file=path, field="base")
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise InputError(
            "expected keys and values, as in configs/phantom.yaml", code=ErrorCode.INVALID_FORMAT, file=path
        )
    base = values.pop("base", None)
    if base is None:
        return [(path, values)]
    if not isinstance(base, str):
        raise InputError(f"expected the path of a configuration, found {base!r:.80}", file=path, field="base")
    if not (file := path.parent / base).is_file():
        raise InputError(f"{file}: no such file", code=ErrorCode.FILE_NOT_FOUND, file=path, field="base")
    return [(path, values), *_read_files(file, (*derived, path.resolve()))]


def _merge(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _merge(base[key], value)
        for key, value in values.items()
        if isinstance(value, dict) and isinstance(base.get(key), dict)
    }
    return base | values | both


def _override(values: dict[str, Any], override: str) -> None:
    """Set the value of one override in place."""
    key, equals, value = override.partition("=")
    if not (equals and key):
        raise InputError(f"expected key=value, found '{override}'", code=ErrorCode.INVALID_OPTION, file=COMMAND_LINE)
    container: Any = values
    *parents, last = key.split(".")
    for parent in parents:
        if isinstance(container, list):
            container = container[_index(container, parent, key)]
        else:
            if container.get(parent) is None:
                container[parent] = {}
            container = container[parent]
        if not isinstance(container, dict | list):
            message = f"'{parent}' has no keys: it is {container!r:.80}"
            raise InputError(message, code=ErrorCode.UNKNOWN_FIELD, file=COMMAND_LINE, field=key)
    place = _index(container, last, key) if isinstance(container, list) else last
    try:
        container[place] = parse_yaml(value)
    except InputError:
        raise InputError(f"expected a YAML value, found {value!r:.80}", file=COMMAND_LINE, field=key) from None


def _index(items: list[Any], name: str, key: str) -> int:
    """Return the list index that a part of an override's key names."""
    if not name.isdecimal() or int(name) >= len(items):
        message = f"expected an index below {len(items)}, found '{name}'"
        raise InputError(message, code=ErrorCode.UNKNOWN_FIELD, file=COMMAND_LINE, field=key)
    return int(name)
