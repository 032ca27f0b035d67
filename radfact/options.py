"""Options of the commands and of the library, each declared once as a field of a pydantic model.

Command-line flags, the YAML file of `--config`, the keyword arguments in Python and the record in `run.json` are all
derived from these models. To add an option, add a field:

    class JudgeOptions(Options):
        panel = "Judge"

        concurrency: Annotated[PositiveInt | None, Option("Parallel calls to the model.", metavar="N")] = None

The types may be `bool`, `int`, `float`, `str`, `Path`, a `Literal`, one of these or None, and tuples and mappings of
them. A tuple is a repeatable flag, a mapping a repeatable flag of the form KEY=VALUE.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from radfact.errors import ErrorCode, InputError, option_error
from radfact.records import as_input_error


@dataclass(frozen=True, slots=True)
class Option:
    """How a field appears on the command line; metadata of its annotation."""

    help: str
    flag: str | None = None
    """By default, the name of the field with dashes; "--yes/--no" for a switch that has two names."""
    metavar: str | None = None
    panel: str | None = None
    """Heading in the help; by default, that of the model."""
    cli_type: Any = None
    """Type of the value on the command line, if a validator of the field converts it."""


class Subset(NamedTuple):
    """The fields of a model that a command takes, or all, and its own defaults; metadata of an annotation."""

    names: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = {}


def only(*names: str, **defaults: Any) -> Subset:
    """Select fields of an option model, and set other defaults, in its annotation as a parameter."""
    return Subset(names, defaults)


class Options(BaseModel):
    """Base class of all options; `panel` is the heading under which `--help` lists them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    panel: ClassVar[str | None] = None

    if not TYPE_CHECKING:

        def __init__(self, **values: Any) -> None:
            """Check the values; None stands for the default."""
            try:
                super().__init__(**{name: value for name, value in values.items() if value is not None})
            except ValidationError as error:
                raise _as_input_error(error, type(self)) from None

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Document the attributes of a subclass by the help of its options."""
        super().__pydantic_init_subclass__(**kwargs)
        lines = (f"    {name}: {option_of(cls, name).help}" for name in cls.model_fields)
        cls.__doc__ = "\n".join((cls.__doc__ or "", "", "Attributes:", *lines))

    def record(self) -> dict[str, Any]:
        """Return the options as they appear in `run.json`."""
        return self.model_dump(mode="json")

    def as_arguments(self) -> list[str]:
        """Return the options that differ from their defaults as arguments of a command line."""
        arguments: list[str] = []
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value == field.get_default(call_default_factory=True):
                continue
            flag, _, negative_flag = flag_of(type(self), name).partition("/")
            if isinstance(value, bool):
                arguments.append(flag if value else negative_flag)
            elif isinstance(value, Mapping):
                arguments += [word for key, item in value.items() for word in (flag, f"{key}={as_text(item)}")]
            elif isinstance(value, tuple):
                arguments += [word for item in value for word in (flag, str(item))]
            else:
                arguments += [flag, str(value)]
        return arguments


def option_of(model: type[Options], name: str) -> Option:
    """Return how a field of a model appears on the command line."""
    for item in model.model_fields[name].metadata:
        if isinstance(item, Option):
            return item
    raise TypeError(f"{model.__name__}.{name}: expected Annotated[..., Option(...)]")


def flag_of(model: type[Options], name: str) -> str:
    """Return the flag of a field, such as "--judge-arg"."""
    return option_of(model, name).flag or f"--{name.replace('_', '-')}"


def value_type(annotation: Any) -> Any:
    """Return a type without None: `int` of `int | None`."""
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    (member,) = (member for member in get_args(annotation) if member is not NoneType)
    return member


@contextmanager
def rename_fields(names: Mapping[str, str], separator: str = ".") -> Iterator[None]:
    """Rename the option that an `InputError` is about, for example to the flag that the value comes from."""
    try:
        yield
    except InputError as error:
        name, dot, key = (error.field or "").partition(".")
        if error.file is not None or name not in names:
            raise
        field = f"{names[name]}{separator if dot else ''}{key}"
        raise InputError(error.message, code=error.code, field=field) from None


def parse_key_values(items: Sequence[str], flag: str) -> dict[str, str]:
    """Return the values of a repeatable flag of the form KEY=VALUE, by key."""
    values: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not (key and equals):
            raise option_error(f"expected KEY=VALUE, found '{item}'", flag)
        if key in values:
            raise option_error(f"duplicate key '{key}'", flag, ErrorCode.DUPLICATE)
        values[key] = value
    return values


def _as_input_error(error: ValidationError, model: type[Options]) -> InputError:
    for fault in error.errors(include_url=False):
        # An error of our own validators has its own code, and sometimes a field.
        if isinstance(original := fault.get("ctx", {}).get("error"), InputError):
            if original.file is not None:
                return original
            field = original.field or ".".join(map(str, fault["loc"])) or None
            return InputError(original.message, code=original.code, field=field)
    first = as_input_error(error, kind=model, quote=True)
    return InputError(first.message, code=ErrorCode.INVALID_OPTION, field=first.field)


def as_text(value: Any) -> str:
    """Return a value as the command line takes it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
