"""The markup of the results page: what Python writes of it; the studies are drawn by its script from JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from importlib.resources.abc import Traversable
from string import Template
from typing import Any

from radfact.results.schema import RADFACT, ScoreRecord, ScoresFile, metric_of_scores
from radfact.scoring.radfact import F1_PARTS, SCORES
from radfact.statistics.bootstrap import Direction

STATIC = resources.files("radfact.html") / "static"
"""Templates, styles and scripts of pages."""

_MOST_FAILURES = 100


def render(
    title: str,
    scores: ScoresFile,
    run: Mapping[str, Any],
    studies: Sequence[dict[str, Any]],
    drafts: Sequence[dict[str, Any]],
    notes: Sequence[str],
    sections: str = "",
) -> str:
    """The whole page as HTML: every text is escaped or lies in a block of JSON data.

    Args:
        title: title and heading.
        scores: the figures of the set.
        run: `run.json`, or an empty mapping.
        studies: the scored studies as the script takes them.
        drafts: the studies without a reference.
        notes: sentences of the banner.
        sections: HTML below the figures of the set.
    """
    data = {
        "metrics": _has_other_metrics(scores),
        # Without RadFact there are reports and no verdicts.
        "judged": RADFACT in scores.metrics,
        # Also of what precision, recall and F1 have in common, as which they are shown together.
        "names": {
            one: words(one) for name in scores.scores for one in (name, re.sub("_(precision|recall|f1)$", "", name))
        },
        "directions": {name: figure.direction for name, figure in scores.scores.items()},
        "studies": studies,
        "unscored": drafts,
    }
    return assemble(
        STATIC / "page.html",
        [STATIC / "viewer.css", STATIC / "page.css"],
        [STATIC / "viewer.js", STATIC / "cards.js", STATIC / "study.js", STATIC / "page.js", STATIC / "frame.js"],
        data,
        title=escape(title),
        judge=_judge(scores, run),
        notes=_notes(notes),
        summary=_summary(scores, run, studies) + sections,
        unscored=_UNSCORED if drafts else "",
    )


def assemble(
    body: Traversable, styles: Sequence[Traversable], scripts: Sequence[Traversable], data: Any, **markup: str
) -> str:
    """A page in one piece: its body in `shell.html`, styles, scripts, data and a policy that lets nothing else in.

    Args:
        body: template of what is seen, with the names in `markup`.
        styles, scripts: in their order.
        data: JSON that the script finds in the element `page-data`.
        markup: HTML for the templates, `title` among it; text in it is escaped already. Controls that turn the order
            of letters around are written out.
    """
    style, script = ("".join(part.read_text("utf-8") for part in parts) for parts in (styles, scripts))
    policy = (
        f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; "
        "img-src data: file: 'self'; base-uri 'none'; form-action 'none'"
    )
    shown = {name: _TURNS.sub(lambda found: f"[U+{ord(found[0]):04X}]", part) for name, part in markup.items()}
    return Template((STATIC / "shell.html").read_text("utf-8")).substitute(
        title=shown["title"],
        body=Template(body.read_text("utf-8")).substitute(shown),
        policy=policy,
        # Inside a script element only "<" can end or nest anything.
        data=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        style=style,
        script=script,
    )


# As `visibleText` of viewer.js has them.
_TURNS = re.compile("[\u202a-\u202e\u2066-\u2069]")

_UNSCORED = """<section class="apart" id="unscored" aria-labelledby="unscored-title">
<h2 id="unscored-title">Drafts without a reference: shown, not scored</h2>
<p>There is no reference report for these studies. Nothing here is in any figure of this page.</p>
<div id="unscored-list"></div>
</section>"""


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


def _has_other_metrics(scores: ScoresFile) -> bool:
    return list(scores.metrics) != [RADFACT]


def _judge(scores: ScoresFile, run: Mapping[str, Any]) -> str:
    about = [judge for judge in (scores.judge, run.get("judge")) if isinstance(judge, dict)]
    name = scores.judge if isinstance(scores.judge, str) else next((j["name"] for j in about if "name" in j), None)
    note = next((j["note"] for j in about if j.get("note")), None)
    said = f" {escape(str(note))}" if note else ""
    splitter = (scores.splitter or {}).get("name")
    if name is None and RADFACT not in scores.metrics:
        return ""
    split = f" Narratives split by <strong>{escape(str(splitter))}</strong>." if splitter else ""
    return f'<p class="judge">Judge: <strong>{escape(str(name or "not named"))}</strong>.{said}{split}</p>'


def _notes(notes: Sequence[str]) -> str:
    lines = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f'<div class="notes" role="note">{lines}</div>' if notes else ""


def _summary(scores: ScoresFile, run: Mapping[str, Any], studies: Sequence[Mapping[str, Any]]) -> str:
    failures = [study for study in studies if study["failure"]]
    meaning = _MEANING if any(name in SCORES for name in scores.scores) else ""
    return (
        '<section aria-labelledby="figures-title"><h2 id="figures-title">Figures</h2><div class="summary">'
        f'<div class="panel">{_figure_table(scores)}{_unavailable(scores)}{meaning}</div>'
        f'<div class="panel"><h3>Counts</h3>{_pairs(_counts(scores) or {"studies": len(studies)})}'
        f"{_failures(failures)}</div>{_run(run)}</div></section>"
    )


def _counts(scores: ScoresFile) -> dict[str, Any]:
    """As `scores.json` has them; of several metrics by each that could not score all."""
    if len(scores.metrics) < 2:
        return scores.counts
    names = {"scored": "scored by every metric", "excluded": "not scored by every metric"}
    counts = {names.get(name, name): count for name, count in scores.counts.items()}
    return counts | {f"not scored by {name}": one.failed for name, one in scores.metrics.items() if one.failed}


def _figure_table(scores: ScoresFile) -> str:
    metric_of = metric_of_scores(scores) if _has_other_metrics(scores) else {}
    bars = {name: _bar(figure) for name, figure in scores.scores.items()}
    drawn = any(bars.values())
    rows, previous = [], None
    for name, figure in scores.scores.items():
        group = metric_of.get(name, "").replace("radfact", "") or name.rsplit("_", 1)[0]
        css = ' class="group"' if previous not in (None, group) else ""
        previous = group
        interval = "–" if figure.low is None or figure.high is None else f"{figure.low:.3f} – {figure.high:.3f}"
        way = ARROWS[figure.direction]
        median = f'<td class="spare">{_number(figure.median)}</td>'
        cells = f"<td>{_number(figure.point)}</td>{median}<td>{interval}</td>"
        last = f'<td class="chart spare">{bars[name]}</td><td>{"–" if figure.n is None else figure.n}</td>'
        failed = f"<td>{scores.metrics[metric_of[name]].failed}</td>" if name in metric_of else ""
        rows.append(f'<tr{css}><th scope="row">{escape(words(name))}{way}</th>{cells}{last}{failed}</tr>')
    return (
        f'<table class="figure-table"><caption>{_caption(scores, drawn)}</caption><thead><tr>'
        '<th scope="col">Figure</th><th scope="col">Point</th><th scope="col" class="spare">Median</th>'
        '<th scope="col">95 % interval</th>'
        '<th scope="col" class="chart spare"><span class="unseen">Interval bar</span></th>'
        f'<th scope="col">n</th>{_FAILED if metric_of else ""}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


def _caption(scores: ScoresFile, drawn: bool) -> str:
    over = " or, as corpus BLEU and F1 of findings, computed from all of them" if _has_other_metrics(scores) else ""
    is_f1_there = any(name in F1_PARTS for name in scores.scores)
    f1 = "; RadFact's F1: the harmonic mean of the set's precision and recall" if is_f1_there else ""
    return (
        f"↑ higher is better, ↓ lower is better. Mean over the studies that have a value{over}{f1}. Beside it: its "
        f'bootstrapped 95 % interval<span class="spare"> and median{_BAR if drawn else ""}</span>.'
    )


_BAR = ". The bar runs from 0 to 1: 95 % interval (light), middle half (dark), point (line)"
_FAILED = '<th scope="col">Failed</th>'
ARROWS: Mapping[Direction, str] = {"higher": " ↑", "lower": " ↓", "neutral": ""}


def _unavailable(scores: ScoresFile) -> str:
    items = "".join(
        f"<li><strong>{escape(name)}</strong>: {escape(why)}</li>" for name, why in scores.unavailable.items()
    )
    count = len(scores.unavailable)
    return f"<details><summary>Metrics not computed: {count}</summary><ul>{items}</ul></details>" if items else ""


def _bar(figure: ScoreRecord) -> str:
    """The interval on an axis from 0 to 1; nothing for figures that live elsewhere, which share no axis."""
    known = [value for value in (figure.point, figure.low, figure.high) if value is not None]
    if not known or min(known) < 0 or max(known) > 1:
        return ""

    def span(low: float | None, high: float | None, css: str, y: int) -> str:
        if low is None or high is None:
            return ""
        return (
            f'<rect class="{css}" x="{low * 200:.2f}" y="{y}" width="{(high - low) * 200:.2f}" height="{16 - 2 * y}"/>'
        )

    point = "" if figure.point is None else f'<path class="point" d="M{figure.point * 200:.2f} 1V15"/>'
    return (
        '<svg class="bar" viewBox="-2 0 204 16" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="axis" d="M0 8H200M0 3V13M200 3V13"/>{span(figure.low, figure.high, "interval", 4)}'
        f"{span(figure.q25, figure.q75, 'middle', 4)}{point}</svg>"
    )


_MEANING = """<details><summary>What RadFact's figures mean</summary>
<p>Precision judges the sentences of the candidate against the reference, recall those of the reference against the
candidate; F1 is the harmonic mean of the two. The F1 of the set is that of the set's precision and recall, not the mean
of the studies' F1. <b>Logical</b>: entailed sentences among all. <b>Grounding</b>: logically and spatially entailed
ones among the entailed that have boxes. <b>Spatial</b>: logically and spatially entailed ones among all that have
boxes. A study without such sentences has no value and is left out of n; n of an F1 counts the studies that have
both its precision and its recall.</p></details>"""


def _failures(failures: Sequence[Mapping[str, Any]]) -> str:
    if not failures:
        return "<p>Failures: none.</p>"
    items = "".join(
        f"<li><strong>{escape(study['sample_id'])}</strong>: {escape(study['failure'])}</li>"
        for study in failures[:_MOST_FAILURES]
    )
    left = len(failures) - _MOST_FAILURES
    more = f"<p>… and {left} more in samples.jsonl</p>" if left > 0 else ""
    return (
        f'<details class="failures" open><summary>Failures: {len(failures)} of the studies</summary>'
        f"<ul>{items}</ul>{more}</details>"
    )


def _run(run: Mapping[str, Any]) -> str:
    made = {name: value for name, value in run.items() if name != "page"}
    details = f"<details><summary>How this was made</summary>{_pairs(made)}</details>"
    return f'<div class="panel made">{details}</div>' if made else ""


def _pairs(values: Mapping[str, Any]) -> str:
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in _flat(values))
    return f'<dl class="pairs">{rows}</dl>'


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in values.items():
        name = f"{prefix}{key.replace('_', ' ')}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name} · ")
        elif value is not None:
            yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_WRITTEN = {
    "f1": "F1",
    "rouge": "ROUGE",
    "rouge l": "ROUGE-L",
    "bleu": "BLEU",
    "meteor": "METEOR",
    "bertscore": "BERTScore",
    "chexbert": "CheXbert",
    "chexprompt": "CheXprompt",
    "radgraph": "RadGraph",
    "radcliq": "RadCliQ",
    "rg": "RG",
    "er": "ER",
    "green": "GREEN",
    "vert": "VERT",
    "fineradscore": "FineRadScore",
}
_KNOWN = re.compile(rf"\b({'|'.join(sorted(_WRITTEN, key=len, reverse=True))})\b")


def words(name: str) -> str:
    """The name of a figure for a person, metrics as their papers write them.

    Of `FOLDER/FIGURE` the folder stays as it is, and so does what is no name of a figure, such as that of a model.
    """
    folder, slash, figure = name.rpartition("/")
    if slash or not re.fullmatch(r"\w+", name):
        return f"{folder}/{words(figure)}" if slash and re.fullmatch(r"\w+", figure) else name
    spaced = _KNOWN.sub(lambda found: _WRITTEN[found[0]], name.replace("_", " "))
    spaced = re.sub(r"^BLEU (\d)$", r"BLEU-\1", spaced)
    return spaced[:1].upper() + spaced[1:]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
