"""Options that several commands share, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maira.generate.engine import EngineOptions
from radfact.cli.options import key_values, naming_options
from radfact.errors import InputError
from radfact.llm.loading import parse_model_args

if TYPE_CHECKING:
    from data.manifest import Failure
    from data.study import Study
    from maira.model.task_examples import Input


class Task(StrEnum):
    """What the model writes."""

    FINDINGS = "findings"
    GROUNDED = "grounded"


class Preset(StrEnum):
    """Wording of the prompts."""

    RELEASE = "release"
    PAPER = "paper"


class Cache(StrEnum):
    """Keys and values of the transformers engine."""

    DYNAMIC = "dynamic"
    STATIC = "static"


class Engine(StrEnum):
    """What runs the model."""

    TRANSFORMERS = "transformers"
    VLLM = "vllm"
    RAY = "ray"


class WorkerEngine(StrEnum):
    """What runs the model in a worker of a cluster."""

    TRANSFORMERS = "transformers"
    VLLM = "vllm"


ENGINE = "Engine"

OutFolder = Annotated[Path, typer.Option(help="Folder to write.")]
Manifest = Annotated[Path, typer.Option(help="manifest.jsonl of the studies.")]
Checkpoint = Annotated[
    Path, typer.Option(help="Folder with model and processor: ours, or MAIRA-2 as released or as of transformers 5.")
]
TaskOption = Annotated[Task, typer.Option("--task", help="A narrative of the findings, or a grounded report.")]
PresetOption = Annotated[
    Preset, typer.Option("--preset", help="Wording of the prompts: of the released model, or of the paper.")
]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        metavar="INPUTS",
        help="What the model is not shown, joined by +: prior, lateral, technique, comparison, indication.",
    ),
]
Subset = Annotated[
    str,
    typer.Option(
        metavar="all|with-input|INPUTS",
        help="Studies: all, those with every input that is dropped, or those with the inputs named here, such as prior "
        "(D.9) or lateral (D.10).",
    ),
]
JudgeName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Who scores the drafts, as --judge of radfact score; RADFACT_JUDGE names one too."
    ),
]
ScoreConfig = Annotated[
    Path | None, typer.Option(help="YAML file of other options of radfact score and radfact evaluate.")
]
Metrics = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Figures beside RadFact's, as --metrics of radfact evaluate. Default: those of the paper's tables, as far "
        "as there is what they need.",
    ),
]
Weights = Annotated[
    list[str] | None,
    typer.Option(metavar="[NAME=]FOLDER", help="Weights of metrics, as --weights of radfact evaluate."),
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(help="Most tokens of an answer (default: the task's, 150 to 450).", min=1),
]
EngineOption = Annotated[
    Engine,
    typer.Option(
        "--engine",
        help="What runs the model: transformers (under accelerate launch on several GPUs), vLLM, or a Ray cluster.",
        rich_help_panel=ENGINE,
    ),
]
Batch = Annotated[
    int | None,
    typer.Option(help="Most questions at a time (default: as memory allows).", min=1, rich_help_panel=ENGINE),
]
Device = Annotated[
    str | None,
    typer.Option(
        help="cpu, cuda or cuda:1, for the transformers engine (default: a GPU, if any).", rich_help_panel=ENGINE
    ),
]
CacheOption = Annotated[
    Cache,
    typer.Option(
        "--cache",
        help="Keys and values of the transformers engine; static compiles the decoding step on a GPU.",
        rich_help_panel=ENGINE,
    ),
]
EngineArgs = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-arg",
        metavar="NAME=VALUE",
        help="One more argument of vLLM's engine, such as tensor_parallel_size=2; may be repeated.",
        rich_help_panel=ENGINE,
    ),
]
LanguageModel = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the language model as vLLM reads it, made once (default: in the user's cache).",
        rich_help_panel=ENGINE,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Workers of --engine ray (default: one for each GPU, or for each CPU).", min=1, rich_help_panel=ENGINE
    ),
]
WorkerEngineOption = Annotated[
    WorkerEngine, typer.Option(help="What runs the model in each worker of --engine ray.", rich_help_panel=ENGINE)
]
Free = Annotated[
    bool, typer.Option("--free", help="No grammar and no repetition guard: what the model writes, as released.")
]


def parse_dropped_inputs(drop: Sequence[str] | None) -> tuple[Input, ...]:
    """The inputs that a run is to leave out.

    Raises:
        InputError: the option was given twice, or an input is not known.
    """
    from maira.model.task_examples import parse_inputs

    if drop and len(drop) > 1:
        raise InputError(f"a run has one --drop; join them: --drop {'+'.join(drop)}")
    return parse_inputs(drop[0]) if drop else ()


def engine_options(
    engine: Engine,
    free: bool,
    batch: int | None,
    device: str | None,
    cache: Cache,
    workers: int | None,
    worker_engine: WorkerEngine,
    language_model: Path | None,
    engine_arg: Sequence[str] | None,
) -> EngineOptions:
    """The options of an engine, as the commands that ask a model take them.

    Raises:
        InputError: an option is for another engine, or an engine argument is not NAME=VALUE.
    """
    is_ray, is_vllm = engine is Engine.RAY, Engine.VLLM.value in (engine.value, worker_engine.value)
    for option, is_given, has_use, engines in (
        ("--workers", workers is not None, is_ray, "--engine ray"),
        ("--worker-engine", worker_engine is not WorkerEngine.TRANSFORMERS, is_ray, "--engine ray"),
        ("--language-model", language_model is not None, is_vllm, "--engine vllm or --worker-engine vllm"),
        ("--engine-arg", bool(engine_arg), is_vllm, "--engine vllm or --worker-engine vllm"),
        ("--cache static", cache is Cache.STATIC, not is_vllm, "the transformers engine"),
    ):
        if is_given and not has_use:
            raise InputError(f"{option} goes with {engines}")
    with naming_options(engine_args="--engine-arg"):
        return EngineOptions(
            free=free,
            batch_size=batch,
            device=device,
            cache=cache.value,
            workers=workers,
            worker_engine=worker_engine.value,
            language_model=language_model,
            arguments=parse_model_args(key_values(engine_arg, "--engine-arg"), field="engine_args"),
        )


def read_studies(manifest: Path, split: str | None = None) -> tuple[list[Study], list[Failure]]:
    """The studies of a manifest, and the samples that are none because they have no frontal image.

    Args:
        manifest: to read.
        split: only the studies of this split; samples without a frontal image are not known by theirs.

    Raises:
        InputError: the manifest cannot be read, is empty, or has no study of the split.
    """
    from data.manifest import read_manifest

    left_out: list[Failure] = []
    studies = read_manifest(manifest, left_out)
    if not studies and not left_out:
        raise InputError("has no studies", file=manifest)
    if split is not None:
        studies, left_out = [study for study in studies if study.split == split], []
        if not studies:
            raise InputError(f"has no study of the split '{split}'", file=manifest, field="split")
    return studies, left_out
