"""HTML of the results page; its script renders the studies from JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import islice
from string import Template
from typing import Any

from radfact.findings.details import FindingTable
from radfact.metrics.radfact.options import ScoringOptions
from radfact.metrics.radfact.scores import F1_PARTS, POLICY_SCORES, SCORES
from radfact.pages.studies import StudyList, scoring_of
from radfact.results.display import score_label
from radfact.results.schema import RADFACT, RunFile, ScoreRecord, ScoresFile, describe_models, metric_of_scores

STATIC = resources.files("radfact.pages") / "static"
"""Templates, styles and scripts of pages."""

_MAX_FAILURES = 100


@dataclass(frozen=True, slots=True)
class PageHead:
    """Content above the studies on the page of a results folder.

    Attributes:
        title: title and heading.
        scores: dataset-level scores with a value.
        run: `run.json`, or an empty mapping.
        notes: sentences for the banner.
        without_value: names of the other scores.
        finding_tables: counts by finding of each metric that compares findings, filled while studies are read.
    """

    title: str
    scores: ScoresFile
    run: Mapping[str, Any]
    notes: Sequence[str]
    without_value: Sequence[str] = ()
    finding_tables: Mapping[str, FindingTable] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """A separate page with some of the studies: its number, its first and last study (all from 1), and their total."""

    number: int
    first: int
    last: int
    total: int


def part_name(number: int) -> str:
    """Return the file name of a separate page."""
    return f"{number:04d}.html"


def render(head: PageHead, studies: Sequence[dict[str, Any]], drafts: Sequence[dict[str, Any]], sections: str) -> str:
    """Return the page of a results folder as HTML; every text is escaped or part of a block of JSON data.

    Args:
        head: content above the studies.
        studies: scored studies in the form of the page's script.
        drafts: studies without a reference.
        sections: HTML below the dataset-level scores.
    """
    failures = {study["sample_id"]: study["failure"] for study in studies if study["failure"]}
    summary = _summary(head, len(studies), failures) + sections
    return _render(head, {"studies": studies, "unscored": drafts}, summary=summary, has_drafts=bool(drafts))


def render_list(
    head: PageHead, studies: StudyList, drafts: Sequence[dict[str, Any]], sections: str, folder: str, size: int
) -> str:
    """Return the main page of a results folder whose studies are on separate pages, as HTML.

    Args:
        head: as in `render`.
        studies: all studies.
        drafts: as in `render`.
        sections: as in `render`.
        folder: folder of the separate pages, with a trailing slash.
        size: number of studies on each separate page.
    """
    failures = {studies.ids[index]: failure for index, failure in studies.failures.items()}
    summary = _summary(head, len(studies.ids), failures) + sections
    names = [part_name(index // size + 1) for index in range(0, len(studies.ids), size)]
    columns = {**vars(studies), "parts": [folder + name for name in names], "size": size}
    return _render(head, {"list": columns, "unscored": drafts}, summary=summary, has_drafts=bool(drafts))


def render_part(head: PageHead, studies: Sequence[dict[str, Any]], part: Part) -> str:
    """Return a page with some of the studies as HTML.

    Args:
        head: head of the main page.
        studies: studies of this page.
        part: number and range of this page.
    """
    links = [
        f'<a rel="{relation}" href="{part_name(number)}">{label}</a>'
        for relation, label, number, exists in (
            ("prev", "Previous", part.number - 1, part.number > 1),
            ("next", "Next", part.number + 1, part.last < part.total),
        )
        if exists
    ]
    summary = (
        f'<nav class="parts" aria-label="Pages"><a href="../report.html">Scores and all {part.total} studies</a>'
        f"<span>Studies {part.first} to {part.last}</span>{''.join(links)}</nav>"
    )
    return _render(head, {"studies": studies, "unscored": [], "isPart": True}, summary=summary, has_drafts=False)


def render_served(head: PageHead, studies: StudyList, sections: str, navigation: str, data: Mapping[str, Any]) -> str:
    """Return the page of a results folder whose script fetches the studies from a server, as HTML.

    Args:
        head: as in `render`.
        studies: all studies.
        sections: as in `render`.
        navigation: HTML above the scores.
        data: addresses of the server (`api`), the drafts without a reference (`unscored`), and whether a sentence is
            located (`located`).
    """
    failures = {studies.ids[index]: failure for index, failure in studies.failures.items()}
    summary = navigation + _summary(head, len(studies.ids), failures) + sections
    columns = {**vars(studies), "parts": [], "size": 1}
    has_drafts = bool(data["unscored"])
    return _render(head, {"list": columns, **data}, summary=summary, has_drafts=has_drafts, policy=SERVED)


def render_pair(
    title: str,
    scores: ScoresFile,
    studies: StudyList,
    lead: str,
    data: Mapping[str, Any],
    scoring: ScoringOptions | None,
) -> str:
    """Return the page of two runs side by side whose script fetches the studies from a server, as HTML.

    Args:
        title: title and heading.
        scores: that both runs have.
        studies: shared studies; their scores are differences.
        lead: HTML above the scores.
        data: as in `render_served`, with the names of the runs (`sides`).
        scoring: geometry and threshold of the spatial scores of both runs; None if they differ or are not known.
    """
    columns = {**vars(studies), "parts": [], "size": 1}
    data = {**_score_data(scores, scoring), "list": columns, "unscored": [], **data}
    summary = lead + _PAIR_SCORES
    return _assemble(data, title=title, judge="", notes="", summary=summary, unscored="", policy=SERVED)


_PAIR_SCORES = """<section aria-labelledby="pair-title"><h2 id="pair-title">Scores</h2>
<div id="pair-scores"></div></section>"""


def _score_data(scores: ScoresFile, scoring: ScoringOptions | None) -> dict[str, Any]:
    return {
        "metrics": scores.metrics.keys() != {RADFACT},
        # Also for the common name of precision, recall and F1, which are shown together.
        "names": {
            key: words(key) for name in scores.scores for key in (name, re.sub("_(precision|recall|f1)$", "", name))
        },
        "directions": {name: score.direction for name, score in scores.scores.items()},
        "overlap": {"threshold": scoring.threshold, "strict": scoring.compat == "paper"} if scoring else None,
    }


def _render(head: PageHead, data: Mapping[str, Any], *, summary: str, has_drafts: bool, policy: str = "") -> str:
    scores = head.scores
    data = {
        **_score_data(scores, scoring_of(RunFile.model_validate(head.run))),
        # Without RadFact there are reports and no verdicts.
        "judged": RADFACT in scores.metrics,
        "findings": {concept: name for table in head.finding_tables.values() for concept, name in table.names.items()},
        **data,
    }
    banner = "".join(f"<p>{escape(note)}</p>" for note in head.notes)
    return _assemble(
        data,
        title=head.title,
        judge=_judge(scores, head.run),
        notes=f'<div class="notes" role="note">{banner}</div>' if banner else "",
        summary=summary,
        unscored=_UNSCORED if has_drafts else "",
        policy=policy,
    )


def _assemble(data: Mapping[str, Any], *, title: str, policy: str, **markup: str) -> str:
    """Return a page of studies; `markup` is for `page.html`, and the title still to be escaped."""
    return assemble(
        STATIC / "page.html",
        [STATIC / "viewer.css", STATIC / "page.css"],
        [
            STATIC / "viewer.js",
            STATIC / "radiograph.js",
            STATIC / "cards.js",
            STATIC / "findings.js",
            STATIC / "study.js",
            STATIC / "page.js",
            STATIC / "frame.js",
        ],
        data,
        policy=policy,
        title=escape(title),
        **markup,
    )


SERVED = "connect-src 'self'; form-action 'self'"
"""What the content security policy of a page that a server sends allows in addition."""


def assemble(
    body: Traversable,
    styles: Sequence[Traversable],
    scripts: Sequence[Traversable],
    data: Any,
    *,
    policy: str = "",
    **markup: str,
) -> str:
    """Return a page in one file: body, styles, scripts, data, and a content security policy that allows nothing else.

    Args:
        body: template of the visible part, with the names in `markup`; `$large` is the dialog of an enlarged image.
        styles: style sheets in order.
        scripts: scripts in order.
        data: JSON that the script reads from the element `page-data`.
        policy: what the content security policy allows in addition, or empty.
        markup: HTML for the templates, including `title`, with escaped text. Bidirectional controls are written out.
    """
    style, script = ("".join(part.read_text("utf-8") for part in parts) for parts in (styles, scripts))
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") for text in (script, style)]
    policy = (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; "
        f"img-src data: file: 'self'; base-uri 'none'; {policy or _STATIC}"
    )
    shown = {name: _BIDIRECTIONAL.sub(lambda match: f"[U+{ord(match[0]):04X}]", part) for name, part in markup.items()}
    return Template((STATIC / "shell.html").read_text("utf-8")).substitute(
        title=shown["title"],
        body=Template(body.read_text("utf-8")).substitute(shown, large=(STATIC / "large.html").read_text("utf-8")),
        policy=policy,
        # Inside a script element only "<" can end or nest anything.
        data=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        style=style,
        script=script,
    )


_STATIC = "form-action 'none'"
# The same as in `visibleText` of viewer.js.
_BIDIRECTIONAL = re.compile("[\u202a-\u202e\u2066-\u2069]")

_UNSCORED = """<section class="unscored" id="unscored" aria-labelledby="unscored-title">
<h2 id="unscored-title">Drafts without a reference: shown, not scored</h2>
<p>There is no reference report for these studies. Nothing here is in any score of this page.</p>
<div id="unscored-list"></div>
</section>"""


def _judge(scores: ScoresFile, run: Mapping[str, Any]) -> str:
    """Return the judge of RadFact with its note, and the language model of each other metric."""
    records = [judge for judge in (scores.judge, run.get("judge")) if isinstance(judge, dict)]
    name = scores.judge if isinstance(scores.judge, str) else next((j["name"] for j in records if "name" in j), None)
    models = "".join(
        f" {escape(words(metric))}: <strong>{escape(model)}</strong>."
        for metric, model in describe_models(scores).items()
        if metric != RADFACT
    )
    if name is None and RADFACT not in scores.metrics:
        return f'<p class="judge">{models.strip()}</p>' if models else ""
    note = next((f" {escape(str(judge['note']))}" for judge in records if judge.get("note")), "")
    splitter = (scores.splitter or {}).get("name")
    split = f" Narratives split by <strong>{escape(str(splitter))}</strong>." if splitter else ""
    return f'<p class="judge">Judge: <strong>{escape(str(name or "not named"))}</strong>.{note}{split}{models}</p>'


def _summary(head: PageHead, count: int, failures: Mapping[str, str]) -> str:
    """Return the table of scores, the unavailable metrics, counts, failures and run details."""
    scores, run = head.scores, head.run
    unavailable = "".join(
        f"<li><strong>{escape(name)}</strong>: {escape(why)}</li>" for name, why in scores.unavailable.items()
    )
    if unavailable:
        summary = f"Metrics not computed: {len(scores.unavailable)}"
        unavailable = f"<details><summary>{summary}</summary><ul>{unavailable}</ul></details>"
    table = _score_table(scores, run)
    if head.without_value:
        table += f"<p>No study has a value of {escape(', '.join(map(words, head.without_value)))}.</p>"
    counts = scores.counts
    if len(scores.metrics) > 1:
        names = {"scored": "scored by every metric", "excluded": "not scored by every metric"}
        counts = {names.get(name, name): count for name, count in counts.items()}
        counts |= {f"not scored by {name}": metric.failed for name, metric in scores.metrics.items() if metric.failed}
    details = {name: value for name, value in run.items() if name != "page"}
    run_details = f"<details><summary>Run details</summary>{_pairs(details)}</details>"
    meaning = _MEANING if any(name in SCORES for name in scores.scores) else ""
    return (
        '<section aria-labelledby="scores-title"><h2 id="scores-title">Scores</h2><div class="summary">'
        f'<div class="panel">{table}{unavailable}{meaning}</div>'
        f'<div class="panel"><h3>Counts</h3>{_pairs(counts or {"studies": count})}'
        f"{_failures(failures)}</div>"
        f'{f"""<div class="panel run-details">{run_details}</div>""" if details else ""}</div></section>'
    )


def _score_table(scores: ScoresFile, run: Mapping[str, Any]) -> str:
    has_other_metrics = scores.metrics.keys() != {RADFACT}
    metric_of = metric_of_scores(scores) if has_other_metrics else {}
    bars = {name: _bar(score) for name, score in scores.scores.items()}
    is_repeated = any(metric.repeats for metric in scores.metrics.values())
    rows, previous = [], None
    for name, score in scores.scores.items():
        group = metric_of.get(name, "").replace(RADFACT, "") or name.rsplit("_", 1)[name in POLICY_SCORES]
        css = ' class="group"' if previous not in (None, group) else ""
        previous = group
        interval = "–" if score.low is None or score.high is None else f"{score.low:.3f} – {score.high:.3f}"
        median = f'<td class="optional">{_number(score.median)}</td>'
        deviation = f"<td>{_number(score.repeat_sd)}</td>" if is_repeated else ""
        cells = f"<td>{_number(score.point)}</td>{median}<td>{interval}</td>{deviation}"
        last = f'<td class="chart optional">{bars[name]}</td><td>{"–" if score.n is None else score.n}</td>'
        failed = f"<td>{scores.metrics[metric_of[name]].failed}</td>" if name in metric_of else ""
        label = escape(score_label(words(name), score.direction, score.unit))
        rows.append(f'<tr{css}><th scope="row">{label}</th>{cells}{last}{failed}</tr>')
    pooled = " or, as corpus BLEU and F1 of findings, computed from all of them" if has_other_metrics else ""
    has_f1 = any(name in F1_PARTS for name in scores.scores)
    f1 = "; RadFact's F1: the harmonic mean of the dataset-level precision and recall" if has_f1 else ""
    is_drawn = scores.resampling is not None and run.get("options", {}).get("bootstrap") != 0
    drawn = f" Intervals: {escape(scores.resampling.describe())}." if is_drawn and scores.resampling else ""
    bar = _BAR if any(bars.values()) else ""
    caption = (
        f"↑ higher is better, ↓ lower is better. Mean over the studies that have a value{pooled}{f1}, with its "
        f'bootstrapped 95% interval<span class="optional"> and the median of the bootstrap{bar}</span>.{drawn}'
    )
    return (
        f'<table class="score-table"><caption>{caption}{_repeats(scores)}</caption><thead><tr>'
        '<th scope="col">Score</th><th scope="col">Point</th><th scope="col" class="optional">Bootstrap<br>median</th>'
        f'<th scope="col">95% interval</th>{_REPEAT_SD if is_repeated else ""}'
        '<th scope="col" class="chart optional"><span class="visually-hidden">Interval bar</span></th>'
        f'<th scope="col">n</th>{_FAILED if metric_of else ""}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


_BAR = ". The bar runs from 0 to 1: 95% interval (light), middle half (dark), point (line)"
_REPEAT_SD = '<th scope="col">Repeat SD</th>'
_FAILED = '<th scope="col">Failed</th>'


def _repeats(scores: ScoresFile) -> str:
    """Return the sentences of the caption about repeats."""
    repeated = {name: metric for name, metric in scores.metrics.items() if metric.repeats}
    if not repeated:
        return ""
    names = ", ".join(
        f"{name} ({metric.repeats} repeats"
        + (f", {metric.partly_failed} samples have fewer)" if metric.partly_failed else ")")
        for name, metric in repeated.items()
    )
    text = (
        " Repeat SD: standard deviation of the dataset-level score over the repeats; scores and intervals are those of "
        f"the mean over repeats: {names}."
    )
    single = [name for name in scores.metrics if name not in repeated]
    if single:
        text += f" Computed once, without a model: {', '.join(single)}."
    return escape(text)


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
boxes. <b>Positive</b>: logical, of sentences with a finding alone. <b>Negative</b>: logical, of denials and normal
statements alone. <b>Implied</b>: logical, where a denial counts as entailed unless the other report contradicts it; it
needs a judge that tells contradicted from neutral sentences. A study without such sentences has no value and does not
count in n; n of an F1 counts the studies that have both its precision and its recall.</p></details>"""


def _failures(failures: Mapping[str, str]) -> str:
    if not failures:
        return "<p>Failures: none.</p>"
    items = "".join(
        f"<li><strong>{escape(sample_id)}</strong>: {escape(failure)}</li>"
        for sample_id, failure in islice(failures.items(), _MAX_FAILURES)
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
    "crimson": "CRIMSON",
    "json": "JSON",
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
