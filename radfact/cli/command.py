"""Typer commands whose options come from option models (`radfact.options`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from enum import StrEnum
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from typer.models import OptionInfo

from radfact.errors import ErrorCode, InputError, suggest_name
from radfact.io.outputs import Output, lock_output
from radfact.options import Options, Subset, as_text, flag_of, option_of, parse_key_values, rename_fields, value_type

T = TypeVar("T")


def with_options(command: Callable[..., None], **subsets: Subset) -> Callable[..., None]:
    """Turn every parameter that is an option model into one flag per field, and add `--config`.

    `Annotated[Model, only("field", other=1)]` takes some fields, or other defaults; `subsets` replace those of the
    annotations. An `InputError` about an option is raised again under the name of its flag. A parameter annotated with
    an `Output` is locked while the command runs, by rank 0 of a launcher; all other paths are inputs. Unless the
    command resumes its output, `--overwrite` is added.
    """
    own = list(signature(command, eval_str=True).parameters.values())
    parameters: list[Parameter] = []
    models: dict[str, tuple[type[Options], list[str], Mapping[str, Any]]] = {}
    for parameter in own:
        model, subset = _annotated_type(parameter.annotation), _metadata(parameter.annotation, Subset) or Subset()
        subset = subsets.get(parameter.name, subset)
        if not (isinstance(model, type) and issubclass(model, Options)):
            parameters.append(parameter)
            continue
        names = [name for name in model.model_fields if not subset.names or name in subset.names]
        models[parameter.name] = model, names, subset.defaults
        parameters += [_typer_parameter(model, name, subset.defaults) for name in names]
    config_option = typer.Option(
        metavar="FILE",
        help="YAML file with options of this command by name; flags take precedence.",
        is_eager=True,
        callback=read_config,
        rich_help_panel=_panel(parameters),
    )
    kind = Annotated[Path | None, config_option]
    parameters.append(Parameter("config", Parameter.KEYWORD_ONLY, default=None, annotation=kind))
    outputs = {parameter.name: output for parameter in own if (output := _metadata(parameter.annotation, Output))}
    if any(not output.resumes and output.kind != "new folder" for output in outputs.values()):
        panel = _panel(item for item in parameters if item.name in outputs)
        help = "Write to an existing file or a folder with other files, and replace files of the same name."
        option = typer.Option("--overwrite", help=help, rich_help_panel=panel)
        parameters.append(
            Parameter("overwrite", Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])
        )
    takes_context = any(parameter.name == "context" for parameter in own)
    if not takes_context:
        parameters.append(Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context))

    @wraps(command)
    def run(**values: Any) -> None:
        config, overwrite = values.pop("config"), values.pop("overwrite", False)
        context: Any = values["context"] if takes_context else values.pop("context")
        flags = {parameter.name: parameter.opts[0] for parameter in context.command.params}
        with rename_fields(flags, separator=" "), ExitStack() as stack:
            instances: dict[str, Options] = {}
            for parameter, (model, names, defaults) in models.items():
                # None and () are options that are not set.
                own_values = {name: value for name in names if (value := values.pop(name)) not in (None, ())}
                fields = {name: _value(model, name, value) for name, value in own_values.items()}
                instances[parameter] = model(**{**defaults, **fields})
            if os.environ.get("RANK", "0") == "0":
                read = {name: value for name, value in values.items() if name not in outputs}
                inputs = [*_paths([config, read, *map(dict, instances.values())])]
                for name, output in outputs.items():
                    if values[name] is not None:
                        words = context.command_path
                        # The name of the program depends on how it is started.
                        content = output.content or words.removeprefix(context.find_root().command_path).strip()
                        arguments = {"command": words, "inputs": inputs, "overwrite": overwrite}
                        stack.enter_context(lock_output(values[name], replace(output, content=content), **arguments))
            command(**values, **instances)

    parameters = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _metadata(annotation: Any, kind: type[T]) -> T | None:
    """Return the first metadata of a kind in an `Annotated` type."""
    return next((item for item in getattr(annotation, "__metadata__", ()) if isinstance(item, kind)), None)


def _annotated_type(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _panel(parameters: Iterable[Parameter]) -> str | None:
    """Return the heading in the help of the first option."""
    infos = (_metadata(parameter.annotation, OptionInfo) for parameter in parameters)
    return next((info.rich_help_panel for info in infos if info is not None), None)


def _paths(value: Any, key: str = "") -> Iterator[Path]:
    """Yield the files and folders among the values of options, which are text in NAME=FOLDER and similar."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _paths(item, name)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _paths(item, key)
    elif isinstance(value, Path) and key != "cache":
        yield value
    elif isinstance(value, str):
        _, equals, text = value.rpartition("=")
        # Path.is_file raises for text that is too long for a path.
        if os.path.isfile(text) or (equals and os.path.isdir(text)):  # noqa: PTH112, PTH113
            yield Path(text)


