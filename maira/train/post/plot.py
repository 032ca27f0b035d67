"""The plot of a run of post-training: the reward, and what is not rewarded, by step."""

from __future__ import annotations

from pathlib import Path

from radfact.io.jsonl import read_jsonl
from radfact.optional import load_pyplot

PLOT_FILE = "rewards.png"
"""Name of the plot in the folder of a run."""
_PANELS = {
    "reward of sampled reports": ("reward", "reward/"),
    "rewards of pairs": ("rewards/chosen", "rewards/rejected", "rewards/margins"),
    "scores of drafts": ("drafts/findings", "drafts/rouge_l", "drafts/logical_f1", "drafts/spatial_f1"),
    "words per report": ("words", "drafts/words"),
    "share of sentences": ("drafts/normal_sentence_share", "drafts/repeated_sentence_share"),
    "boxes per sentence": ("drafts/boxes_per_sentence",),
    "share of groups and responses": ("frac_reward_zero_std", "unscored"),
    "share of pairs": ("rewards/accuracies",),
}
"""Metrics by the title of their panel; a name that ends with a slash stands for all metrics that begin with it."""
_COLUMNS = 3


def plot_rewards(metrics: Path, out: Path) -> None:
    """Draw the `metrics.jsonl` of a run; a missing value has no point, and no panel if all are missing."""
    plt = load_pyplot()
    curves: dict[str, list[tuple[int, float]]] = {}
    for _, row in read_jsonl(metrics):
        for name, value in row.items():
            if value is not None:
                curves.setdefault(name, []).append((row["step"], value))
    panels: dict[str, list[str]] = {}
    for title, names in _PANELS.items():
        prefixes = tuple(name for name in names if name.endswith("/"))
        if known := [name for name in curves if name in names or (prefixes and name.startswith(prefixes))]:
            panels[title] = known
    lines = max(1, -(-len(panels) // _COLUMNS))
    figure = plt.figure(figsize=(13, 3.25 * lines), layout="constrained")
    try:
        for number, (title, known) in enumerate(panels.items(), start=1):
            axis = figure.add_subplot(lines, _COLUMNS, number)
            for name in known:
                marker = "o" if name.startswith("drafts/") else ""
                axis.plot(*zip(*curves[name], strict=True), marker=marker, markersize=4, label=name)
            axis.set_title(title, fontsize="medium")
            axis.set_xlabel("step")
            axis.legend(fontsize="small")
        figure.savefig(out, dpi=110)
    finally:
        plt.close(figure)
