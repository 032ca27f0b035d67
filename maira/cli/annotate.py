"""`maira sentences` and `maira annotate`: convert narrative reports to grounded reports."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from maira.cli.options import ManifestArgument, OutFolder, read_studies
from maira.cli.show import exit_with_failures, print_line, print_scores
from radfact.cli.command import with_options
from radfact.cli.tables import show_rows
from radfact.errors import ErrorCode, InputError
from radfact.io.outputs import Output
from radfact.judges.options import JudgeOptions
from radfact.options import only, rename_fields
from radfact.progress import display_progress

annotate = typer.Typer(
    help="Export annotation tasks and import annotations (MAIRA-2, appendix G).", no_args_is_help=True
)

_COMPARED = ("logical_precision", "logical_recall", "logical_f1")
_AGREEMENT = {
    **{"samples": "samples", "phrases": "phrases", "equal labels": "label_agreement", "kappa": "label_kappa"},
    **{"located": "located", "IoU": "mean_iou", "IoU on prior": "prior_mean_iou"},
}
"""Fields of an agreement by their headings."""


@with_options
def sentences(
    manifest: ManifestArgument,
    out: Annotated[
        Path,
        typer.Option(help="Output manifest (.jsonl)."),
        Output("file", siblings=("{stem}.map.jsonl", "{stem}.changes.json")),
    ],
    judge: Annotated[JudgeOptions, only("judge", "judge_args", "base_url", "few_shots", "concurrency", "max_invalid")],
    target: Annotated[
        Literal["grounded_findings", "phrases"],
        typer.Option("--as", help="Write a grounded report without boxes, or phrases to annotate."),
    ] = "grounded_findings",
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Judge that compares the sentences with the original reports (logical RadFact scores)."
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Cache of model responses. Default: cache/ in the folder of --out."),
    ] = None,
) -> None:
    """Split narrative findings into single-finding sentences with the splitter of --judge (MAIRA-2, appendix B.5.1).

    Also writes OUT.map.jsonl (sample_id, orig, new), OUT.changes.json (counts and scores) and failures.jsonl. The same
    command resumes an interrupted run from the cached responses.
    """
    from dataclasses import asdict

    from maira.data.manifest import replace_failures, write_manifest
    from maira.data.sentences import split_findings
    from radfact.api import RadFact
    from radfact.io.jsonl import write_json, write_jsonl
    from radfact.judges.loading import load_judge, splitter_of
    from radfact.records import Pair, Sentence

    studies, skipped = read_studies(manifest)
    cache = cache or out.parent / "cache"
    name = judge.required_judge
    shared = judge.model_dump(include={"base_url", "concurrency", "max_invalid"})
    splitter = splitter_of(judge, cache)
    judging = None
    if compare is not None:
        # The address and the arguments are those of the model that splits, not of another one.
        options = {"judge_args": judge.judge_args, **shared} if compare == name else {}
        with rename_fields({"judge": "compare"}):
            judging = load_judge(compare, cache=cache, **options)
    watch, console = Console(stderr=True), Console()
    with display_progress(watch, {"splitting": splitter.usage}):
        result = split_findings(studies, splitter, target)
    record = {"changes": result.counts, "splitter": splitter.describe(), "splitting": splitter.usage()}
    scores = {}
    if judging is not None:
        pairs = []
        for key, split in result.splits.items():
            new = [Sentence(text=text) for sentence in split for text in sentence.new]
            pairs.append(Pair(key, new, [Sentence(text=sentence.orig) for sentence in split]))
        with display_progress(watch, {"comparing": judging.usage}):
            compared = RadFact(judging).score(pairs)
        scores = {score: compared.summaries[score] for score in _COMPARED}
        record |= {"scores": {score: asdict(summary) for score, summary in scores.items()}}
        record["judge"] = dict(compared.judge or {})
    failures = [*skipped, *result.failures]
    rows = ({"sample_id": key, **asdict(sentence)} for key, split in result.splits.items() for sentence in split)
    write_jsonl(out.with_name(f"{out.stem}.map.jsonl"), rows)
    write_json(out.with_name(f"{out.stem}.changes.json"), record)
    replace_failures(out.with_name("failures.jsonl"), out.name, failures)
    write_manifest(out, result.studies)
    # As in MAIRA-2, table B.3.
    counts = [(count.replace("_", " "), f"{value:,}") for count, value in result.counts.items()]
    show_rows(console, ("name", "value"), counts, title="Findings as lists of sentences")
    if scores:
        print_scores(console, "RadFact", scores)
        judge_name = record["judge"].get("name")
        print_line(console, f"RadFact: the sentences compared with those of the narratives; judge {judge_name}")
    if result.unchanged:
        print_line(console, f"{result.unchanged} samples already have {target} and are unchanged")
    print_line(console, f"{len(result.studies)} of {len(studies) + len(skipped)} samples: {out}")
    exit_with_failures(console, [(str(failure.sample_id), failure.reason) for failure in failures])


@annotate.command("export")
@with_options
def export_tasks(
    manifest: ManifestArgument,
    out: OutFolder,
    to: Annotated[Literal["label-studio", "coco"], typer.Option(help="Annotation tool.")] = "label-studio",
    image_root: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder that image addresses are relative to; without --image-url, the root of the local files of "
            "Label Studio. Default: the parent of the manifest's folder.",
        ),
    ] = None,
    image_url: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="Base URL of the images, instead of local files.")
    ] = None,
    categories: Annotated[
        str, typer.Option(metavar="SET", help="Finding categories: chexpert, none, or a text file with one per line.")
    ] = "chexpert",
) -> None:
    """Write annotation tasks: tasks.json and config.xml for Label Studio, or a COCO dataset.

    Annotators see the image, the prior image, the findings, and the phrases (or the sentences of the grounded report);
    guide.md has the rules of the protocol for special cases, which Label Studio shows as well.
    """
    from maira.data.annotation.tasks import SCENARIOS, coco_dataset, labeling_config, phrases_of, task_of
    from maira.data.manifest import Failure, replace_failures
    from radfact.io.jsonl import open_atomic, write_json

    read, failures = read_studies(manifest)
    studies = [study for study in read if phrases_of(study)]
    reason = "no phrases to annotate; create them with 'maira sentences'"
    failures += [Failure(sample_id=s.sample_id, stage="export", reason=reason) for s in read if not phrases_of(s)]
    total = len(read) + sum(failure.stage == "read" for failure in failures)
    folder, console = manifest.parent.absolute(), Console()
    if to == "coco":
        if image_root is not None or image_url is not None:
            message = "--image-root and --image-url require --to label-studio"
            raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field="--to")
        written = out / "coco.json"
        write_json(written, coco_dataset(studies, folder, failures))
    else:
        root = image_root or (folder if image_url is not None else folder.parent)
        tasks = [task_of(study, root, image_url) for study in studies]
        config = labeling_config(_categories(categories))
        written = out / "tasks.json"
        write_json(written, tasks)
        with open_atomic(out / "config.xml") as handle:
            handle.write(config)
        if image_url is None:
            serving = "LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true"
            served = f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={root.absolute()}"
            hint = "add the image folder below it to the project as local storage"
            print_line(console, f"Label Studio requires {serving} and {served}; {hint}")
    with open_atomic(out / "guide.md") as handle:
        for topic, rules in SCENARIOS.items():
            handle.write("\n".join([f"## {topic}\n", *(f"- {rule}" for rule in rules), "\n"]))
    replace_failures(out / "failures.jsonl", written.name, failures)
    print_line(console, f"{total - len(failures)} of {total} samples to annotate: {written}")
    exit_with_failures(console, [(str(failure.sample_id), failure.reason) for failure in failures])


@annotate.command("import")
@with_options
def import_annotations(
    export: Annotated[Path, typer.Argument(help="Annotations exported from Label Studio (JSON).")],
    manifest: Annotated[Path, typer.Option(help="Manifest that the tasks were exported from.")],
    out: Annotated[
        Path,
        typer.Option(help="Output manifest of grounded studies (.jsonl)."),
        Output("file", siblings=("{stem}.annotations.jsonl", "{stem}.agreement.json")),
    ],
    combine: Annotated[
        Literal["skip", "first", "union"],
        typer.Option(
            help="Samples with several annotators: skip them, keep the first annotator's regions, or keep all regions."
        ),
    ] = "skip",
) -> None:
    """Convert annotations to grounded reports according to the annotation protocol.

    Also writes OUT.annotations.jsonl (all annotations), failures.jsonl and, for several annotators,
    OUT.agreement.json.
    """
    from pydantic import TypeAdapter

    from maira.data.annotation.combine import agreement, ground_studies
    from maira.data.annotation.protocol import Annotation
    from maira.data.annotation.results import read_label_studio
    from maira.data.manifest import read_manifest, replace_failures, write_manifest
    from radfact.io.jsonl import write_json, write_jsonl
    from radfact.pages.meta_page import format_cell

    studies = read_manifest(manifest, [])
    samples = read_label_studio(export, studies)
    result = ground_studies(studies, samples, combine)
    console = Console()
    agreements = agreement([sample.annotations for sample in samples])
    as_json = TypeAdapter(Annotation).dump_python
    rows = ({"sample_id": s.sample_id, **as_json(one, mode="json")} for s in samples for one in s.annotations)
    write_jsonl(out.with_name(f"{out.stem}.annotations.jsonl"), rows)
    agreement_file = out.with_name(f"{out.stem}.agreement.json")
    if agreements:
        write_json(agreement_file, {"pairs": agreements})
        fields = itemgetter(*_AGREEMENT.values())
        lines = [(" and ".join(pair["annotators"]), *map(format_cell, fields(pair))) for pair in agreements]
        show_rows(console, ["annotators", *_AGREEMENT], lines, title="Agreement of annotators")
    else:
        agreement_file.unlink(missing_ok=True)
    replace_failures(out.with_name("failures.jsonl"), out.name, result.failures)
    write_manifest(out, result.studies)
    for reason, count in sorted(result.dropped.items()):
        print_line(console, f"phrases dropped as '{reason}': {count}")
    if result.ignored:
        print_line(console, f"regions ignored, because the protocol does not allow them: {result.ignored}")
    print_line(console, f"{len(result.studies)} of {len(samples)} annotated samples are grounded studies: {out}")
    exit_with_failures(console, [(str(failure.sample_id), failure.reason) for failure in result.failures])


def _categories(name: str) -> Sequence[str]:
    from radfact.io.jsonl import read_text

    if name == "none":
        return ()
    file = str(resources.files("maira.data") / "static" / "chexpert.txt") if name == "chexpert" else name
    named = [line.strip() for line in read_text(file).splitlines() if line.strip()]
    if not named or len(set(named)) < len(named):
        message = "expected names of categories, one per line and each once"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=name)
    return named
