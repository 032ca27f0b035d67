"""Options that several commands share, and what becomes of them: the judge, the splitter, prices."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from radfact.cli.config import read_config
from radfact.errors import InputError

if TYPE_CHECKING:
    from radfact.judges import Judge, Splitter

INPUT, JUDGE, FIGURES, OUTPUT = "Input", "Judge", "Figures", "Output"


class Missing(StrEnum):
    """What becomes of a reference without a candidate."""

    REFUSE = "refuse"
    SKIP = "skip"
    EMPTY = "empty"


class AnswerFormat(StrEnum):
    """How a model writes its answer."""

    YAML = "yaml"
    SCHEMA = "schema"


class Batch(StrEnum):
    """What one call to a model asks."""

    SENTENCE = "sentence"
    REPORT = "report"


class CompatMode(StrEnum):
    """How regions are compared."""

    PAPER = "paper"
    EXACT = "exact"


class OnFailureMode(StrEnum):
    """What becomes of a sample with a failed judgment."""

    DROP = "drop"
    NOT_ENTAILED = "not-entailed"
    STOP = "stop"


class Engine(StrEnum):
    """Where the judging runs."""

    LOCAL = "local"
    RAY = "ray"


PairsArgument = Annotated[Path | None, typer.Argument(help="Pairs: grounded (.json) or narrative (.csv).")]
Candidates = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Drafts (.jsonl) or COCO (.json); goes with --references.", rich_help_panel=INPUT
    ),
]
References = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Manifest (.jsonl) with the reference reports, or COCO (.json).", rich_help_panel=INPUT
    ),
]
MissingOption = Annotated[
    Missing,
    typer.Option(
        help="A reference without a candidate: refuse it, leave it out and list it, or take an empty report.",
        rich_help_panel=INPUT,
    ),
]
NarrativeOption = Annotated[
    bool | None,
    typer.Option(
        "--narrative/--grounded",
        help="Split every report anew and ignore its regions / insist on sentences. Default: as the file has it.",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
JudgeName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Who judges: offline, PROVIDER:MODEL, vllm:PATH or python:MODULE:OBJECT. No default; RADFACT_JUDGE in the "
        "environment names one too.",
        rich_help_panel=JUDGE,
    ),
]
JudgeArgs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="One more argument of the judge's model, such as reasoning_effort=low; may be repeated.",
        rich_help_panel=JUDGE,
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Address of an OpenAI-compatible server.", rich_help_panel=JUDGE),
]
FewShots = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Worked examples of judging in the published layout, instead of our own; or none.",
        rich_help_panel=JUDGE,
    ),
]
System = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="System message, instead of the paper's.", rich_help_panel=JUDGE),
]
Format = Annotated[
    AnswerFormat,
    typer.Option(
        "--format",
        help="How a model answers: YAML as in the paper, or JSON that the server holds to a schema.",
        rich_help_panel=JUDGE,
    ),
]
BatchOption = Annotated[
    Batch,
    typer.Option(help="Ask a model one sentence a call, as in the paper, or a whole report.", rich_help_panel=JUDGE),
]
Concurrency = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Calls in flight to a model.", rich_help_panel=JUDGE),
]
SplitterName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Who splits narratives into sentences: offline or a model. Default: the judge.",
        rich_help_panel=JUDGE,
    ),
]
SplitterArgs = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="As --judge-arg, for the splitter.", rich_help_panel=JUDGE),
]
SplitterFewShots = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Worked examples of splitting, published layout.", rich_help_panel=JUDGE),
]
EngineOption = Annotated[
    Engine,
    typer.Option(
        help="local: this process; ray: a Ray cluster, each worker with a judge in its process.", rich_help_panel=JUDGE
    ),
]
CompatOption = Annotated[
    CompatMode,
    typer.Option(
        help="RadFact: paper: as the published implementation computes; exact: without its resolution.",
        rich_help_panel=FIGURES,
    ),
]
Threshold = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        metavar="SHARE",
        help="RadFact: share of a region that its evidence must cover.",
        rich_help_panel=FIGURES,
    ),
]
OnFailureOption = Annotated[
    OnFailureMode,
    typer.Option(
        help="RadFact: a sample with a query without a valid response: exclude it, count the sentence as not entailed "
        "(as published), or stop.",
        rich_help_panel=FIGURES,
    ),
]
Bootstrap = Annotated[
    int, typer.Option(min=0, metavar="N", help="Bootstrap replicates; 0 for none.", rich_help_panel=FIGURES)
]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the bootstrap.", rich_help_panel=FIGURES)]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Results folder.", rich_help_panel=OUTPUT)]
CacheFolder = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Where the answers of a model are kept; runs on one machine may share it. Default: cache/ in the results.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
PriceOption = Annotated[
    str | None,
    typer.Option(
        "--price", metavar="IN,OUT", help="Price of a million tokens in and out: shows the cost.", rich_help_panel=JUDGE
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="YAML file of these options by name (compat: exact). The command line goes first.",
        is_eager=True,
        callback=read_config,
        rich_help_panel=INPUT,
    ),
]
Manifest = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Manifest with the images for the page.", rich_help_panel=OUTPUT),
]
Notes = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="A sentence for the page's banner; may be repeated.", rich_help_panel=OUTPUT),
]
Unscored = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Drafts without a reference, shown on the page and in no figure. Default: those among the candidates.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]


class ImagePlace(StrEnum):
    """Where the images of a page are."""

    INSIDE = "inside"
    BESIDE = "beside"


Images = Annotated[
    ImagePlace | None,
    typer.Option(
        "--images",
        help="Images inside the page, one file to pass on, or in report_images/ beside it, quick to open. Default: "
        "inside up to 200 studies.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]


@dataclass(frozen=True)
class JudgeOptions:
    """The judge as the user named it, and where it works."""

    judge: str | None
    judge_arg: Sequence[str] | None = None
    base_url: str | None = None
    few_shots: Path | None = None
    system: Path | None = None
    answer_format: AnswerFormat = AnswerFormat.YAML
    batch: Batch = Batch.SENTENCE
    concurrency: int | None = None
    engine: Engine = Engine.LOCAL
    workers: int | None = None

    @property
    def named(self) -> str | None:
        """The judge's name, if there is one anywhere."""
        return self.judge or os.environ.get("RADFACT_JUDGE") or None

    @property
    def name(self) -> str:
        """The judge's name: from the command line or the configuration file, or else from the environment.

        Raises:
            InputError: there is none anywhere.
        """
        if name := self.named:
            return name
        raise InputError(
            "no judge is named: give --judge offline or --judge PROVIDER:MODEL (for example openai:MODEL), "
            "name one in a --config file, or set RADFACT_JUDGE"
        )

    @property
    def arguments(self) -> dict[str, str]:
        """`--judge-arg` by name."""
        return key_values(self.judge_arg, "--judge-arg")

    def load(self, cache: Path | None) -> Judge:
        """The judge, its answers kept under `cache`."""
        from radfact.judges import load_judge

        if self.workers is not None and self.engine is not Engine.RAY:
            raise InputError("--workers goes with --engine ray")
        options: dict[str, Any] = {
            "base_url": self.base_url,
            "judge_args": self.arguments,
            "few_shots": self.few_shots,
            "system": self.system,
            "answer_format": self.answer_format.value,
            "batch": self.batch.value,
            "concurrency": self.concurrency,
        }
        with naming_options():
            if self.engine is Engine.RAY:
                from radfact.judges.ray import load_ray_judge

                return load_ray_judge(self.name, workers=self.workers, cache=cache, **options)
            return load_judge(self.name, cache=cache, **options)

    def load_splitter(
        self,
        judge: Judge,
        name: str | None,
        arguments: Sequence[str] | None = None,
        few_shots: Path | None = None,
        cache: Path | None = None,
    ) -> Splitter:
        """Who splits narratives: whoever is named, or whoever splits beside the judge, as in Python.

        Args:
            judge: what `load` gave.
            name: `--splitter`.
            arguments: `--splitter-arg`.
            few_shots: `--splitter-few-shots`.
            cache: folder for the answers of a model.

        Raises:
            InputError: there is no such splitter, or an option does not fit it.
        """
        from radfact.judges import load_splitter
        from radfact.judges.protocol import SplittingJudge

        make_own = judge.make_splitter if isinstance(judge, SplittingJudge) else None
        name = name or (self.name if make_own else "offline")
        same = name == self.name
        is_model = name != "offline"
        # A model that also judges is reached where the judge is; another one stands elsewhere.
        options: dict[str, Any] = {
            "base_url": self.base_url if same and is_model else None,
            "splitter_args": (self.arguments if same else {}) | key_values(arguments, "--splitter-arg"),
            "few_shots": few_shots,
            "concurrency": self.concurrency if is_model else None,
        }
        with naming_options(judge_args="--splitter-arg", few_shots="--splitter-few-shots", judge="--splitter"):
            given = "splitter_args" if arguments else "few_shots" if few_shots is not None else None
            if same and make_own and given is None:
                return make_own()
            if same and make_own and name.startswith("python:"):
                raise InputError("the judge's own splitter takes no arguments; name another --splitter", field=given)
            if self.engine is Engine.RAY:
                from radfact.judges.ray import load_ray_splitter

                return load_ray_splitter(name, workers=self.workers, cache=cache, **options)
            return load_splitter(name, cache=cache, **options)


def key_values(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """Repeated KEY=VALUE options by key.

    Raises:
        InputError: one is not KEY=VALUE, or a key stands twice.
    """
    arguments: dict[str, str] = {}
    for one in given or ():
        key, equals, value = one.partition("=")
        if not (key and equals):
            raise InputError(f"{option}: expected KEY=VALUE, found '{one}'")
        if key in arguments:
            raise InputError(f"{option}: '{key}' is given twice")
        arguments[key] = value
    return arguments


@contextmanager
def naming_options(**names: str) -> Iterator[None]:
    """Faults of the library's arguments under the names of the options that they came from.

    Args:
        names: options by argument where they differ from the argument's own name.
    """
    names = {"judge_args": "--judge-arg", "splitter_args": "--splitter-arg", "answer_format": "--format", **names}
    try:
        yield
    except InputError as error:
        if error.file is not None or error.field is None or error.field.startswith("--"):
            raise
        argument, _, inner = error.field.partition(".")
        option = names.get(argument, f"--{argument.replace('_', '-')}")
        raise InputError(error.message, code=error.code, field=f"{option} {inner}".strip()) from None
