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
    """YAML loader that refuses duplicate keys and reads 1e-3 as a number, as in YAML 1.2."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Construct a mapping without duplicate keys."""
        keys = set()
        for key, _ in node.value:
            if key.value in keys and isinstance(key, yaml.ScalarNode):
                raise _DuplicateKeyError(None, None, f"duplicate key '{key.value}'", key.start_mark)
            keys.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_yaml(path: Path) -> Any:
    """Read one YAML document."""
    text = read_text(path)
    try:
        return parse_yaml(text)
    except InputError as error:
        raise InputError(error.message, code=error.code, file=path, line=error.line) from None


def parse_yaml(text: str) -> Any:
    """Parse one YAML document."""
    message, mark, code = "not YAML", None, ErrorCode.INVALID_FORMAT
    try:
        return yaml.load(text, _Loader)
    except _DuplicateKeyError as error:
        message, mark, code = str(error.problem), error.problem_mark, ErrorCode.DUPLICATE
    except yaml.MarkedYAMLError as error:
        message, mark = f"not YAML: {error.problem}", error.problem_mark
    except yaml.YAMLError:
        message = "not YAML: a character that YAML does not allow"
    except (ValueError, RecursionError) as error:
        # Dates that do not exist, integers of thousands of digits, and nesting of thousands of levels.
        message = f"not YAML that can be read: {error}"
    raise InputError(message, code=code, line=mark.line + 1 if mark else None)
