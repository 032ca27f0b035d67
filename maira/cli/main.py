"""The command `maira`."""

from __future__ import annotations

from maira.cli.annotate import annotate, sentences
from maira.cli.doctor import doctor
from maira.cli.estimate import estimate
from maira.cli.evaluate import ablate
from maira.cli.evaluate import app as evaluate_app
from maira.cli.generate import boxes, generate, ground
from maira.cli.judge import judge_data, judge_train
from maira.cli.manifest import pack, show, stats
from maira.cli.model import assemble, preferences, push, train
from maira.cli.prepare import app as prepare_app
from maira.cli.review import app as review_app
from maira.runtime.processes import exit_process, run_as_group
from radfact.cli.program import add_examples, create_program, read_examples, run_command

HELP = """Grounded radiology reports from chest X-rays: prepare studies, train, draft reports, locate findings.

The help of every command has examples: maira generate --help.

[bold]Exit codes[/bold]
  0 done; 1 the run failed; 2 wrong input or options;
  3 done, with samples that failed listed in failures.jsonl
    (0 under torchrun or accelerate launch, which report any other code as a crash)"""

app = create_program(HELP)
for _command in (
    *(stats, show, pack, sentences, train, estimate, ablate, generate, ground, boxes),
    *(preferences, assemble, push, judge_data, judge_train, doctor),
):
    app.command()(_command)
_groups = {"prepare": prepare_app, "annotate": annotate, "evaluate": evaluate_app, "review": review_app}
for _name, _group in _groups.items():
    app.add_typer(_group, name=_name)
add_examples(app, read_examples("maira.cli"))


def main() -> None:
    try:
        run_command(lambda: run_as_group(app), "maira")
    except SystemExit as end:
        exit_process(end.code)
        raise
