"""The results page: one HTML file with scores, studies, boxes and verdicts that needs no network."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, InputError
from radfact.findings.details import COUNTS
from radfact.io.jsonl import open_atomic, read_json
from radfact.io.outputs import record_files
from radfact.judges.offline import UNREAD, UNREAD_MEANING
from radfact.metrics.radfact.options import ScoringOptions
from radfact.metrics.radfact.scores import F1_PARTS, POLICY_SCORES, SCORES
from radfact.metrics.registry import entries
from radfact.pages.images import MAX_EMBEDDED, load_images, remove_unused_images
from radfact.pages.markup import STATIC, TEMPLATES, assemble
from radfact.pages.studies import Studies, StudyContext, read_drafts
from radfact.records import validate_model
from radfact.results.display import main_scores, score_label, words
from radfact.results.options import ImagePlace, PageOptions
from radfact.results.reader import read_run, read_scores
from radfact.results.schema import (
    GREEN_SUMMARY_FILE,
    RADFACT,
    GreenSummaryFile,
    PageRecord,
    ScoresFile,
    describe_models,
    metric_of_scores,
    scores_with_value,
)

MAX_STUDIES = 5000
"""Maximum number of studies on a page, which a browser opens in seconds; `radfact view` shows the studies of larger
runs."""

_MOST_CARDS = 5
_MEANINGS = {
    "logical_f1": "RadFact: how much of each report the other one supports, sentence by sentence",
    "findings_f1": "How many findings of each report the other one confirms, weighted by significance",
    "findings": "1 if the findings have no error; the lower, the more and the more significant errors",
    "grounding_f1": "RadFact: of the supported sentences with boxes, how many have them in the right place",
    "spatial_f1": "RadFact: of all sentences with boxes, how many are supported and have them in the right place",
}
"""Main scores that come first on the page, and what they mean."""
_IMAGE_FOLDER = "report_images"
_SCRIPTS = ("viewer.js", "radiograph.js", "cards.js", "findings.js", "study.js", "page.js", "frame.js")


def page_record(options: PageOptions, folder: Path) -> PageRecord:
    """Return the record in `run.json` from which the page can be drawn again; its paths are relative to the folder."""
    paths = {"manifest": options.manifest, "unscored": options.unscored}
    relative = {name: path and os.path.relpath(path, folder) for name, path in paths.items()}
    return PageRecord(**options.model_dump() | relative)


def write_page(
    folder: Path,
    *,
    manifest: Path | None = None,
    notes: Sequence[str] | None = None,
    unscored: Path | None = None,
    images: ImagePlace | None = None,
    base: Path | None = None,
) -> Path:
    """Write `report.html` into a results folder: its scores, and each study as in MAIRA-2, figure E.1.

    With more than `MAX_STUDIES` studies, the page has the scores alone.

    Images are inside the page or in `report_images/`, and are written before the page that shows them. An image that
    cannot be read is shown as missing. Text of reports is data and cannot become markup. Options that are not given
    come from `page` in `run.json`; a file named there that no longer exists is mentioned on the page.

    Args:
        folder: results folder.
        manifest: records by `sample_id` with images (paths relative to the manifest, or absolute) and context.
        notes: sentences for the banner, such as a limitation of the scores.
        unscored: drafts without a reference, shown separately and not scored; their images come from the
            `manifest.jsonl` in the same folder, or else from `manifest`.
        images: where the images go; by default inside the page for up to `MAX_EMBEDDED` studies.
        base: results folder that the files of `folder` will be moved to, to which recorded paths are relative.

    Returns:
        The path of the page.

    Raises:
        InputError: a file is missing or does not match its schema, or the manifest has none of the studies; nothing is
            written then.
    """
    folder = Path(folder)
    content = PageContent(folder, base, manifest=manifest, notes=notes, unscored=unscored)
    count = len(content.studies.indices) + len(content.drafts)
    inside = (images or content.record.images or ("inside" if count <= MAX_EMBEDDED else "beside")) == "inside"
    is_whole = count <= MAX_STUDIES
    studies = [content.show(sample_id) for sample_id in content.studies.indices] if is_whole else []
    shown = [*studies, *content.drafts] if is_whole else []
    load_images(shown, None if inside else folder / _IMAGE_FOLDER)
    page = content.render({"studies": studies} if is_whole else None)
    with open_atomic(folder / "report.html", "wb") as handle:
        handle.write(encode(page))
    remove_unused_images(shown, folder / _IMAGE_FOLDER)
    record_files(folder, [folder / "report.html", *(folder / _IMAGE_FOLDER).glob("*.*")])
    return folder / "report.html"


class PageContent:
    """What the page of a results folder shows; `scores` are those that have a value."""

    def __init__(
        self,
        folder: Path,
        base: Path | None = None,
        *,
        manifest: Path | None = None,
        notes: Sequence[str] | None = None,
        unscored: Path | None = None,
    ) -> None:
        """Read everything but the studies, which are found only; arguments as in `write_page`."""
        self.folder = folder
        base = folder if base is None else base
        scores, run = read_scores(folder), read_run(folder)
        self.scores = scores.model_copy(update={"scores": scores_with_value(scores.scores)})
        self._without_value = [words(name) for name in scores.scores if name not in self.scores.scores]
        self.record = run.page or PageRecord()
        self.run = run.model_dump(mode="json", exclude_unset=True)
        self.scoring: ScoringOptions | None = None
        with suppress(KeyError, ValueError):
            self.scoring = ScoringOptions(compat=run.options["compat"], threshold=run.options["threshold"])
        self.title = f"{'RadFact results' if list(scores.metrics) == [RADFACT] else 'Results'}: {base.resolve().name}"
        self.notes = list(self.record.notes if notes is None else notes)
        known_manifest = self._source(base, manifest, self.record.manifest, "The manifest with the images")
        known_drafts = self._source(base, unscored, self.record.unscored, "The drafts without a reference")
        self.studies = Studies(folder, scores, None if self.scoring is None else self.scoring.compat)
        self.drafts = read_drafts(known_drafts) if known_drafts else []
        if self.record.drafts and unscored is None:
            self.drafts = [draft for draft in self.drafts if draft["sample_id"] in self.record.drafts]
        manifests = [] if known_manifest is None else [known_manifest]
        self.context = StudyContext(manifests, self.studies)
        if manifest is not None:
            ids = [*self.studies.indices, *(draft["sample_id"] for draft in self.drafts)]
            check_manifest(manifest, ids, self.context)
        if known_drafts and (neighbor := known_drafts.parent / "manifest.jsonl").exists():
            manifests = [neighbor, *manifests]
        draft_context = StudyContext(manifests)
        for draft in self.drafts:
            draft.update(draft_context.of(draft["sample_id"]))
        if drawn_from := scores.counts.get("drawn_from"):
            self.notes.insert(0, f"A random sample: {len(self.studies.indices)} of {drawn_from} studies.")

    def _source(self, base: Path, option: Path | None, recorded: str | None, label: str) -> Path | None:
        """Return a file as given, or else from the record of the run; without it, the page has a note."""
        if option is not None or recorded is None:
            return option and Path(option)
        if (path := base / recorded).is_file():
            return path
        self.notes.append(f"{label} ({path.name}) is no longer where it was during the run.")
        return None

    def show(self, sample_id: str) -> dict[str, Any]:
        """Return a study in the form of the page's script, with report sections and image paths."""
        return {**self.studies.show(sample_id), **self.context.of(sample_id)}

    def render(self, data: Mapping[str, Any] | None, *, title: str | None = None, **context: Any) -> str:
        """Return the page as HTML, without the studies if there is no data; every text is escaped or JSON data."""
        tables, ids = self.studies.finding_tables, list(self.studies.indices)
        if data is not None:
            data = {
                **score_data(self.scores, self.scoring),
                # Without RadFact there are reports and no verdicts.
                "judged": RADFACT in self.scores.metrics,
                "findings": {concept: name for table in tables.values() for concept, name in table.names.items()},
                "list": self.studies.columns,
                "unscored": self.drafts,
                **data,
            }
        green = self.folder / GREEN_SUMMARY_FILE
        results = {
            **_judge(self.scores, self.run),
            **_score_table(self.scores, self.run),
            "cards": _cards(self.scores),
            "scores": self.scores,
            "without_value": ", ".join(self._without_value),
            "counts": _flat(_counts(self.scores) or {"studies": len(ids)}),
            "unread": f"{UNREAD.capitalize()}: {UNREAD_MEANING}" if "unread_sentences" in self.scores.counts else "",
            "failures": [(ids[index], reason) for index, reason in self.studies.failures.items()],
            "details": _flat({name: value for name, value in self.run.items() if name != "page"}),
            "finding_tables": {
                metric: [
                    (name, table.names[name], dict(zip(COUNTS, counts, strict=True))) for name, counts in table.rows
                ]
                for metric, table in tables.items()
                if table.rows
            },
            "green": validate_model(GreenSummaryFile, read_json(green), file=green) if green.is_file() else None,
        }
        context |= {"notes": self.notes, "results": results, "count": len(ids)}
        return render_studies(data, title=title or self.title, **context)


