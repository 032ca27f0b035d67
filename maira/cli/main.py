"""The command `maira`."""

from __future__ import annotations

import typer

from maira.cli.annotate import annotate, sentences
from maira.cli.doctor import doctor
from maira.cli.estimate import estimate
from maira.cli.evaluate import ablate
from maira.cli.evaluate import app as evaluate_app
from maira.cli.examples import EXAMPLES
from maira.cli.generate import boxes, generate, ground
from maira.cli.judge import judge_data, judge_train
from maira.cli.manifest import pack, show, stats
from maira.cli.model import assemble, train
from maira.cli.preferences import preferences
from maira.cli.prepare import app as prepare_app
from maira.cli.push import push
from maira.cli.review import app as review_app
from maira.runtime.processes import exit_process, run_as_group
from radfact.cli.program import Version, add_examples, run_command

MANUAL = "\n".join(
    (
        "Grounded radiology reports from chest X-rays: prepare studies, train, draft reports, locate findings.",
        "",
        "[bold]Examples[/bold]",
        "  maira doctor",
        "  maira prepare phantom --count 24 --seed 3 --out phantoms",
        "  maira generate --checkpoint checkpoints/phantom \\",
        "      --manifest phantoms/manifest.jsonl --out drafts.jsonl",
        "  radfact score --candidates drafts.jsonl \\",
        "      --references phantoms/manifest.jsonl --judge offline --out results",
        "  maira train configs/phantom.yaml train=phantoms/manifest.jsonl \\",
        '      "validation.sources=[]" passes=32 global_batch=8 out=runs/try',
        "  maira estimate configs/maira2_7b.yaml --gpus 16 --gpu a100-80g",
        "  maira review drafts.jsonl --manifest phantoms/manifest.jsonl \\",
        "      --results results",
        "The help of every command has examples: maira generate --help.",
        "",
        "[bold]Exit codes[/bold]",
        "  0 done; 1 the run failed; 2 wrong input or options;",
        "  3 done, with samples that failed listed in failures.jsonl",
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


@app.callback()
def _common(version: Version = False) -> None:
    del version


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
app.command()(preferences)
app.command()(assemble)
app.command()(push)
app.command("judge-data")(judge_data)
app.command("judge-train")(judge_train)
app.add_typer(evaluate_app, name="evaluate")
app.command()(doctor)
app.add_typer(review_app, name="review")
add_examples(app, EXAMPLES)


def main() -> None:
    """Entry point of the command."""
    try:
        run_command(lambda: run_as_group(app), "maira")
    except SystemExit as end:
        exit_process(end.code)
        raise
