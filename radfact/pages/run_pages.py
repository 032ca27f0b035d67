"""HTML of the explorer: the list of runs, a run, two runs, and an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any
from urllib.parse import quote, urlencode

from radfact.pages.findings import findings_section
from radfact.pages.green_summary import green_section
from radfact.pages.markup import SERVED, STATIC, assemble, render_pair, render_served, words
from radfact.pages.opened_run import OpenedRun
from radfact.pages.run_pair import SIDES, RunPair
from radfact.pages.runs import RunSummary
from radfact.pages.studies import scoring_of
from radfact.results.display import score_label
from radfact.results.schema import RADFACT, RunFile

_MAX_NAMED = 3


def run_url(name: str) -> str:
    """Return the URL of a run."""
    return f"/run/{quote(name)}"


def list_page(runs: Mapping[str, RunSummary], folders: Sequence[str]) -> str:
    """Return the list of runs.

    Args:
        runs: by name.
        folders: that the runs are below.
    """
    readable = [run for run in runs.values() if run.reason is None]
    columns = list(dict.fromkeys(name for run in readable for name in run.scores))
    where = ", ".join(folders)
    if not runs:
        body = f"<p>No results folder in or below {escape(where)}.</p>"
    else:
        records = {name: run.scores[name] for run in readable for name in run.scores}
        labels = [score_label(words(name), records[name].direction, records[name].unit) for name in columns]
        heads = ("Run", "Baseline", "System", "Model", "Judge or model", "Date", "Samples", *labels)
        head = "".join(f'<th scope="col"{_style(label)}>{escape(label)}</th>' for label in heads)
        rows = "".join(_run_row(run, columns, len(heads)) for run in runs.values())
        button = '<p class="actions"><button type="submit">Compare</button></p>' if len(readable) > 1 else ""
        body = (
            f'<form action="/compare">{button}<div class="panel"><table class="runs"><thead><tr>{head}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div></form>"
        )
    broken = len(runs) - len(readable)
    counts = f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}" + (f", {broken} cannot be read" if broken else "")
    return _simple_page("Runs", f"{counts} in {where}", body)


def _run_row(run: RunSummary, columns: Iterable[str], width: int) -> str:
    name = f'<th scope="row"><a href="{run_url(run.name)}">{escape(run.name)}</a></th>'
    if run.reason is not None:
        reason = escape(run.reason)
        return f'<tr>{name}<td class="text failure" colspan="{width - 1}">Cannot be read: {reason}</td></tr>'
    cells = []
    for side, label in (("baseline", "baseline"), ("system", "system")):
        label = f"{escape(run.name)}: {label}"
        radio = f'<input type="radio" name="{side}" value="{escape(run.name)}" aria-label="{label}" required>'
        cells.append(f"<td>{radio}</td>")
    model = _named(run.models) or (f"unknown ({_named(run.files)})" if run.files else "–")
    models = set(run.judges.values())
    # Such as the judge "offline", named again by a metric whose narratives were split as well.
    own = sorted(model for model in models if not any(other.startswith(f"{model}, ") for other in models))
    judges = "; ".join(own) or "–"
    cells += [f'<td class="text">{escape(text)}</td>' for text in (model, judges)]
    cells += [f"<td>{text}</td>" for text in (f"{run.date:%Y-%m-%d %H:%M}" if run.date else "–", run.samples or "–")]
    for column in columns:
        score = run.scores.get(column)
        cells.append(f"<td>{'–' if score is None or score.point is None else f'{score.point:.3f}'}</td>")
    return f"<tr>{name}{''.join(cells)}</tr>"


def _style(label: str) -> str:
    return ' class="text"' if label in ("Model", "Judge or model") else ""


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def error_page(title: str, reason: str) -> str:
    """Return a page that says why there is nothing to show.

    Args:
        title: heading.
        reason: one sentence.
    """
    return _simple_page(title, "", f'<p class="failure">{escape(reason)}</p><p><a href="/">All runs</a></p>')


def _simple_page(title: str, lead: str, body: str) -> str:
    return assemble(
        STATIC / "runs.html",
        [STATIC / "page.css"],
        [],
        {},
        policy=SERVED,
        title=escape(title),
        lead=escape(lead),
        content=body,
    )


def run_page(run: OpenedRun, others: Sequence[str]) -> str:
    """Return the page of a run, whose script fetches the studies.

    Args:
        run: the run.
        others: names of the runs that it can be compared with.
    """
    options = "".join(f'<option value="{escape(name)}">{escape(name)}</option>' for name in others)
    compare = (
        f'<form action="/compare"><input type="hidden" name="system" value="{escape(run.name)}">'
        f'<label>Compare with <select name="baseline">{options}</select></label> '
        '<button type="submit">Compare</button></form>'
        if others
        else ""
    )
    query = urlencode({"run": run.name})
    data = {
        "unscored": [{"sample_id": sample_id, "scored": False} for sample_id in run.drafts],
        "located": run.has_regions,
        "api": {"study": f"/api/study?{query}&study=", "search": f"/api/search?{query}&words="},
    }
    sections = findings_section(run.head.finding_tables) + green_section(run.folder)
    head = replace(run.head, title=run.name)
    return render_served(head, run.columns, sections, _navigation(compare), data)


def pair_page(pair: RunPair) -> str:
    """Return the page of two runs side by side, whose script fetches the studies and the scores.

    Args:
        pair: the runs.
    """
    first, second = pair.runs
    query = urlencode({"baseline": first.name, "system": second.name})
    swap = urlencode({"baseline": second.name, "system": first.name})
    others = [len(run.columns.ids) - len(pair.columns.ids) for run in pair.runs]
    counts = f"{len(pair.columns.ids)} studies are in both runs" + "".join(
        f"; {count} {'is' if count == 1 else 'are'} only in {run.name}"
        for run, count in zip(pair.runs, others, strict=True)
        if count
    )
    differing = len(pair.columns.kinds.get("other_reference", ()))
    if differing:
        counts += f". In {differing} of them the reference differs or was split into other sentences"
    links = "".join(f'<a href="{run_url(run.name)}">{escape(run.name)}</a>' for run in pair.runs)
    scorings = [scoring_of(RunFile.model_validate(run.head.run)) for run in pair.runs]
    tables = [table for run in pair.runs for table in run.head.finding_tables.values()]
    data: dict[str, Any] = {
        "sides": {**dict(zip(SIDES, pair.short_names, strict=True)), "reference": "Reference"},
        "judged": all(RADFACT in run.head.scores.metrics for run in pair.runs),
        "located": any(run.has_regions for run in pair.runs),
        "findings": {concept: name for table in tables for concept, name in table.names.items()},
        "api": {
            "study": f"/api/study?{query}&study=",
            "search": f"/api/search?{query}&words=",
            "scores": f"/api/scores?{query}",
        },
    }
    navigation = _navigation(f'{links}<a href="/compare?{escape(swap)}">Swap</a>')
    scores = second.head.scores
    named = scores.model_copy(update={"scores": {name: scores.scores[name] for name in pair.names}})
    scoring = scorings[0] if scorings[0] == scorings[1] else None
    return render_pair(pair.title, named, pair.columns, f"{navigation}<p>{escape(counts)}.</p>", {**data}, scoring)


def _navigation(links: str) -> str:
    return f'<nav class="parts" aria-label="Runs"><a href="/">All runs</a>{links}</nav>'