def render_studies(data: Mapping[str, Any] | None, **context: Any) -> str:
    """Return a page of studies as HTML."""
    return assemble(
        TEMPLATES / "page.html",
        [STATIC / name for name in ("base.css", "viewer.css", "page.css")],
        [] if data is None else [STATIC / name for name in _SCRIPTS],
        data,
        has_studies=data is not None,
        has_drafts=bool(data and data["unscored"]),
        **{"notes": (), "results": None, "navigation": None, **context},
    )


def encode(page: str) -> bytes:
    """Return a page as UTF-8; JSON can hold half a surrogate pair, which UTF-8 cannot."""
    return page.encode("utf-8", "replace")


def check_manifest(manifest: Path, sample_ids: Sequence[str], context: StudyContext | None = None) -> None:
    """Check that a manifest, or its records that were read, is of the studies of a page."""
    if sample_ids and (context or StudyContext([manifest])).ids.isdisjoint(sample_ids):
        raise InputError(
            f"expected records of the studies of the page, such as '{sample_ids[0]}', found none",
            code=ErrorCode.MISMATCH,
            file=manifest,
            field="sample_id",
        )


def score_data(scores: ScoresFile, scoring: ScoringOptions | None) -> dict[str, Any]:
    """Return what the page's scripts need to know of the scores."""
    return {
        "metrics": scores.metrics.keys() != {RADFACT},
        # A study shows these first.
        "main": [name for name, _ in _main_scores(scores)],
        # Also for the common name of precision, recall and F1, which are shown together.
        "names": {
            key: words(key) for name in scores.scores for key in (name, re.sub("_(precision|recall|f1)$", "", name))
        },
        "directions": {name: score.direction for name, score in scores.scores.items()},
        "overlap": scoring and {"threshold": scoring.threshold, "strict": scoring.compat == "paper"},
    }


