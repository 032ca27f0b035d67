"""`maira preferences`: preference pairs of drafts, for training with `dpo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from maira.cli.options import Manifest, read_studies
from maira.cli.show import print_line
from radfact.cli.command import with_options
from radfact.errors import ErrorCode, InputError, RunError
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
    from radfact.io.jsonl import write_jsonl

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
