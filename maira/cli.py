"""The command `maira`: a thin layer over the library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from maira.generate.processes import is_main, process_count, run_together
from radfact.command import run_command
from radfact.errors import ExitCode, InputError
from radfact.live import LiveDisplay

if TYPE_CHECKING:
    from maira.evaluate.grounding import BoxRun
    from maira.evaluate.labels import Figure
    from radfact.stats import Summary

MANUAL = "\n".join(
    (
        "Grounded radiology reports from chest X-rays: prepare studies, train, generate drafts, compare boxes.",
        "",
        "[bold]Examples[/bold]",
        "  maira prepare dicom film.dcm --out film",
        "  maira prepare phantom --count 24 --seed 3 --out phantoms",
        "  maira generate --checkpoint checkpoints/phantom",
        "      --manifest phantoms/manifest.jsonl --out drafts.jsonl",
        "  radfact score --candidates drafts.jsonl",
        "      --references phantoms/manifest.jsonl --judge offline --out results",
        "  maira evaluate inputs --checkpoint checkpoints/phantom",
        "      --manifest phantoms/manifest.jsonl --task grounded",
        "      --drop prior+comparison --drop prior --judge offline --out inputs",
        "  maira ground --checkpoint maira-2 --manifest ms-cxr.jsonl --out grounded.jsonl",
        "  maira boxes --checkpoint maira-2 --manifest gr-bench.jsonl --out boxes.jsonl",
        "  maira train configs/phantom.yaml passes=1000",
        "  maira convert maira-2 --to own --out maira-2-own",
        "  maira assemble --encoder rad-dino --language-model vicuna-7b-v1.5 --out fresh",
        "",
        "[bold]Exit codes[/bold]",
        "  0 done; 1 the run failed; 2 wrong input or options;",
        "  3 done, with samples left out and listed in failures.jsonl",
    )
)

app = typer.Typer(
    help=MANUAL,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
prepare = typer.Typer(help="Turn a source of studies into a manifest and PNG files.", no_args_is_help=True)
evaluate = typer.Typer(
    help="Evaluate what the inputs are worth, or drafts of phantoms by their own labels.", no_args_is_help=True
)
app.add_typer(prepare, name="prepare")
app.add_typer(evaluate, name="evaluate")


class _Task(StrEnum):
    FINDINGS = "findings"
    GROUNDED = "grounded"


class _Preset(StrEnum):
    RELEASE = "release"
    PAPER = "paper"


class _Layout(StrEnum):
    RELEASED = "released"
    TRANSFORMERS5 = "transformers5"
    OWN = "own"


class _Dtype(StrEnum):
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class _Cache(StrEnum):
    DYNAMIC = "dynamic"
    STATIC = "static"


class _Engine(StrEnum):
    TRANSFORMERS = "transformers"
    VLLM = "vllm"
    RAY = "ray"


class _WorkerEngine(StrEnum):
    TRANSFORMERS = "transformers"
    VLLM = "vllm"


_WINDOW = 300.0
"""Seconds over which the rate of a run is taken: answers come in batches, which may take minutes."""

_OutFolder = Annotated[Path, typer.Option(help="Folder to write.")]
_Manifest = Annotated[Path, typer.Option(help="manifest.jsonl of the studies.")]
_Checkpoint = Annotated[Path, typer.Option(help="Folder with model and processor.")]
_PresetOption = Annotated[_Preset, typer.Option("--preset", help="Wording of the prompt.")]
_MaxNewTokens = Annotated[int | None, typer.Option(help="Most tokens of an answer (default: by task).", min=1)]
_EngineOption = Annotated[_Engine, typer.Option("--engine", help="What runs the model.")]
_Batch = Annotated[int | None, typer.Option(help="Most studies at a time (default: as memory allows).", min=1)]
_Device = Annotated[
    str | None, typer.Option(help="cpu, cuda or cuda:1, for the transformers engine (default: a GPU, if any).")
]
_CacheOption = Annotated[
    _Cache,
    typer.Option(
        "--cache", help="Keys and values of the transformers engine; static compiles the decoding step on a GPU."
    ),
]
_EngineArgs = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-arg",
        metavar="NAME=VALUE",
        help="One more argument of vLLM's engine, such as tensor_parallel_size=2; may be repeated.",
    ),
]
_LanguageModel = Annotated[
    Path | None,
    typer.Option(help="Folder for the language model as vLLM reads it, made once (default: in the user's cache)."),
]
_Workers = Annotated[
    int | None, typer.Option(help="Workers of --engine ray (default: one for each GPU, or for each CPU).", min=1)
]
_WorkerEngineOption = Annotated[_WorkerEngine, typer.Option(help="What runs the model in each worker of --engine ray.")]
_Free = Annotated[
    bool, typer.Option("--free", help="No grammar and no repetition guard: what the model writes, as released.")
]


@prepare.command("dicom")
def prepare_dicom(
    files: Annotated[list[Path], typer.Argument(help="DICOM files, each a frontal film.")],
    out: _OutFolder,
    size: Annotated[int, typer.Option(help="Pixels of the shorter side.")] = 518,
) -> None:
    """Convert radiographs to 8 bit PNG (paper B.4), with a manifest of one study a film."""
    from data.dicom import dicom_to_png
    from data.manifest import Failure, write_failures, write_manifest
    from data.study import Study

    studies, failures = [], []
    names = [path.stem for path in files]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"two films would become the sample '{twice}'; rename one of the files")
    for path in files:
        # Relative to the manifest's folder, as the manifest writes it.
        frontal = Path("frontal") / f"{path.stem}.png"
        try:
            dicom_to_png(path, out / frontal, size)
            studies.append(Study(sample_id=path.stem, frontal=frontal, source="dicom"))
        except InputError as error:
            if len(files) == 1:
                raise
            failures.append(Failure(source=str(path), stage="dicom", reason=str(error)))
    write_manifest(out / "manifest.jsonl", studies)
    console = Console()
    if failures:
        write_failures(out / "failures.jsonl", failures)
    _say(console, f"{len(studies)} of {len(files)} films converted: {out / 'manifest.jsonl'}")
    _end(console, [(str(f.source), f.reason) for f in failures])


@prepare.command("phantom")
def prepare_phantom(
    out: _OutFolder,
    count: Annotated[int, typer.Option(help="Number of studies.")] = 24,
    seed: Annotated[int, typer.Option(help="Series of studies; different seeds share none.")] = 3,
    size: Annotated[int, typer.Option(help="Pixels of the films' shorter side.")] = 518,
    split: Annotated[str, typer.Option(help="Name of the split in the manifest.")] = "test",
    workers: Annotated[int, typer.Option(help="Processes.", min=1)] = 1,
) -> None:
    """Make phantom studies: synthetic films with true boxes, labels and reports."""
    from data.phantoms import write_phantoms

    with _progress("making phantoms") as on_progress:
        for done, _ in enumerate(write_phantoms(out, count, seed=seed, size=size, split=split, workers=workers), 1):
            on_progress(done, count)
    _say(Console(), f"{count} phantom studies of series {seed}: {out / 'manifest.jsonl'}")


@app.command()
def train(
    recipe: Annotated[Path, typer.Argument(help="Recipe (YAML).")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, instead of the recipe's.")] = None,
) -> None:
    """Train a model by a recipe; the same command goes on where an interrupted run stopped."""
    from maira.train.loop import train as run
    from maira.train.recipe import read_recipe

    console = Console()
    _say(console, f"checkpoint: {run(read_recipe(recipe, overrides), console)}")


@app.command()
def generate(
    checkpoint: _Checkpoint,
    manifest: _Manifest,
    out: Annotated[Path, typer.Option(help="Drafts to write (.jsonl).")],
    task: Annotated[_Task, typer.Option(help="Narrative findings or a grounded report.")] = _Task.GROUNDED,
    preset: _PresetOption = _Preset.RELEASE,
    drop: Annotated[
        str | None, typer.Option(metavar="INPUTS", help="What the model is not shown, such as prior+comparison.")
    ] = None,
    max_new_tokens: _MaxNewTokens = None,
    engine: _EngineOption = _Engine.TRANSFORMERS,
    batch: _Batch = None,
    device: _Device = None,
    cache: _CacheOption = _Cache.DYNAMIC,
    language_model: _LanguageModel = None,
    engine_arg: _EngineArgs = None,
    workers: _Workers = None,
    worker_engine: _WorkerEngineOption = _WorkerEngine.TRANSFORMERS,
    free: _Free = False,
) -> None:
    """Draft a report for every study; the same command goes on where an interrupted run stopped.

    On several GPUs: accelerate launch -m maira generate ..., or torchrun; all machines must see the files.
    """
    from data.manifest import Failure, read_manifest
    from maira.examples import PRIOR_REPORT_UNUSED, has_unused_prior_report
    from maira.generate.drafts import generate_drafts
    from maira.generate.request import EngineOptions
    from maira.inputs import drop_inputs, parse_inputs

    dropped = parse_inputs(drop) if drop is not None else ()
    left_out: list[Failure] = []
    studies = read_manifest(manifest, left_out)
    with _answering("drafting") as on_progress:
        drafted, failures = generate_drafts(
            studies,
            checkpoint,
            out,
            task=task.value,
            preset=preset.value,
            drop=dropped,
            max_new_tokens=max_new_tokens,
            engine=engine.value,
            options=EngineOptions(
                free=free,
                batch_size=batch,
                device=device,
                cache=cache.value,
                workers=workers,
                worker_engine=worker_engine.value,
                **_for_vllm(language_model, engine_arg),
            ),
            failures=left_out,
            on_progress=on_progress,
        )
    console = Console()
    if unused := sum(has_unused_prior_report(drop_inputs(study, dropped)) for study in studies):
        _say(console, f"{unused} of {len(studies)} studies: {PRIOR_REPORT_UNUSED}")
    _say(console, f"{drafted} of {len(studies) + len(left_out)} studies drafted: {out}")
    _end(console, [(str(f.sample_id), f.reason) for f in failures])


@app.command()
def ground(
    checkpoint: _Checkpoint,
    manifest: _Manifest,
    out: Annotated[Path, typer.Option(help="Located phrases to write (.jsonl).")],
    phrases: Annotated[
        Path | None,
        typer.Option(help="sample_id,phrase as .csv, or .jsonl with boxes too (default: the manifest's phrases)."),
    ] = None,
    preset: _PresetOption = _Preset.RELEASE,
    max_new_tokens: _MaxNewTokens = None,
    engine: _EngineOption = _Engine.TRANSFORMERS,
    batch: _Batch = None,
    device: _Device = None,
    cache: _CacheOption = _Cache.DYNAMIC,
    language_model: _LanguageModel = None,
    engine_arg: _EngineArgs = None,
    workers: _Workers = None,
    worker_engine: _WorkerEngineOption = _WorkerEngine.TRANSFORMERS,
    free: _Free = False,
) -> None:
    """Locate phrases on frontal images (phrase grounding), and compare with their boxes where these are known."""
    from data.manifest import Failure, read_manifest
    from maira.evaluate.grounding import BoxSettings, ground_phrases
    from maira.evaluate.phrases import manifest_phrases, read_phrases
    from maira.generate.request import EngineOptions

    left_out: list[Failure] = []
    studies = read_manifest(manifest, left_out)
    if phrases is None:
        asked = manifest_phrases(studies)
    else:
        asked = read_phrases(phrases, [*(s.sample_id for s in studies), *(str(f.sample_id) for f in left_out)])
        left_out = [failure for failure in left_out if failure.sample_id in {phrase.sample_id for phrase in asked}]
    options = EngineOptions(
        free=free,
        batch_size=batch,
        device=device,
        cache=cache.value,
        workers=workers,
        worker_engine=worker_engine.value,
        **_for_vllm(language_model, engine_arg),
    )
    settings = BoxSettings(preset.value, max_new_tokens, engine.value, options)
    with _answering("locating") as on_progress:
        run = ground_phrases(studies, asked, checkpoint, out, settings, failures=left_out, on_progress=on_progress)
    _show_boxes("Phrase grounding", f"{run.answered} of {run.asked} phrases located: {out}", run)


@app.command()
def boxes(
    checkpoint: _Checkpoint,
    manifest: _Manifest,
    out: Annotated[Path, typer.Option(help="Completed sentences to write (.jsonl).")],
    preset: _PresetOption = _Preset.RELEASE,
    max_new_tokens: _MaxNewTokens = None,
    engine: _EngineOption = _Engine.TRANSFORMERS,
    batch: _Batch = None,
    device: _Device = None,
    cache: _CacheOption = _Cache.DYNAMIC,
    language_model: _LanguageModel = None,
    engine_arg: _EngineArgs = None,
    workers: _Workers = None,
    worker_engine: _WorkerEngineOption = _WorkerEngine.TRANSFORMERS,
    free: _Free = False,
) -> None:
    """Complete the boxes of the reference reports' sentences (box completion), and compare with the references."""
    from data.manifest import Failure, read_manifest
    from maira.evaluate.grounding import BoxSettings, complete_boxes, has_reference_boxes
    from maira.examples import PRIOR_REPORT_UNUSED, has_unused_prior_report
    from maira.generate.request import EngineOptions

    left_out: list[Failure] = []
    studies = read_manifest(manifest, left_out)
    options = EngineOptions(
        free=free,
        batch_size=batch,
        device=device,
        cache=cache.value,
        workers=workers,
        worker_engine=worker_engine.value,
        **_for_vllm(language_model, engine_arg),
    )
    settings = BoxSettings(preset.value, max_new_tokens, engine.value, options)
    with _answering("completing") as on_progress:
        run = complete_boxes(studies, checkpoint, out, settings, failures=left_out, on_progress=on_progress)
    console = Console()
    if unused := sum(has_reference_boxes(study) and has_unused_prior_report(study) for study in studies):
        _say(console, f"{unused} of {len(studies)} studies: {PRIOR_REPORT_UNUSED}")
    if without := sum(not has_reference_boxes(study) for study in studies):
        _say(console, f"{without} of {len(studies)} studies have no sentence with boxes and are not asked")
    _show_boxes("Box completion", f"boxes of {run.answered} of {run.asked} sentences completed: {out}", run)