def _typer_parameter(model: type[Options], name: str, defaults: Mapping[str, Any]) -> Parameter:
    field, option = model.model_fields[name], option_of(model, name)
    kind, bounds = (option.cli_type, {}) if option.cli_type is not None else _typer_type(field)
    default = defaults[name] if name in defaults else field.get_default(call_default_factory=True)
    if field.is_required() and name not in defaults:
        default = Parameter.empty
    elif isinstance(default, tuple | Mapping):
        default = (",".join(default) if kind is str else list(default)) or None
    info = typer.Option(
        flag_of(model, name),
        help=option.help,
        metavar=option.metavar,
        rich_help_panel=option.panel or model.panel,
        **bounds,
    )
    if default is None:
        kind = kind | None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _typer_type(field: FieldInfo) -> tuple[Any, dict[str, Any]]:
    """Return the type that Typer reads for a field, and the bounds of its value."""
    annotation = value_type(field.annotation)
    kind, metadata = _annotated_type(annotation), [*field.metadata, *getattr(annotation, "__metadata__", ())]
    bounds: dict[str, Any] = {}
    step = 1 if kind is int else 0
    for item in metadata:
        for attribute, bound, offset in (("ge", "min", 0), ("gt", "min", step), ("le", "max", 0), ("lt", "max", -step)):
            if (value := getattr(item, attribute, None)) is not None:
                bounds[bound] = value + offset
    origin = get_origin(kind)
    if origin in (dict, Mapping):
        kind = list[str]
    elif origin is tuple and Ellipsis in get_args(kind):
        kind = list[get_args(kind)[0]]  # type: ignore[misc]
        if get_origin(get_args(kind)[0]) is Literal:  # of which Typer reads no list
            choices: Any = [(value, value) for value in get_args(get_args(kind)[0])]
            kind = list[StrEnum("Choice", choices)]  # type: ignore[misc]
    return kind, bounds


def _value(model: type[Options], name: str, value: Any) -> Any:
    """Return the value of a field from that of the command line."""
    annotation = model.model_fields[name].annotation
    if option_of(model, name).cli_type is None and get_origin(value_type(annotation)) in (dict, Mapping):
        return parse_key_values(value, flag_of(model, name))
    return value


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take the values of a file, by names of flags or arguments, as defaults; options of other commands are ignored."""
    if path is None or context.resilient_parsing:
        return path
    from radfact.io.yaml_files import read_yaml

    values = read_yaml(path)
    if not isinstance(values, dict):
        expected = "expected one option per line, such as 'judge: offline'"
        raise InputError(expected, code=ErrorCode.INVALID_FORMAT, file=path)
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
            value = [f"{name}={as_text(item)}" for name, item in value.items()]
        value = [as_text(item) for item in (value if isinstance(value, list) else [value])]
    elif isinstance(value, list):
        value = ",".join(map(as_text, value))
    elif isinstance(value, dict):
        raise InputError("expected one value, found a mapping", file=path, field=key)
    elif value is None:
        raise InputError("expected a value, found none; delete the name", file=path, field=key)
    elif not isinstance(value, bool):
        value = as_text(value)
    try:
        parameter.process_value(context, value)
    except typer.BadParameter as error:
        message = error.message.removeprefix("Value error, ").rstrip(".")
        raise InputError(f"{message:.200}", file=path, field=key) from None
    return value
