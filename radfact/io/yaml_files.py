"""Reading of YAML files and values, with the line of every error."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_text


class _DuplicateKeyError(yaml.constructor.ConstructorError):
    """A duplicate key in a mapping, of which YAML would silently take the last."""


class _Loader(yaml.SafeLoader):
    """YAML loader of texts, numbers (1e-3, too, as in YAML 1.2), booleans, lists and mappings; a date is a text."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and _expanded_size(node, {}) > 2 * self.index + _MOST_COPIED:
            raise yaml.composer.ComposerError(None, None, "the aliases stand for too many values", node.start_mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in keys:
                    raise _DuplicateKeyError(None, None, f"duplicate key '{key.value}'", key.start_mark)
                keys.add(key.value)
        return super().construct_mapping(node, deep)


_MOST_COPIED = 50_000
"""Characters that the aliases of a document may stand for, in addition to those that are written."""
_TAG = "tag:yaml.org,2002:"
_TYPES = {None, *(f"{_TAG}{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map"))}
_Loader.yaml_constructors = {tag: make for tag, make in yaml.SafeLoader.yaml_constructors.items() if tag in _TYPES}
_Loader.yaml_implicit_resolvers = {
    first: [resolver for resolver in resolvers if resolver[0] != f"{_TAG}timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver(f"{_TAG}float", _NUMBER, list("-+0123456789"))


def _expanded_size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Return the number of values in a node and of their characters, with those of aliases."""
    if (size := sizes.get(id(node))) == 0:
        raise yaml.composer.ComposerError(None, None, "the value of an alias contains the alias", node.start_mark)
    if size is None and isinstance(node, yaml.CollectionNode):
        sizes[id(node)] = 0
        parts = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
        size = sizes[id(node)] = 1 + sum(_expanded_size(part, sizes) for part in parts)
    return 1 + len(node.value) if size is None else size


def read_yaml(path: Path) -> Any:
    return parse_yaml(read_text(path), path)


def parse_yaml(text: str, path: Path | None = None) -> Any:
    message, mark, code = "not YAML", None, ErrorCode.INVALID_FORMAT
    try:
        return yaml.load(text, _Loader)
    except _DuplicateKeyError as error:
        message, mark, code = str(error.problem), error.problem_mark, ErrorCode.DUPLICATE
    except yaml.MarkedYAMLError as error:
        message, mark = f"not YAML: {error.problem}", error.problem_mark
    except yaml.YAMLError:
        message = "not YAML: a character that YAML does not allow"
    except (ValueError, LookupError, RecursionError):
        # Python's own words do not say where.
        message = "not YAML that can be read: a value does not fit its tag, is too long, or is nested too deeply"
    raise InputError(message, code=code, file=path, line=mark.line + 1 if mark else None)