@app.command()
def convert(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a MAIRA-2, in any of the layouts.")],
    out: _OutFolder,
    to: Annotated[_Layout, typer.Option(help="Layout to write.")] = _Layout.OWN,
    shard_size: Annotated[str, typer.Option(help="Largest size of a file.")] = "5GB",
) -> None:
    """Write a checkpoint in another layout, every byte of its tensors kept."""
    from maira.convert import convert as run

    with _progress("writing files") as on_progress:
        written = run(checkpoint, out, to.value, shard_size=shard_size, on_progress=on_progress)
    _say(Console(), f"{written} tensors in the layout '{to.value}': {out}")


@app.command()
def assemble(
    encoder: Annotated[Path, typer.Option(help="RAD-DINO: Hugging Face's folder, or DINOv2's state dict.")],
    language_model: Annotated[Path, typer.Option(help="Folder of a Llama with its tokenizer, such as Vicuna.")],
    out: _OutFolder,
    seed: Annotated[int, typer.Option(help="Of the adapter's weights.")] = 0,
    dtype: Annotated[_Dtype, typer.Option(help="Type of all weights.")] = _Dtype.FLOAT32,
    rope_factor: Annotated[float, typer.Option(help="Linear scaling of the rotary embedding.", min=1)] = 1.5,
) -> None:
    """Make a fresh model from a published encoder and language model, ready to train."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    from maira.assemble import assemble as run

    disable_progress_bar()
    config = run(encoder, language_model, out, seed=seed, dtype=getattr(torch, dtype.value), rope_factor=rope_factor)
    _say(Console(), f"a model of {config.text_config.vocab_size} tokens, {config.image_seq_length} an image: {out}")


@evaluate.command("labels")
def evaluate_by_labels(
    drafts: Annotated[Path, typer.Argument(help="Grounded drafts of phantoms (.jsonl).")],
    manifest: _Manifest,
    out: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
) -> None:
    """F1 over findings (kind and side) and IoU of matched boxes, without any judge."""
    from data.manifest import read_manifest
    from maira.evaluate.labels import evaluate_labels
    from radfact.files import read_drafts

    figures = evaluate_labels(read_drafts(drafts), read_manifest(manifest))
    _show_figures(Console(), "Findings by the generator's labels", figures)
    if out is not None:
        from dataclasses import asdict

        from radfact.jsonl import write_json

        write_json(out, {"figures": {name: asdict(figure) for name, figure in figures.items()}})


@evaluate.command("baseline")
def write_baseline(
    manifest: _Manifest,
    out: Annotated[Path, typer.Option(help="Drafts to write (.jsonl).")],
) -> None:
    """Drafts that ignore the images: for every study the report whose findings are the most frequent."""
    from data.manifest import read_manifest
    from maira.evaluate.labels import most_frequent_report
    from radfact.jsonl import write_jsonl

    studies = read_manifest(manifest)
    report = most_frequent_report(studies)
    write_jsonl(out, ({"sample_id": study.sample_id, **report, "model": "most frequent report"} for study in studies))
    _say(Console(), f"{len(studies)} times the most frequent report: {out}")


@evaluate.command("inputs")
def evaluate_by_inputs(
    checkpoint: _Checkpoint,
    manifest: _Manifest,
    out: _OutFolder,
    drop: Annotated[
        list[str] | None,
        typer.Option(metavar="INPUTS", help="One run without these, such as prior+comparison; may be repeated."),
    ] = None,
    task: Annotated[_Task, typer.Option(help="Narrative findings or a grounded report.")] = _Task.FINDINGS,
    subset: Annotated[
        str,
        typer.Option(metavar="all|with-input|INPUTS", help="Studies: all, those with every dropped input, or these."),
    ] = "all",
    judge: Annotated[
        str | None, typer.Option(metavar="NAME", help="As --judge of radfact score; RADFACT_JUDGE names one too.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of other options of radfact score.")] = None,
    preset: _PresetOption = _Preset.RELEASE,
    max_new_tokens: _MaxNewTokens = None,
    engine: _EngineOption = _Engine.TRANSFORMERS,
    batch: _Batch = None,
    device: _Device = None,
    cache: _CacheOption = _Cache.DYNAMIC,
    language_model: _LanguageModel = None,
    engine_arg: _EngineArgs = None,
    workers: _Workers = None,
    worker_engine: _WorkerEngineOption = _WorkerEngine.TRANSFORMERS,
    free: _Free = False,
) -> None:
    """What inputs are worth: reports with all of them and without some, scored and set side by side (paper, D.6)."""
    from data.manifest import Failure, read_manifest, write_manifest
    from maira.evaluate.input_table import compare_runs, footnotes, lines_of, write_table
    from maira.evaluate.inputs import Scorer, input_runs, select_studies
    from maira.generate.drafts import generate_drafts
    from maira.generate.request import EngineOptions
    from radfact.cli.inputs import check_folder

    console = Console()
    check_folder(out)
    left_out: list[Failure] = []
    runs = input_runs(out, drop or ())
    selection = select_studies(read_manifest(manifest, left_out), task.value, subset, runs)
    _say(console, selection.in_words)
    references = out / "manifest.jsonl"
    options = EngineOptions(
        free=free,
        batch_size=batch,
        device=device,
        cache=cache.value,
        workers=workers,
        worker_engine=worker_engine.value,
        **_for_vllm(language_model, engine_arg),
    )
    scorers = [Scorer(run, references, out / "cache", judge, config) for run in runs]
    failed: list[tuple[str, str]] = []
    for run in runs:
        with _answering(f"drafting {run.name}") as on_progress:
            _, failures = generate_drafts(
                selection.studies,
                checkpoint,
                run.drafts,
                task=task.value,
                preset=preset.value,
                drop=run.dropped,
                max_new_tokens=max_new_tokens,
                engine=engine.value,
                options=options,
                failures=left_out,
                on_progress=on_progress,
            )
        failed += [(f"{run.name}: {failure.sample_id}", failure.reason) for failure in failures]
    if not is_main():
        return  # drafting is shared, scoring is not
    write_manifest(references, selection.studies)
    for run, scorer in zip(runs, scorers, strict=True):
        _say(console, f"Scoring {run.name}")
        failed += [(f"{run.name}: {key}", reason) for key, reason in scorer.score()]
    table = compare_runs(runs, selection.references, [selection.in_words])
    write_table(table, out, {"task": task.value, "subset": subset})
    heads, values, gaps = lines_of(table)
    _show_lines(console, "Reports without some inputs", heads, values)
    _show_lines(console, f"Differences to {heads[1]}", [heads[0], *heads[2:]], gaps)
    for note in footnotes(table):
        _say(console, note)
    _say(console, f"tables: {out / 'table.md'}")
    _end(console, failed)


def main() -> None:
    """Entry point of the command."""
    run_command(lambda: run_together(app), "maira")


@contextmanager
def _answering(title: str) -> Iterator[Callable[[int, int], None]]:
    """Progress of a model's answers; of several processes, of the main one's share."""
    from transformers.utils.logging import disable_progress_bar

    from radfact.cli.options import naming_options

    disable_progress_bar()
    title = title if process_count() == 1 else f"{title}, process 0 of {process_count()}"
    with naming_options(engine_args="--engine-arg"), _progress(title) as on_progress:
        yield on_progress


def _for_vllm(language_model: Path | None, engine_args: Sequence[str] | None) -> dict[str, Any]:
    """The options of vLLM's engine, by the names that `EngineOptions` has for them."""
    from radfact.cli.options import key_values
    from radfact.llm.connect import split_model_args

    arguments = split_model_args(key_values(engine_args, "--engine-arg"), field="engine_args")
    return {"language_model": language_model, "arguments": arguments}


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """How far a run is, on standard error; gives what to call with how much is done, and of how much."""
    account: dict[str, int] = {}
    display = LiveDisplay(Console(stderr=True), {title: account.copy}, window=_WINDOW)
    with display if is_main() else nullcontext():
        yield lambda done, total: account.update(planned=total, done=done)


