"""Files of a comparison of systems: JSON, CSV and a page."""

from __future__ import annotations

import csv
import math
from dataclasses import asdict
from html import escape
from pathlib import Path

from radfact.html.markup import ARROWS, STATIC, assemble, words
from radfact.io.jsonl import open_atomic, write_json
from radfact.results.compare import Comparison, Contrast
from radfact.statistics.bootstrap import Summary


def write_comparison(comparison: Comparison, folder: Path) -> Path:
    """Write `comparison.json`, `comparison.csv` (one row per score and system) and `comparison.html`.

    Args:
        comparison: of systems.
        folder: folder of the files.

    Returns:
        The path of the page.
    """
    write_json(folder / "comparison.json", asdict(comparison))
    with open_atomic(folder / "comparison.csv") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        heads = ("score", "direction", "system", "point", "low", "high", "n")
        writer.writerow((*heads, "difference", "difference_low", "difference_high", "difference_n", "p"))
        for name, contrasts in comparison.scores.items():
            for system, contrast in zip(comparison.systems, contrasts, strict=True):
                summary, difference = contrast.summary, contrast.difference or Summary(None)
                row = [summary.point, summary.low, summary.high, summary.n]
                row += [difference.point, difference.low, difference.high]
                row += [difference.n if contrast.difference else None, contrast.p]
                writer.writerow([name, summary.direction, system, *("" if value is None else value for value in row)])
    path = folder / "comparison.html"
    with open_atomic(path) as handle:
        handle.write(_page(comparison))
    return path


def format_difference(contrast: Contrast, rounds: int) -> str:
    """Return the difference in brackets with its interval, p, and its n where not all samples have both systems.

    Args:
        contrast: of one system.
        rounds: of the test, which bounds p from below.
    """
    difference = contrast.difference
    if difference is None or difference.point is None:
        return ""
    interval = ""
    if difference.low is not None and difference.high is not None:
        interval = f" [{difference.low:+.3f}, {difference.high:+.3f}]"
    n = "" if difference.n == contrast.summary.n else f", n {difference.n}"
    return f"({difference.point:+.3f}{interval}, p {_format_p(contrast.p, rounds)}{n})"


def _format_p(value: float | None, rounds: int) -> str:
    """Format p with as many decimals as the rounds resolve; the smallest possible p is a bound."""
    if value is None:
        return "-"
    decimals = max(3, math.ceil(math.log10(rounds + 1) - 0.01))
    if value * (rounds + 1) > 1.5:
        return f"{value:.{decimals}f}"
    return f"≤ {math.ceil(round(value * 10**decimals, 6)) / 10**decimals:.{decimals}f}"


def _page(comparison: Comparison) -> str:
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("Score", comparison.systems[0]))
    # A heading is above the scores, not above the words next to them.
    heads += "".join(f'<th scope="col">{escape(name)}{_verdict_place()}</th>' for name in comparison.systems[1:])
    rounds = comparison.options["rounds"]
    rows = "".join(
        f'<tr><th scope="row">{escape(words(name))}{ARROWS[contrasts[0].summary.direction]}</th>'
        + "".join(_cell(contrast, rounds) for contrast in contrasts)
        + "</tr>"
        for name, contrasts in comparison.scores.items()
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in comparison.notes)
    first = escape(comparison.systems[0])
    hint = (
        f"↑ higher is better, ↓ lower is better. In brackets: difference to {first}, its 95 % interval from "
        f"{comparison.options['replicates']} paired bootstrap replicates, and p of approximate randomization with "
        f"{rounds} rounds. Better, worse: than {first}, with p of at most 0.05."
    )
    return assemble(
        STATIC / "sections.html",
        [STATIC / "page.css"],
        [],
        {},
        title=escape(f"Comparison: {', '.join(comparison.systems)}"),
        notes=notes,
        sections='<section aria-labelledby="scores-title"><h2 id="scores-title">Scores</h2>'
        f'<div class="panel"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
        f'<p class="hint">{hint}</p></section>',
    )


def _cell(contrast: Contrast, rounds: int) -> str:
    """Return a score and its difference to the first system, in words too if that is significant."""
    point = contrast.summary.point
    text = "–" if point is None else f"{point:.3f}"
    difference, direction = contrast.difference, contrast.summary.direction
    if difference is None:
        return f"<td>{text}</td>"
    tag = ""
    is_significant = difference.point is not None and contrast.p is not None and contrast.p <= 0.05
    if is_significant and difference.point is not None and direction != "neutral":
        is_better = (difference.point > 0) == (direction == "higher")
        tag = f'<span class="tag {"yes" if is_better else "no"}">{"better" if is_better else "worse"}</span>'
    brackets = escape(format_difference(contrast, rounds))
    return f'<td>{text}<span class="difference"> {brackets}</span>{_verdict_place(tag)}</td>'


def _verdict_place(tag: str = "") -> str:
    """Return a place for a tag that is as wide without it."""
    return f'<span class="verdict-place">{tag}</span>'
