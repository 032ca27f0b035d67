"""`maira push`: publish a model or a judge on the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from maira.cli.show import print_line
from radfact.cli.command import with_options
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_text


@with_options
def push(
    folder: Annotated[Path, typer.Argument(help="Folder of the checkpoint, or of a trained judge.")],
    repository: Annotated[str, typer.Argument(help="ORG/NAME on the Hub; created if it does not exist.")],
    results: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]PATH",
            help="Scores for the card: a results folder of this checkpoint's drafts, or a file of 'radfact "
            "judge-check'. NAME is that of the test set. Repeatable.",
        ),
    ] = None,
    license: Annotated[
        str | None, typer.Option(metavar="ID", help="License, as in the Hub's list, such as mit. Default: unknown.")
    ] = None,
    base_model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Model on the Hub that the training started from; repeatable."),
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Data set on the Hub of the training data; repeatable.")
    ] = None,
    card: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Model card to publish instead of the generated one, such as an edited one."),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Create a public repository, or push to one.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the card and list the files; the Hub is not contacted.")
    ] = False,
) -> None:
    """Publish a checkpoint or a trained judge on the Hugging Face Hub, with a model card made from its run.

    A new repository is private unless --public is given. All files arrive in one commit; the same command resumes an
    interrupted upload. The token is read from HF_TOKEN or from 'hf auth login', the address of the Hub from
    HF_ENDPOINT.
    """
    from huggingface_hub import ModelCard

    from maira.publish.card import make_card, read_checkpoint, read_test_scores
    from maira.publish.push import push as run
    from maira.publish.push import select_files

    facts = read_checkpoint(folder)
    if card is None:
        tests = [read_test_scores(item, facts.fingerprint) for item in results or ()]
        model_card = make_card(
            repository, facts, tests, license=license, base_models=base_model or (), datasets=dataset or ()
        )
    elif results or license or base_model or dataset:
        message = "expected no options of the generated card; edit the file instead"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field="card")
    else:
        model_card = ModelCard(read_text(card))
    files, others = select_files(facts)
    notes = Console(stderr=True)
    size = sum(path.stat().st_size for path in files.values())
    print_line(notes, f"{len(files)} files, {size / 1e6:,.1f} MB: {', '.join(files)}")
    if others:
        print_line(notes, f"not published: {', '.join(others)}")
    if dry_run:
        typer.echo(str(model_card), nl=False)
        return
    address = run(repository, files, str(model_card), public=public)
    print_line(Console(), f"{'public' if public else 'private'} model {repository}: {address}")
