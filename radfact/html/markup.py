"""HTML of the results page; its script draws the studies from JSON."""

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

_MAX_FAILURES = 100


def render(
    title: str,
    scores: ScoresFile,
    run: Mapping[str, Any],
    studies: Sequence[dict[str, Any]],
    drafts: Sequence[dict[str, Any]],
    notes: Sequence[str],
    sections: str = "",
) -> str:
    """Return the whole page as HTML; every text is escaped or part of a block of JSON data.

    Args:
        title: title and heading.
        scores: dataset-level scores.
        run: `run.json`, or an empty mapping.
        studies: scored studies in the form of the page's script.
        drafts: studies without a reference.
        notes: sentences of the banner.
        sections: HTML below the dataset-level scores.
    """
    data = {
        "metrics": scores.metrics.keys() != {RADFACT},
        # Without RadFact there are reports and no verdicts.
        "judged": RADFACT in scores.metrics,
        # Also for the common name of precision, recall and F1, which are shown together.
        "names": {
            key: words(key) for name in scores.scores for key in (name, re.sub("_(precision|recall|f1)$", "", name))
        },
        "directions": {name: score.direction for name, score in scores.scores.items()},
        "studies": studies,
        "unscored": drafts,
    }
    banner = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return assemble(
        STATIC / "page.html",
        [STATIC / "viewer.css", STATIC / "page.css"],
        [STATIC / "viewer.js", STATIC / "cards.js", STATIC / "study.js", STATIC / "page.js", STATIC / "frame.js"],
        data,
        title=escape(title),
        judge=_judge(scores, run),
        notes=f'<div class="notes" role="note">{banner}</div>' if banner else "",
        summary=_summary(scores, run, studies) + sections,
        unscored=_UNSCORED if drafts else "",
    )


def assemble(
    body: Traversable, styles: Sequence[Traversable], scripts: Sequence[Traversable], data: Any, **markup: str
) -> str:
    """Return a page in one file: body, styles, scripts, data, and a content security policy that allows nothing else.

    Args:
        body: template of the visible part, with the names in `markup`.
        styles: style sheets in order.
        scripts: scripts in order.
        data: JSON that the script reads from the element `page-data`.
        markup: HTML for the templates, including `title`, with escaped text. Bidirectional controls are written out.
    """
    style, script = ("".join(part.read_text("utf-8") for part in parts) for parts in (styles, scripts))
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") for text in (script, style)]
    policy = (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; "
        "img-src data: file: 'self'; base-uri 'none'; form-action 'none'"
    )
    shown = {name: _BIDIRECTIONAL.sub(lambda match: f"[U+{ord(match[0]):04X}]", part) for name, part in markup.items()}
    return Template((STATIC / "shell.html").read_text("utf-8")).substitute(
        title=shown["title"],
        body=Template(body.read_text("utf-8")).substitute(shown),
        policy=policy,
        # Inside a script element only "<" can end or nest anything.
        data=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        style=style,
        script=script,
    )


# The same as in `visibleText` of viewer.js.
_BIDIRECTIONAL = re.compile("[\u202a-\u202e\u2066-\u2069]")

_UNSCORED = """<section class="apart" id="unscored" aria-labelledby="unscored-title">
<h2 id="unscored-title">Drafts without a reference: shown, not scored</h2>
<p>There is no reference report for these studies. Nothing here is in any score of this page.</p>
<div id="unscored-list"></div>
</section>"""


def _judge(scores: ScoresFile, run: Mapping[str, Any]) -> str:
    records = [judge for judge in (scores.judge, run.get("judge")) if isinstance(judge, dict)]
    name = scores.judge if isinstance(scores.judge, str) else next((j["name"] for j in records if "name" in j), None)
    if name is None and RADFACT not in scores.metrics:
        return ""
    note = next((f" {escape(str(judge['note']))}" for judge in records if judge.get("note")), "")
    splitter = (scores.splitter or {}).get("name")
    split = f" Narratives split by <strong>{escape(str(splitter))}</strong>." if splitter else ""
    return f'<p class="judge">Judge: <strong>{escape(str(name or "not named"))}</strong>.{note}{split}</p>'


