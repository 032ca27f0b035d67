"""`radfact meta`: meta-evaluation of metrics."""

from __future__ import annotations

import typer

from radfact.cli.meta.agreement import MANUAL as AGREEMENT_MANUAL
from radfact.cli.meta.agreement import agreement, examples, pairs
from radfact.cli.meta.corrections import MANUAL as CORRECTIONS_MANUAL
from radfact.cli.meta.corrections import corrections
from radfact.cli.meta.ensemble import app as ensemble
from radfact.cli.meta.inject import DETECT_MANUAL, INJECT_MANUAL, detect, inject
from radfact.cli.meta.rexamine import MANUAL as REXAMINE_MANUAL
from radfact.cli.meta.rexamine import rexamine

app = typer.Typer(
    help="Meta-evaluation: agreement with experts, corrections, detection of injected errors, ReXamine-Global, "
    "ensembles of judges.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.command(help=AGREEMENT_MANUAL)(agreement)
app.command()(examples)
app.command()(pairs)
app.command(help=CORRECTIONS_MANUAL)(corrections)
app.command(help=INJECT_MANUAL)(inject)
app.command(help=DETECT_MANUAL)(detect)
app.command(help=REXAMINE_MANUAL)(rexamine)
app.add_typer(ensemble, name="ensemble")
