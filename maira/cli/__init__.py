"""The command `maira`: a thin layer over the library."""

from __future__ import annotations

import typer

from maira.cli.ablate import ablate
from maira.cli.annotate import annotate, sentences
from maira.cli.estimate import estimate
from maira.cli.evaluate import app as evaluate_app
from maira.cli.generate import boxes, generate, ground
from maira.cli.judge import DATA_MANUAL, judge_data, judge_train
from maira.cli.manifest import pack, show, stats
from maira.cli.model import assemble, convert, train
from maira.cli.prepare import app as prepare_app
from maira.generate.processes import leave_launcher, run_together
from radfact.command import run_command

MANUAL = "\n".join(
    (
        "Grounded radiology reports from chest X-rays: prepare studies, train, draft reports, locate findings.",
        "",
        "[bold]Examples[/bold]",
        "  maira prepare dicom film.dcm --out film",
        "  maira prepare phantom --count 24 --seed 3 --out phantoms",
        "  maira prepare mimic-cxr-jpg --root mimic-cxr-jpg --metadata mimic-cxr --out mimic --workers 8",
        "  maira stats mimic/manifest.jsonl",
        "  maira show mimic/manifest.jsonl --out sheet.html",
        "  maira pack mimic/manifest.jsonl --split train --out shards",
        "  maira sentences manifest.jsonl --judge offline --as phrases --out phrases.jsonl",
        "  maira annotate export phrases.jsonl --out tasks",
        "  maira annotate import export.json --manifest phrases.jsonl --out grounded.jsonl",
        "  maira generate --checkpoint checkpoints/phantom \\",
        "      --manifest phantoms/manifest.jsonl --out drafts.jsonl",
        "  radfact score --candidates drafts.jsonl \\",
        "      --references phantoms/manifest.jsonl --judge offline --out results",
        "  maira evaluate inputs --checkpoint checkpoints/phantom \\",
        "      --manifest phantoms/manifest.jsonl --task grounded \\",
        "      --drop prior+comparison --drop prior --judge offline --out inputs",
        "  maira ground --checkpoint maira-2 --manifest ms-cxr.jsonl --out grounded.jsonl",
        "  maira boxes --checkpoint maira-2 --manifest gr-bench.jsonl --out boxes.jsonl",
        "  maira train configs/phantom.yaml passes=1000",
        "  maira estimate configs/maira2_7b.yaml --gpus 16 --gpu a100-80g",
        "  maira ablate configs/phantom.yaml configs/ablations/phantom/*.yaml \\",
        "      --test phantoms/manifest.jsonl --task grounded --judge offline --out ablations",
        "  maira judge-data reports.csv --task entailment --teacher offline --out data",
        "  maira judge-train configs/judges/entailment.yaml train=data/samples.jsonl",
        "  maira convert maira-2 --to own --out maira-2-own",
        "  maira assemble --encoder rad-dino --language-model vicuna-7b-v1.5 --out fresh",
        "",
        "[bold]Exit codes[/bold]",
        "  0 done; 1 the run failed; 2 wrong input or options;",
        "  3 done, with samples lost to faults and listed in failures.jsonl",
        "    (0 under torchrun or accelerate launch, which report any other code as a crash)",
    )
)

app = typer.Typer(
    help=MANUAL,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(prepare_app, name="prepare")
app.command()(stats)
app.command()(show)
app.command()(pack)
app.command()(sentences)
app.add_typer(annotate, name="annotate")
app.command()(train)
app.command()(estimate)
app.command()(ablate)
app.command()(generate)
app.command()(ground)
app.command()(boxes)
app.command()(convert)
app.command()(assemble)
app.command("judge-data", help=DATA_MANUAL)(judge_data)
app.command("judge-train")(judge_train)
app.add_typer(evaluate_app, name="evaluate")


def main() -> None:
    """Entry point of the command."""
    try:
        run_command(lambda: run_together(app), "maira")
    except SystemExit as end:
        leave_launcher(end.code)
        raise
