"""Systems side by side: the figures of several results folders on the samples that they share, and what differs."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from itertools import combinations
from pathlib import Path

from radfact.errors import InputError
from radfact.html.markup import STATIC, assemble, words
from radfact.io.jsonl import open_atomic, write_json
from radfact.results.systems import System, pooled_functions, read_system
from radfact.statistics.bootstrap import Summary, summarize_counts
from radfact.statistics.significance import paired_difference, randomization_test


@dataclass(frozen=True, slots=True)
class Contrast:
    """One figure of a system beside that of the first.

    Attributes:
        summary: of the system's own samples among the shared ones.
        difference: to the first system, paired, over samples that both have scored; None for the first itself.
        p: of the randomisation test of that difference.
    """

    summary: Summary
    difference: Summary | None = None
    p: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Systems side by side.

    Attributes:
        systems: their names, the one that the others are compared with first.
        shared: number of samples that all have; the only ones that count here.
        own: number of samples of each.
        figures: by name, a contrast a system.
        notes: what a reader must know.
        options: of the bootstrap and the test.
    """

    systems: Sequence[str]
    shared: int
    own: Sequence[int]
    figures: Mapping[str, Sequence[Contrast]]
    notes: Sequence[str]
    options: Mapping[str, int]


def compare(
    folders: Sequence[Path],
    *,
    metrics: Sequence[str] = (),
    replicates: int = 500,
    rounds: int = 1000,
    seed: int = 42,
) -> Comparison:
    """Compare the first of some results folders with the others, on the samples and figures that all have.

    Args:
        folders: two or more, of `radfact evaluate` or `radfact score`.
        metrics: of a user's own, as `module:object`, whose pooled figures can then be computed anew.
        replicates: of the bootstrap, which resamples two systems alike.
        rounds: of approximate randomisation, p = (k + 1) / (rounds + 1).
        seed: of both.

    Raises:
        InputError: a folder is not finished or given twice, or they have no sample or no figure in common.
    """
    if len(folders) < 2:
        raise InputError("expected two or more results folders to compare")
    functions = pooled_functions(metrics)
    named = zip(folders, _names(folders), strict=True)
    systems = [read_system(Path(folder), name, functions) for folder, name in named]
    _check_each_once(folders)
    first = systems[0]
    everywhere = set(first.sample_ids).intersection(*(one.sample_ids for one in systems[1:]))
    shared = [key for key in first.sample_ids if key in everywhere]
    names = [name for name in first.columns if all(name in one.columns for one in systems)]
    if not shared or not names:
        raise InputError(f"the results have no {'figure' if shared else 'sample'} in common", file=folders[1])
    settings = {"replicates": replicates, "seed": seed}
    figures = {}
    for name in names:
        column = first.columns[name]
        value, has_value = column.value, column.has_value
        tables = [one.columns[name].of(shared) for one in systems]
        points = [summarize_counts(table, {name: value}, has_value=has_value, **settings)[name] for table in tables]
        direction = first.directions[name]
        contrasts = [Contrast(replace(points[0], direction=direction))]
        for table, point in zip(tables[1:], points[1:], strict=True):
            how = {name: value}
            gap = paired_difference(table, tables[0], how, has_value=has_value, pairing=column.pairing, **settings)[
                name
            ]
            p = randomization_test(table, tables[0], how, pairing=column.pairing, rounds=rounds, seed=seed)[name]
            contrasts.append(Contrast(replace(point, direction=direction), replace(gap, direction=direction), p))
        figures[name] = contrasts
    return Comparison(
        [one.name for one in systems],
        len(shared),
        [len(one.sample_ids) for one in systems],
        figures,
        _notes(systems, len(shared), names),
        {**settings, "rounds": rounds},
    )


def _check_each_once(folders: Sequence[Path]) -> None:
    for one, other in combinations(map(Path, folders), 2):
        if one.samefile(other):
            said = "is given twice" if one == other else f"is the same folder as {one}"
            raise InputError(f"{said}; a system differs in nothing from itself", file=other)