def _show_boxes(title: str, summary: str, run: BoxRun) -> None:
    """What came of a run of boxes, with its figures where there is something to compare with."""
    console = Console()
    if run.compared:
        _show_figures(console, title, run.figures)
    else:
        _say(console, "no reference boxes are known, so nothing is compared")
    if run.clipped:
        _say(console, f"references of which the crop cuts a part, compared as far as it shows them: {run.clipped}")
    if run.outside:
        _say(console, f"references that cover no pixel of the crop, not compared: {run.outside}")
    if run.masked:
        _say(console, f"references with masks, of which only the boxes are compared: {run.masked}")
    _say(console, summary)
    _end(console, [(str(f.sample_id), f.reason) for f in run.failures])


def _show_figures(console: Console, title: str, figures: Mapping[str, Figure | Summary]) -> None:
    table = Table(title=title, title_justify="left")
    for heading in ("figure", "point", "95 % interval", "n"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    for name, figure in figures.items():
        interval = "-" if figure.low is None else f"{figure.low:.3f} to {figure.high:.3f}"
        table.add_row(name, "-" if figure.point is None else f"{figure.point:.3f}", interval, str(figure.n))
    console.print(table)


def _show_lines(console: Console, title: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for heading in heads:
        table.add_column(heading, justify="left" if heading == heads[0] else "right", overflow="fold")
    for line in lines:
        table.add_row(*line)
    console.print(table)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _end(console: Console, failures: list[tuple[str, str]]) -> None:
    """List what was left out, and leave with the exit code that says so."""
    for key, reason in failures[:10]:
        console.print(f"left out: {key}: {reason}", style="red", markup=False, highlight=False, soft_wrap=True)
    if len(failures) > 10:
        console.print(f"and {len(failures) - 10} more, listed in failures.jsonl", style="red")
    if failures:
        raise typer.Exit(ExitCode.SAMPLES_LEFT_OUT)
