"""Commands about models: preference pairs, training, assembly of parts, and publication."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from maira.cli.options import CheckpointFolder, Manifest, Overwrite, read_studies
from maira.cli.show import print_line, warn_of_bfloat16
from radfact.cli.command import with_options
from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.jsonl import read_text, write_jsonl
from radfact.io.outputs import Output
from radfact.options import parse_key_values, rename_fields
from radfact.records import validate_model


@with_options
def preferences(
    drafts: Annotated[
        list[Path],
        typer.Argument(help="Two or more files of drafts of the same studies (.jsonl), from several models or seeds."),
    ],
    manifest: Manifest,
    out: Annotated[Path, typer.Option(help="Output file of preference pairs (.jsonl)."), Output("file")],
    scores: Annotated[
        str,
        typer.Option(
            help="Scores of the reward with their weights, named as in 'radfact evaluate --metrics'; scores that are "
            "better when lower are subtracted.",
            metavar="NAME=WEIGHT,...",
        ),
    ] = "findings=0.5,spatial_f1=0.5",
    margin: Annotated[float, typer.Option(help="Minimum difference between the two rewards of a pair.", min=0)] = 0.1,
    length_penalty: Annotated[
        float, typer.Option(help="Maximum length penalty, from twice the words of the reference on.", min=0)
    ] = 0.1,
    format_penalty: Annotated[
        float, typer.Option(help="Penalty for a report that was cut off or has another irregularity.", min=0)
    ] = 0.1,
    reward_option: Annotated[
        list[str] | None,
        typer.Option(
            help="Option of the scores, such as judge=openai:MODEL or cache=FOLDER; repeatable. "
            "Default: judge=offline.",
            metavar="NAME=VALUE",
        ),
    ] = None,
) -> None:
    """Pair the drafts of each study with the highest and the lowest reward, for DPO training with maira train.

    The reward is that of GRPO. The drafts come from different models, or from one model with different seeds: maira
    generate --temperature 1 --seed N.
    """
    from maira.train.config.run_config import RewardConfig
    from maira.train.post.pairs import make_preferences
    from maira.train.post.rewards import ReportReward

    if len(drafts) < 2:
        raise InputError(f"expected at least two files of drafts, found {len(drafts)}", field="drafts")
    values = {
        "scores": parse_key_values([item.strip() for item in scores.split(",")], "scores"),
        "length_penalty": length_penalty,
        "format_penalty": format_penalty,
        "options": {"judge": "offline", **parse_key_values(reward_option or (), "reward_option")},
    }
    config = validate_model(RewardConfig, values)
    with rename_fields({"options": "reward_option"}):
        reward = ReportReward(config)
    studies, _ = read_studies(manifest)
    pairs = make_preferences(drafts, {study.sample_id: study for study in studies}, reward, margin)
    skipped = ", ".join(f"{count} ({reason})" for reason, count in pairs.skipped.items())
    if not pairs.rows:
        raise RunError(f"expected at least one pair, found none; skipped: {skipped}", code=ErrorCode.NOTHING_SCORED)
    write_jsonl(out, pairs.rows)
    chosen = ", ".join(f"{pairs.chosen[file]} from {file}" for file in drafts)
    console = Console()
    print_line(console, f"{len(pairs.rows)} pairs from {len(studies)} studies: {out} (chosen: {chosen})")
    if skipped:
        print_line(console, f"skipped: {skipped}")


def train(
    config: Annotated[Path, typer.Argument(help="Run config (YAML).")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value overrides of the run config.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Train a model from a run config. The same command resumes an interrupted run.

    Use torchrun or accelerate launch for several GPUs or machines. On SIGTERM the run saves its state before the next
    step and exits with code 1.
    """
    from maira.train.config.check import check_run
    from maira.train.config.run_config import read_train_config

    console, options = Console(), read_train_config(config, overrides)
    check_run(options, partial(print_line, console), overwrite=overwrite)
    warn_of_bfloat16(console, options.precision)
    from maira.train.loop import run_training
    from maira.train.report_training import setup_report_training as setup

    command = ["maira", "train", str(config), *(overrides or ())]
    print_line(console, f"checkpoint: {run_training(options, setup, console, overwrite=overwrite, command=command)}")


@with_options
def assemble(
    encoder: Annotated[Path, typer.Option(help="RAD-DINO: Hugging Face folder, or DINOv2 state dict.")],
    language_model: Annotated[Path, typer.Option(help="Folder of a Llama model with its tokenizer, such as Vicuna.")],
    out: CheckpointFolder,
    seed: Annotated[int, typer.Option(min=0, help="Seed for initializing the adapter.")] = 0,
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"], typer.Option(help="Data type of the weights.")
    ] = "float32",
    rope_factor: Annotated[float, typer.Option(help="Linear scaling factor of the rotary embedding.", min=1)] = 1.5,
) -> None:
    """Create an untrained model from a published encoder and language model."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    from maira.model.assemble import assemble as run

    disable_progress_bar()
    config = run(encoder, language_model, out, seed=seed, dtype=getattr(torch, dtype), rope_factor=rope_factor)
    vocabulary = f"vocabulary of {config.text_config.vocab_size} tokens"
    print_line(Console(), f"{vocabulary}, {config.image_seq_length} tokens per image: {out}")


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
