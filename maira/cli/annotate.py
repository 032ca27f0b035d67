"""`maira sentences` and `maira annotate`: grounded reports from narrative ones."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from maira.cli.show import exit_with_failures, print_line, print_table
from radfact.errors import InputError
from radfact.progress import ProgressDisplay

if TYPE_CHECKING:
    from data.annotation import Agreement, AnnotatedSample
    from data.manifest import Failure
    from data.sentences import SplitStudies
    from radfact.judges import Judge
    from radfact.results.evaluation import EvaluationResult

annotate = typer.Typer(
    help="Have findings located by annotators (paper 004, appendix G): tasks out, annotations back.",
    no_args_is_help=True,
)

_COMPARED = ("logical_precision", "logical_recall", "logical_f1")

_Manifest = Annotated[Path, typer.Argument(help="manifest.jsonl of the studies.")]


class _Target(StrEnum):
    GROUNDED_FINDINGS = "grounded_findings"
    PHRASES = "phrases"


class _Tool(StrEnum):
    LABEL_STUDIO = "label-studio"
    COCO = "coco"


class _Combine(StrEnum):
    REFUSE = "refuse"
    FIRST = "first"
    UNION = "union"


def sentences(
    manifest: _Manifest,
    out: Annotated[Path, typer.Option(help="Manifest to write (.jsonl).")],
    judge: Annotated[
        str, typer.Option(metavar="NAME", help="Who splits: offline, PROVIDER:MODEL as in openai:MODEL, or vllm:PATH.")
    ],
    target: Annotated[
        _Target, typer.Option("--as", help="A grounded report without boxes, or phrases to be annotated.")
    ] = _Target.GROUNDED_FINDINGS,
    compare: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A judge that compares the sentences with the reports (RadFact, logical)."),
    ] = None,
    judge_arg: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="One more argument of the model; may be repeated.")
    ] = None,
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="Address of an OpenAI-compatible server.")] = None,
    few_shots: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Worked examples in the published layout, instead of our own.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, metavar="N", help="Calls in flight to the model.")] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where a model's answers are kept (default: cache/ beside --out)."),
    ] = None,
) -> None:
    """Make single-finding sentences of narrative findings (paper 004, B.5.1), with the map of what became of each.

    Beside OUT stand OUT.map.jsonl (sample_id, orig, new), OUT.changes.json (the figures) and failures.jsonl. The same
    command goes on where an interrupted run stopped: answers of a model are kept.
    """
    from dataclasses import asdict

    from data.manifest import read_manifest, replace_failures, write_manifest
    from data.sentences import split_findings
    from radfact.cli.options import key_values, naming_options
    from radfact.io.jsonl import write_json, write_jsonl
    from radfact.judges import load_judge, load_splitter

    _refuse_same(manifest, out)
    left_out: list[Failure] = []
    studies = read_manifest(manifest, left_out)
    cache = cache or out.parent / "cache"
    arguments = key_values(judge_arg, "--judge-arg")
    with naming_options(splitter="--judge", splitter_args="--judge-arg"):
        splitter = load_splitter(
            judge,
            base_url=base_url,
            splitter_args=arguments,
            few_shots=few_shots,
            concurrency=concurrency,
            cache=cache,
        )
    judging = None
    if compare is not None:
        # The model that splits is reached where it is; another one is named by the environment alone.
        same = compare == judge
        with naming_options(judge="--compare"):
            judging = load_judge(
                compare,
                base_url=base_url if same else None,
                judge_args=arguments if same else None,
                concurrency=concurrency if same else None,
                cache=cache,
            )
    watch = Console(stderr=True)
    with ProgressDisplay(watch, {"splitting": splitter.usage}):
        result = split_findings(studies, splitter, target.value)
    compared = None
    if judging is not None:
        with ProgressDisplay(watch, {"comparing": judging.usage}):
            compared = _compare(result, judging)
    failures = [*left_out, *result.failures]
    write_manifest(out, result.studies)
    write_jsonl(out.with_name(f"{out.stem}.map.jsonl"), result.map_rows())
    record = {"changes": asdict(result.counts), "splitter": splitter.describe(), "splitting": splitter.usage()}
    if compared is not None:
        figures = {name: asdict(compared.scores[name]) for name in _COMPARED}
        record |= {"figures": figures, "judge": dict(compared.judge or {})}
    write_json(out.with_name(f"{out.stem}.changes.json"), record)
    replace_failures(out.with_name("failures.jsonl"), out.name, failures)
    console = Console()
    _show_changes(console, result, compared)
    if result.unchanged:
        print_line(console, f"{result.unchanged} samples have {target.value} already and keep them")
    print_line(console, f"{len(result.studies)} of {len(studies) + len(left_out)} samples: {out}")
    exit_with_failures(console, _listed(failures))


@annotate.command("export")
def export_tasks(
    manifest: _Manifest,
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    to: Annotated[_Tool, typer.Option(help="Tool that the annotators use.")] = _Tool.LABEL_STUDIO,
    image_root: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder that image addresses are relative to: without --image-url, Label Studio's document root of "
            "local files (default: the parent of the manifest's folder).",
        ),
    ] = None,
    image_url: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="Images are found below this URL, not as local files.")
    ] = None,
    categories: Annotated[
        str,
        typer.Option(metavar="SET", help="Categories of findings: chexpert, none, or a text file with one a line."),
    ] = "chexpert",
) -> None:
    """Write annotation tasks: tasks.json and config.xml for Label Studio, or a COCO dataset.

    Annotators see the image, the prior image, the findings and the phrases (the manifest's, or else the sentences of
    its grounded reports).
    """
    from data.annotation import ImageAddress, coco_dataset, labeling_config, phrases_of, task_of
    from data.manifest import Failure, read_manifest, replace_failures
    from radfact.io.jsonl import open_atomic, write_json

    failures: list[Failure] = []
    read = read_manifest(manifest, failures)
    studies = [study for study in read if phrases_of(study)]
    reason = "no phrases to annotate; 'maira sentences' makes them of the findings"
    failures += [Failure(sample_id=s.sample_id, stage="export", reason=reason) for s in read if not phrases_of(s)]
    total = len(read) + sum(failure.stage == "read" for failure in failures)
    folder, console = manifest.parent.absolute(), Console()
    if to is _Tool.COCO:
        if image_root is not None or image_url is not None:
            raise InputError("--image-root and --image-url go with --to label-studio")
        written = out / "coco.json"
        dataset = coco_dataset(studies, folder, failures)
        write_json(written, dataset)
    else:
        address = ImageAddress(image_root or (folder if image_url is not None else folder.parent), image_url)
        tasks, config = [task_of(study, address) for study in studies], labeling_config(_categories(categories))
        written = out / "tasks.json"
        write_json(written, tasks)
        with open_atomic(out / "config.xml") as handle:
            handle.write(config)
        if image_url is None:
            print_line(
                console,
                "Label Studio needs LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true and "
                f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={address.root.absolute()}, and the folder of the images below "
                "it added to the project as local storage",
            )
    replace_failures(out / "failures.jsonl", written.name, failures)
    print_line(console, f"{total - len(failures)} of {total} samples to annotate: {written}")
    exit_with_failures(console, _listed(failures))


@annotate.command("import")
def import_annotations(
    export: Annotated[Path, typer.Argument(help="Annotations as Label Studio exports them (JSON).")],
    manifest: Annotated[Path, typer.Option(help="The manifest that was exported.")],
    out: Annotated[Path, typer.Option(help="Manifest of grounded studies to write (.jsonl).")],
    combine: Annotated[
        _Combine, typer.Option(help="A sample with several annotators: left out, the first one's, or all regions.")
    ] = _Combine.REFUSE,
) -> None:
    """Read annotations back by the protocol's rules: grounded studies, and why each other sample is left out.

    Beside OUT stand OUT.annotations.jsonl (what every annotator said), failures.jsonl, and, with several annotators,
    OUT.agreement.json.
    """
    from dataclasses import asdict

    from data.annotation import agreement, ground_studies, read_label_studio
    from data.manifest import read_manifest, replace_failures, write_manifest
    from radfact.io.jsonl import write_json, write_jsonl

    _refuse_same(manifest, out)
    studies = read_manifest(manifest, [])
    samples = read_label_studio(export, studies)
    result = ground_studies(studies, samples, combine.value)
    console = Console()
    agreements = agreement([sample.annotations for sample in samples])
    write_manifest(out, result.studies)
    write_jsonl(out.with_name(f"{out.stem}.annotations.jsonl"), _rows(samples))
    agreement_file = out.with_name(f"{out.stem}.agreement.json")
    if agreements:
        write_json(agreement_file, {"pairs": [asdict(one) for one in agreements]})
        _show_agreement(console, agreements)
    else:
        agreement_file.unlink(missing_ok=True)
    replace_failures(out.with_name("failures.jsonl"), out.name, result.failures)
    for reason, count in sorted(result.dropped.items()):
        print_line(console, f"phrases left out as '{reason}': {count}")
    if result.ignored:
        print_line(console, f"regions ignored, where the protocol wants none: {result.ignored}")
    print_line(console, f"{len(result.studies)} of {len(samples)} annotated samples are grounded studies: {out}")
    exit_with_failures(console, _listed(result.failures))


def _refuse_same(manifest: Path, out: Path) -> None:
    if out.absolute() == manifest.absolute():
        raise InputError("is the manifest that is read; name another file", file=out)


def _categories(name: str) -> Sequence[str]:
    """The categories that a user has named."""
    from data.annotation import CATEGORIES
    from radfact.io.jsonl import read_text

    if name in ("chexpert", "none"):
        return CATEGORIES if name == "chexpert" else ()
    lines = [line.strip() for line in read_text(name).splitlines()]
    named = [line for line in lines if line]
    if not named or len(set(named)) < len(named):
        raise InputError("expected names of categories, one a line, each once", file=name)
    return named


def _compare(result: SplitStudies, judge: Judge) -> EvaluationResult:
    """RadFact's logical figures of the sentences as candidates against the narratives' own sentences."""
    from radfact.pipeline import RadFact
    from radfact.records import Pair, Sentence

    pairs = [
        Pair(
            key,
            [Sentence(text=text) for one in split for text in one.new],
            [Sentence(text=one.orig) for one in split],
        )
        for key, split in result.splits.items()
    ]
    return RadFact(judge).score(pairs)


def _rows(samples: Sequence[AnnotatedSample]) -> list[dict[str, object]]:
    """What every annotator said, one line a sample and annotator."""
    from pydantic import TypeAdapter

    from data.annotation import Annotation

    adapter = TypeAdapter(Annotation)
    return [
        {"sample_id": sample.sample_id, **adapter.dump_python(annotation, mode="json")}
        for sample in samples
        for annotation in sample.annotations
    ]


def _show_changes(console: Console, result: SplitStudies, compared: EvaluationResult | None) -> None:
    """What table B.3 is about, with the figures that there are."""
    from dataclasses import asdict

    lines = [(name.replace("_", " "), f"{count:,}") for name, count in asdict(result.counts).items()]
    if compared is not None:
        for name in _COMPARED:
            figure = compared.scores[name]
            interval = "" if figure.low is None else f" [{figure.low:.3f}, {figure.high:.3f}]"
            lines.append((f"RadFact {name.replace('_', ' ')}", f"{_number(figure.point)}{interval}"))
    print_table(console, "Findings as lists of sentences", ("figure", "value"), lines)
    if compared is not None:
        print_line(console, f"RadFact: the sentences against the narratives' own; judge {compared.judge.get('name')}")


def _show_agreement(console: Console, agreements: Sequence[Agreement]) -> None:
    heads = ("annotators", "samples", "phrases", "equal labels", "kappa", "located", "IoU", "IoU on prior")
    lines = [
        (
            " and ".join(one.annotators),
            str(one.samples),
            str(one.phrases),
            _number(one.label_agreement),
            _number(one.label_kappa),
            str(one.located),
            _number(one.mean_iou),
            _number(one.prior_mean_iou),
        )
        for one in agreements
    ]
    print_table(console, "Agreement of annotators", heads, lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _listed(failures: Sequence[Failure]) -> list[tuple[str, str]]:
    return [(str(failure.sample_id), failure.reason) for failure in failures]