def _summary(scores: ScoresFile, run: Mapping[str, Any], studies: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of scores, the unavailable metrics, counts, failures and run details."""
    unavailable = "".join(
        f"<li><strong>{escape(name)}</strong>: {escape(why)}</li>" for name, why in scores.unavailable.items()
    )
    if unavailable:
        summary = f"Metrics not computed: {len(scores.unavailable)}"
        unavailable = f"<details><summary>{summary}</summary><ul>{unavailable}</ul></details>"
    counts = scores.counts
    if len(scores.metrics) > 1:
        names = {"scored": "scored by every metric", "excluded": "not scored by every metric"}
        counts = {names.get(name, name): count for name, count in counts.items()}
        counts |= {f"not scored by {name}": metric.failed for name, metric in scores.metrics.items() if metric.failed}
    details = {name: value for name, value in run.items() if name != "page"}
    made = f"<details><summary>Run details</summary>{_pairs(details)}</details>"
    meaning = _MEANING if any(name in SCORES for name in scores.scores) else ""
    return (
        '<section aria-labelledby="scores-title"><h2 id="scores-title">Scores</h2><div class="summary">'
        f'<div class="panel">{_score_table(scores)}{unavailable}{meaning}</div>'
        f'<div class="panel"><h3>Counts</h3>{_pairs(counts or {"studies": len(studies)})}'
        f"{_failures([study for study in studies if study['failure']])}</div>"
        f'{f"""<div class="panel made">{made}</div>""" if details else ""}</div></section>'
    )


def _score_table(scores: ScoresFile) -> str:
    has_other_metrics = scores.metrics.keys() != {RADFACT}
    metric_of = metric_of_scores(scores) if has_other_metrics else {}
    bars = {name: _bar(score) for name, score in scores.scores.items()}
    rows, previous = [], None
    for name, score in scores.scores.items():
        group = metric_of.get(name, "").replace(RADFACT, "") or name.rsplit("_", 1)[0]
        css = ' class="group"' if previous not in (None, group) else ""
        previous = group
        interval = "–" if score.low is None or score.high is None else f"{score.low:.3f} – {score.high:.3f}"
        median = f'<td class="spare">{_number(score.median)}</td>'
        cells = f"<td>{_number(score.point)}</td>{median}<td>{interval}</td>"
        last = f'<td class="chart spare">{bars[name]}</td><td>{"–" if score.n is None else score.n}</td>'
        failed = f"<td>{scores.metrics[metric_of[name]].failed}</td>" if name in metric_of else ""
        label = f"{escape(words(name))}{ARROWS[score.direction]}"
        rows.append(f'<tr{css}><th scope="row">{label}</th>{cells}{last}{failed}</tr>')
    pooled = " or, as corpus BLEU and F1 of findings, computed from all of them" if has_other_metrics else ""
    has_f1 = any(name in F1_PARTS for name in scores.scores)
    f1 = "; RadFact's F1: the harmonic mean of the dataset-level precision and recall" if has_f1 else ""
    caption = (
        f"↑ higher is better, ↓ lower is better. Mean over the studies that have a value{pooled}{f1}, with its "
        f'bootstrapped 95 % interval<span class="spare"> and median{_BAR if any(bars.values()) else ""}</span>.'
    )
    return (
        f'<table class="score-table"><caption>{caption}</caption><thead><tr>'
        '<th scope="col">Score</th><th scope="col">Point</th><th scope="col" class="spare">Median</th>'
        '<th scope="col">95 % interval</th>'
        '<th scope="col" class="chart spare"><span class="unseen">Interval bar</span></th>'
        f'<th scope="col">n</th>{_FAILED if metric_of else ""}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


_BAR = ". The bar runs from 0 to 1: 95 % interval (light), middle half (dark), point (line)"
_FAILED = '<th scope="col">Failed</th>'
ARROWS: Mapping[Direction, str] = {"higher": " ↑", "lower": " ↓", "neutral": ""}


def _bar(score: ScoreRecord) -> str:
    """Return the interval on an axis from 0 to 1; nothing for scores outside of it, which share no axis."""
    known = [value for value in (score.point, score.low, score.high) if value is not None]
    if not known or min(known) < 0 or max(known) > 1:
        return ""
    spans = "".join(
        f'<rect class="{css}" x="{low * 200:.2f}" y="4" width="{(high - low) * 200:.2f}" height="8"/>'
        for css, low, high in (("interval", score.low, score.high), ("middle", score.q25, score.q75))
        if low is not None and high is not None
    )
    point = "" if score.point is None else f'<path class="point" d="M{score.point * 200:.2f} 1V15"/>'
    return (
        '<svg class="bar" viewBox="-2 0 204 16" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="axis" d="M0 8H200M0 3V13M200 3V13"/>{spans}{point}</svg>'
    )


_MEANING = """<details><summary>What RadFact's scores mean</summary>
<p>Precision judges the sentences of the candidate against the reference, recall those of the reference against the
candidate; F1 is the harmonic mean of the two. The F1 of the dataset is that of its precision and recall, not the mean
of the studies' F1. <b>Logical</b>: entailed sentences among all. <b>Grounding</b>: logically and spatially entailed
ones among the entailed that have boxes. <b>Spatial</b>: logically and spatially entailed ones among all that have
boxes. A study without such sentences has no value and does not count in n; n of an F1 counts the studies that have
both its precision and its recall.</p></details>"""


def _failures(failures: Sequence[Mapping[str, Any]]) -> str:
    if not failures:
        return "<p>Failures: none.</p>"
    items = "".join(
        f"<li><strong>{escape(study['sample_id'])}</strong>: {escape(study['failure'])}</li>"
        for study in failures[:_MAX_FAILURES]
    )
    left = len(failures) - _MAX_FAILURES
    more = f"<p>… and {left} more in samples.jsonl</p>" if left > 0 else ""
    return (
        f'<details class="failures" open><summary>Failures: {len(failures)} of the studies</summary>'
        f"<ul>{items}</ul>{more}</details>"
    )


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


_DISPLAY_NAMES = {
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
_KNOWN = re.compile(rf"\b({'|'.join(sorted(_DISPLAY_NAMES, key=len, reverse=True))})\b")


def words(name: str) -> str:
    """Return the name of a score for a person, with metrics as their papers write them.

    The folder of `FOLDER/SCORE` and anything that is not the name of a score, such as a model, stay as they are.
    """
    folder, slash, score = name.rpartition("/")
    if slash or not re.fullmatch(r"\w+", name):
        return f"{folder}/{words(score)}" if slash and re.fullmatch(r"\w+", score) else name
    spaced = _KNOWN.sub(lambda match: _DISPLAY_NAMES[match[0]], name.replace("_", " "))
    spaced = re.sub(r"^BLEU (\d)$", r"BLEU-\1", spaced)
    return spaced[:1].upper() + spaced[1:]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
