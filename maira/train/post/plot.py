"""The plot of a run of post-training: the reward, and what is not rewarded, by step."""

from __future__ import annotations

import re
from pathlib import Path

from radfact.io.jsonl import read_jsonl
from radfact.optional import load_pyplot

PLOT_FILE = "rewards.png"
"""Name of the plot in the folder of a run."""
_SHOWN = re.compile(r"reward(/.+)?|rewards/.+|drafts/.+|words|frac_reward_zero_std|unscored")
_COLUMNS = 4


def plot_rewards(metrics: Path, out: Path) -> None:
    """Draw the `metrics.jsonl` of a run, a panel for each metric; a missing value has no point."""
    plt = load_pyplot()
    curves: dict[str, list[tuple[int, float]]] = {}
    for _, row in read_jsonl(metrics):
        for name, value in row.items():
            if value is not None and _SHOWN.fullmatch(name):
                curves.setdefault(name, []).append((row["step"], value))
    lines = max(1, -(-len(curves) // _COLUMNS))
    figure = plt.figure(figsize=(13, 2.5 * lines), layout="constrained")
    try:
        for number, (name, points) in enumerate(curves.items(), start=1):
            axis = figure.add_subplot(lines, _COLUMNS, number)
            axis.plot(*zip(*points, strict=True), marker="o" if name.startswith("drafts/") else "", markersize=4)
            axis.set_title(name, fontsize="medium")
            axis.set_xlabel("step")
        figure.savefig(out, dpi=110)
    finally:
        plt.close(figure)