def _judge(scores: ScoresFile, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the judge of RadFact with its note, and the language model of each other metric."""
    judge = {"name": scores.judge} if isinstance(scores.judge, str) else scores.judge or {}
    of_run = record if isinstance(record := run.get("judge"), dict) else {}
    name = judge.get("name") or of_run.get("name")
    return {
        "judge": name or ("not named" if RADFACT in scores.metrics else None),
        "judge_note": judge.get("note") or of_run.get("note"),
        "splitter": (scores.splitter or {}).get("name"),
        "models": [(metric, model) for metric, model in describe_models(scores).items() if metric != RADFACT],
    }


def _main_scores(scores: ScoresFile) -> list[tuple[str, str]]:
    """Return the few scores that come first on the page, with their metrics: those of `_MEANINGS`, then the others."""
    main = [(name, metric) for metric, names in main_scores(scores).items() for name in names]
    return sorted(main, key=lambda item: [*_MEANINGS, item[0]].index(item[0]))[:_MOST_CARDS]


def _cards(scores: ScoresFile) -> list[dict[str, Any]]:
    known = entries()
    return [
        {
            "label": score_label(words(name), scores.scores[name].direction, scores.scores[name].unit),
            "score": scores.scores[name],
            "meaning": _MEANINGS.get(name) or (known[metric].declared.measures if metric in known else ""),
        }
        for name, metric in _main_scores(scores)
    ]


def _score_table(scores: ScoresFile, run: Mapping[str, Any]) -> dict[str, Any]:
    metric_of = metric_of_scores(scores) if scores.metrics.keys() != {RADFACT} else {}
    rows = []
    for name, score in scores.scores.items():
        known = [value for value in (score.point, score.low, score.high) if value is not None]
        rows.append(
            {
                "label": score_label(words(name), score.direction, score.unit),
                "score": score,
                "group": metric_of.get(name, "").replace(RADFACT, "") or name.rsplit("_", 1)[name in POLICY_SCORES],
                # The bar has an axis from 0 to 1.
                "has_bar": bool(known) and min(known) >= 0 and max(known) <= 1,
                "failed": scores.metrics[metric_of[name]].failed if name in metric_of else None,
            }
        )
    is_drawn = run.get("options", {}).get("bootstrap") != 0
    return {
        "rows": rows,
        "has_bars": any(row["has_bar"] for row in rows),
        "has_other_metrics": bool(metric_of),
        "has_radfact": any(name in SCORES for name in scores.scores),
        "has_f1": any(name in F1_PARTS for name in scores.scores),
        "resampling": scores.resampling.describe() if is_drawn and scores.resampling else None,
    }


def _counts(scores: ScoresFile) -> dict[str, Any]:
    names = {"unread_sentences": UNREAD}
    if len(scores.metrics) > 1:
        names |= {"scored": "scored by every metric", "excluded": "not scored by every metric"}
    counts = {names.get(name, name): count for name, count in scores.counts.items()}
    failed = {
        name: record.failed for name, record in scores.metrics.items() if record.failed and len(scores.metrics) > 1
    }
    return counts | {f"not scored by {name}": count for name, count in failed.items()}


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows = []
    for key, value in values.items():
        name = f"{prefix}{key.replace('_', ' ')}"
        if isinstance(value, dict):
            rows += _flat(value, f"{name} · ")
        elif value is not None:
            rows.append((name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))
    return rows
