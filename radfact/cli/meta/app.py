"""`radfact meta`: meta-evaluation of metrics."""

from __future__ import annotations

import typer

from radfact.cli.meta.agreement import agreement, examples, pairs, shots
from radfact.cli.meta.corrections import corrections
from radfact.cli.meta.ensemble import app as ensemble
from radfact.cli.meta.inject import detect, inject
from radfact.cli.meta.rexamine import rexamine

app = typer.Typer(
    help="Meta-evaluation: agreement with experts, corrections, detection of injected errors, ReXamine-Global, "
    "ensembles of judges.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
for command in (agreement, examples, pairs, shots, corrections, inject, detect, rexamine):
    app.command()(command)
app.add_typer(ensemble, name="ensemble")
