"""Recipes as files: keys and values over those of a base, and over them what the command line says."""

from __future__ import annotations

import copy
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from radfact.errors import InputError
from radfact.io.jsonl import read_text
from radfact.records import Record, validated

RecordT = TypeVar("RecordT", bound=Record)
COMMAND_LINE = "the command line"


@dataclass(frozen=True)
class ConfigValues:
    """What a recipe says, and where it says so.

    Attributes:
        values: keys and values, those of the base and the overrides among them.
        files: the recipe's file and those of its bases, each with what it says itself.
        overrides: of the command line, as `key=value`.
    """

    values: dict[str, Any]
    files: Sequence[tuple[Path, dict[str, Any]]]
    overrides: Sequence[str]

    def checked(self, kind: type[RecordT], values: dict[str, Any], *, field: str = "") -> RecordT:
        """Values as an instance of `kind`.

        Args:
            kind: of the recipe, or of what stands under one of its keys.
            values: all that it says, or what stands there.
            field: that key.

        Raises:
            InputError: naming where a wrong value is said, and its field.
        """
        try:
            return validated(kind, values, field=field)
        except InputError as error:
            raise InputError(error.message, file=self.source_of(error.field or ""), field=error.field) from None

    def source_of(self, field: str) -> Path | str:
        """Where a field is said that counts, such as `faults.spike` or `train[0].split`; of one that is missing, or of
        all together, the recipe's file."""
        steps = _steps(field)
        keys = [_steps(override.partition("=")[0]) for override in self.overrides]
        if any(steps[: len(key)] == key for key in keys):
            return COMMAND_LINE
        for path, own in self.files:
            if steps and _says(own, steps):
                return path
        # A mapping that an override has begun by naming something below it.
        is_begun = steps and any(key[: len(steps)] == steps for key in keys)
        return COMMAND_LINE if is_begun else self.files[0][0]


def _steps(field: str) -> list[str]:
    return re.findall(r"[^.\[\]]+", field)


def _says(values: Any, steps: Sequence[str]) -> bool:
    """Whether a file says what stands at some steps; of two mappings both count, anything else hides what is below."""
    for step in steps:
        if not isinstance(values, dict):
            return True
        if step not in values:
            return False
        values = values[step]
    return True


def read_config_values(path: Path, overrides: Sequence[str] | None = None) -> ConfigValues:
    """What a recipe says: its keys and values over those of its base, with the overrides in their place.

    Raises:
        InputError: a file is no YAML mapping, bases form a circle, a key is given twice, an override is none.
    """
    files = _read_files(path, ())
    values: dict[str, Any] = {}
    for _, own in reversed(files):
        values = _merged(values, own)
    # What a file says is looked up in it when a fault is.
    values = copy.deepcopy(values)
    for override in overrides or ():
        _override(values, override)
    return ConfigValues(values, files, overrides or ())


def _read_files(path: Path, below: tuple[Path, ...]) -> list[tuple[Path, dict[str, Any]]]:
    """A recipe's keys and values, those of its base, of the base's base, and so on."""
    if path.resolve() in below:
        raise InputError("a recipe cannot be its own base", file=path, field="base")
    try:
        values = _load(read_text(path))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = error.problem if isinstance(error, _Twice) else "not YAML"
        raise InputError(str(what), file=path, line=mark.line + 1 if mark else None) from None
    if not isinstance(values, dict):
        raise InputError("expected keys and values, as in configs/phantom.yaml", file=path)
    base = values.pop("base", None)
    if base is None:
        return [(path, values)]
    if not isinstance(base, str):
        raise InputError(f"expected the path of a recipe, found {base!r:.80}", file=path, field="base")
    if not (file := path.parent / base).is_file():
        raise InputError(f"{file}: no such file", file=path, field="base")
    return [(path, values), *_read_files(file, (*below, path.resolve()))]


class _Twice(yaml.constructor.ConstructorError):
    """A key is given twice in one mapping, where YAML would take the last."""


class _Loader(yaml.SafeLoader):
    """YAML as people write it: a key stands once in a mapping, and 1e-3 is a number as in YAML 1.2."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping, none of whose keys stands twice."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen and isinstance(key, yaml.ScalarNode):
                raise _Twice(None, None, f"the key '{key.value}' is given twice", key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _load(text: str) -> Any:
    return yaml.load(text, _Loader)


def _merged(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(base[key], value)
        for key, value in values.items()
        if isinstance(value, dict) and isinstance(base.get(key), dict)
    }
    return base | values | both


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not (equals and key):
        raise InputError(f"expected key=value, got '{override}'", file=COMMAND_LINE)
    place: Any = values
    *parents, last = key.split(".")
    for parent in parents:
        if isinstance(place, list):
            place = place[_number(place, parent, key)]
        else:
            if place.get(parent) is None:
                place[parent] = {}
            place = place[parent]
        if not isinstance(place, dict | list):
            message = f"'{parent}' has no keys of its own: it is {place!r:.80}"
            raise InputError(message, file=COMMAND_LINE, field=key)
    try:
        place[_number(place, last, key) if isinstance(place, list) else last] = _load(value)
    except yaml.YAMLError:
        raise InputError(f"not a YAML value: {value!r:.80}", file=COMMAND_LINE, field=key) from None


def _number(items: list[Any], name: str, key: str) -> int:
    """The place in a list that a part of an override's key names."""
    if not name.isdecimal() or int(name) >= len(items):
        message = f"'{name}' is no item of a list of {len(items)}, which are numbered from 0"
        raise InputError(message, file=COMMAND_LINE, field=key)
    return int(name)