def _names(folders: Sequence[Path]) -> list[str]:
    names = [Path(folder).resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def _notes(systems: Sequence[System], shared: int, names: Sequence[str]) -> list[str]:
    notes = [f"{shared} samples are in all of them; no other counts here."]
    first = systems[0]
    for one in systems[1:]:
        other = sum(one.references[key] != text for key, text in first.references.items() if key in one.references)
        if other:
            notes.append(
                f"{other} samples have another reference text in {one.name} than in {first.name}: another data set, or "
                "another splitter."
            )
        notes += _asked_otherwise(first, one, names)
    notes += _not_compared(systems, names)
    notes.append("p is of each figure by itself: of many figures some differ by chance.")
    return notes


def _asked_otherwise(first: System, one: System, names: Sequence[str]) -> list[str]:
    """Of which figures the two were computed in different ways."""
    notes = []
    other = [name for name in names if first.metric_of.get(name) != one.metric_of.get(name)]
    if other:
        notes.append(f"{', '.join(other)}: of another metric in {one.name} than in {first.name}.")
    for metric in dict.fromkeys(
        first.metric_of[name] for name in names if name in first.metric_of and name not in other
    ):
        if one.asked.get(metric) != first.asked.get(metric):
            notes.append(f"{metric}: another judge or model, or other settings, in {one.name} than in {first.name}.")
    return notes


def _not_compared(systems: Sequence[System], names: Sequence[str]) -> list[str]:
    notes = []
    dropped = sorted({figure for one in systems for figure in one.directions} - set(names))
    everywhere = [figure for figure in dropped if all(figure in one.directions for one in systems)]
    if missing := [figure for figure in dropped if figure not in everywhere]:
        notes.append(f"Not compared, because not all systems have them: {', '.join(missing)}.")
    if everywhere:
        notes.append(
            f"Not compared, because the metric that pools them is not known here: {', '.join(everywhere)}; name it "
            "with --metric MODULE:OBJECT."
        )
    return notes


def in_brackets(contrast: Contrast, rounds: int) -> str:
    """The difference with its interval, p, and its n where not all samples have both; nothing where there is none.

    Args:
        contrast: of one system.
        rounds: of the test, below whose least p nothing is known.
    """
    gap = contrast.difference
    if gap is None or gap.point is None:
        return ""
    interval = "" if gap.low is None or gap.high is None else f" [{gap.low:+.3f}, {gap.high:+.3f}]"
    said = "" if gap.n == contrast.summary.n else f", n {gap.n}"
    return f"({gap.point:+.3f}{interval}, p {_p(contrast.p, rounds)}{said})"


def _p(value: float | None, rounds: int) -> str:
    """With as many decimals as the rounds tell apart; the least that they can give is a bound."""
    if value is None:
        return "-"
    decimals = max(3, math.ceil(math.log10(rounds + 1) - 0.01))
    if value * (rounds + 1) > 1.5:
        return f"{value:.{decimals}f}"
    return f"≤ {math.ceil(round(value * 10**decimals, 6)) / 10**decimals:.{decimals}f}"


def write_comparison(comparison: Comparison, folder: Path) -> Path:
    """Write `comparison.json`, `comparison.csv` (a line a figure and system) and `comparison.html`, and return the
    page."""
    write_json(folder / "comparison.json", asdict(comparison))
    with open_atomic(folder / "comparison.csv") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(
            (
                *("figure", "direction", "system", "point", "low", "high", "n"),
                *("difference", "difference_low", "difference_high", "difference_n", "p"),
            )
        )
        for figure, contrasts in comparison.figures.items():
            for system, one in zip(comparison.systems, contrasts, strict=True):
                gap = one.difference or Summary(None)
                row = [one.summary.point, one.summary.low, one.summary.high, one.summary.n]
                row += [gap.point, gap.low, gap.high, gap.n if one.difference else None, one.p]
                writer.writerow(
                    [figure, one.summary.direction, system, *("" if value is None else value for value in row)]
                )
    path = folder / "comparison.html"
    with open_atomic(path) as handle:
        handle.write(_page(comparison))
    return path


def _page(comparison: Comparison) -> str:
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("Figure", comparison.systems[0]))
    # A heading stands over the figures, not over the words beside them.
    heads += "".join(f'<th scope="col">{escape(name)}{_verdict_place()}</th>' for name in comparison.systems[1:])
    marks = {"higher": " ↑", "lower": " ↓", "neutral": ""}
    rounds = comparison.options["rounds"]
    rows = "".join(
        f'<tr><th scope="row">{escape(words(figure))}{marks[contrasts[0].summary.direction]}</th>'
        + "".join(_cell(one, rounds) for one in contrasts)
        + "</tr>"
        for figure, contrasts in comparison.figures.items()
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in comparison.notes)
    first = escape(comparison.systems[0])
    hint = (
        f"↑ higher is better, ↓ lower is better. In brackets: difference to {first}, its 95 % interval from "
        f"{comparison.options['replicates']} paired bootstrap replicates, and p of approximate randomisation with "
        f"{rounds} rounds. Better, worse: than {first}, with p of at most 0.05."
    )
    return assemble(
        STATIC / "sections.html",
        [STATIC / "page.css"],
        [],
        {},
        title=escape(f"Comparison: {', '.join(comparison.systems)}"),
        notes=notes,
        sections='<section aria-labelledby="figures-title"><h2 id="figures-title">Figures</h2>'
        f'<div class="panel"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
        f'<p class="hint">{hint}</p></section>',
    )


def _cell(contrast: Contrast, rounds: int) -> str:
    """A figure, and muted beside it how far it is from the first system's; in words too where that is not by chance."""
    point = contrast.summary.point
    said = "–" if point is None else f"{point:.3f}"
    if contrast.difference is None:
        return f"<td>{said}</td>"
    verdict = _verdict(contrast)
    tag = f'<span class="tag {"yes" if verdict == "better" else "no"}">{verdict}</span>' if verdict else ""
    return (
        f'<td>{said}<span class="difference"> {escape(in_brackets(contrast, rounds))}</span>{_verdict_place(tag)}</td>'
    )


def _verdict_place(tag: str = "") -> str:
    """As wide without a tag as with one."""
    return f'<span class="verdict-place">{tag}</span>'


def _verdict(contrast: Contrast) -> str:
    """Better or worse than the first by more than chance, or nothing."""
    gap, direction = contrast.difference, contrast.summary.direction
    if gap is None or gap.point is None or contrast.p is None or contrast.p > 0.05 or direction == "neutral":
        return ""
    return "better" if (gap.point > 0) == (direction == "higher") else "worse"
