"""Options that several commands share, and the studies that they read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maira.generate.engine import EngineOptions
from radfact.errors import ErrorCode, InputError
from radfact.io.hub import resolve_model
from radfact.io.outputs import Output
from radfact.options import Option, Options

if TYPE_CHECKING:
    from maira.data.manifest import Failure
    from maira.data.study import Study

OutFolder = Annotated[Path, typer.Option(help="Output folder."), Output("folder")]
PreparedFolder = Annotated[Path, typer.Option(help="Output folder."), Output("folder", resumes=True)]
"""Folder that the command resumes if the settings are the same, and refuses otherwise."""
RESUMED_FILE = Output("file", resumes=True)
"""Model responses, which the command resumes if the settings are the same, and refuses otherwise."""
CheckpointFolder = Annotated[Path, typer.Option(help="Output folder."), Output("new folder", is_private=False)]
ManifestArgument = Annotated[Path, typer.Argument(help="manifest.jsonl of the studies.")]
Manifest = Annotated[Path, typer.Option(help="manifest.jsonl of the studies.")]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        help="Checkpoint of MAIRA-2, or of another image-text-to-text model of transformers with a chat template: a "
        "folder, or ORG/NAME[@REVISION] on the Hugging Face Hub. Required, except with --engine server."
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Train in a folder that has files of another origin.")]


class ComparisonOptions(Options):
    """The studies to evaluate, and how to score their drafts."""

    subset: Annotated[
        str,
        Option(
            "Studies to evaluate: all, those that have every dropped input, or those that have the inputs named here, "
            "such as prior (MAIRA-2, table D.9) or lateral (table D.10).",
            metavar="all|with-input|INPUTS",
        ),
    ] = "all"
    judge: Annotated[
        str | None,
        Option(
            "Judge, as for 'radfact score --judge'. The environment variable RADFACT_JUDGE also sets it.",
            metavar="NAME",
        ),
    ] = None
    score_config: Annotated[
        Path | None, Option("YAML file with more options of 'radfact score' and 'radfact evaluate'.", metavar="FILE")
    ] = None
    metrics: Annotated[
        str | None,
        Option(
            "Metrics in addition to RadFact, as for 'radfact evaluate --metrics'. Default: those of the paper's tables "
            "whose requirements are met.",
            metavar="NAMES",
        ),
    ] = None
    weights: Annotated[
        tuple[str, ...],
        Option("Weights of metrics, as for 'radfact evaluate --weights'; repeatable.", metavar="[NAME=]FOLDER"),
    ] = ()


def read_inputs(
    checkpoint: Path | None, engine: EngineOptions, manifest: Path
) -> tuple[Path | None, list[Study], list[Failure]]:
    """Return the folder of a checkpoint (None for a server's model), and `read_studies`."""
    if (checkpoint is None) is (engine.engine != "server"):
        message = f"expected a folder or --engine server, found {'neither' if checkpoint is None else 'both'}"
        code = ErrorCode.MISSING_OPTION if checkpoint is None else ErrorCode.CONFLICTING_OPTIONS
        raise InputError(message, code=code, field="checkpoint")
    return checkpoint and resolve_model(checkpoint, field="checkpoint"), *read_studies(manifest)


def read_studies(manifest: Path, split: str | None = None) -> tuple[list[Study], list[Failure]]:
    """Read the studies of a manifest, and the samples that are skipped because they have no frontal image."""
    from maira.data.manifest import check_has_samples, read_manifest

    skipped: list[Failure] = []
    studies = read_manifest(manifest, skipped)
    check_has_samples(len(studies) + len(skipped), manifest)
    if split is not None:
        studies, skipped = [study for study in studies if study.split == split], []
        if not studies:
            message = f"expected studies of the split '{split}', found none"
            raise InputError(message, code=ErrorCode.EMPTY_INPUT, file=manifest, field="split")
    return studies, skipped
