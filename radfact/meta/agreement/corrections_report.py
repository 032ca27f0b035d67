"""Report of FineRadScore compared with radiologists: JSON, CSV, a plot, a page and all corrections of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from radfact.io.jsonl import write_json, write_jsonl
from radfact.meta.agreement.corrections import CorrectionResult, CorrectionRun, Setting
from radfact.meta.agreement.line_corrections import CHANGES
from radfact.meta.report import CATEGORY_LEGEND
from radfact.pages import plots
from radfact.pages.meta_page import PlotFolder, Section, Table, write_page

_PAPER_TABLES: Mapping[Setting, tuple[str, str, str]] = {
    "original": ("1", "2", "3"),
    "shuffled": ("4", "5", "6"),
    "paraphrased": ("7", "8", "9"),
}

SEVERITY_COLUMNS = ("rater", "n", "mean absolute error", "equal", "within one")


def change_table(result: CorrectionResult) -> Table:
    """Return how often the model makes the radiologist's change, one row per group."""
    headings = ["reports", *(f"{change.replace('_', ' ')}{part}" for change in CHANGES for part in ("", ", n"))]
    rows = [
        [group, *(value for change in CHANGES for value in (shares[change].value, shares[change].n))]
        for group, shares in result.changes.items()
    ]
    return Table(headings, rows)


def text_table(result: CorrectionResult) -> Table:
    """Return the similarity of corrected text, and of reports before and after correction, one row per score."""
    rows = []
    for name in dict.fromkeys((*result.text_similarity, *result.gains)):
        text, gain = result.text_similarity.get(name), result.gains.get(name)
        cells = [text.value, text.n] if text else [None, 0]
        rows.append([name, *cells, *([gain.base, gain.corrected, gain.n] if gain else [None, None, 0])])
    return Table(["score", "corrected text", "texts", "base", "corrected", "reports"], rows)


def severity_table(result: CorrectionResult) -> Table:
    """Return mean absolute error and share of each difference, one row for the model and one for other raters."""
    gaps = sorted({gap for errors in result.severities.values() for gap in errors.shares})
    rows = [
        [
            *(name, errors.n, errors.mean_absolute, errors.shares.get(0, 0.0)),
            sum(share for gap, share in errors.shares.items() if abs(gap) <= 1),
            *(errors.shares.get(gap, 0.0) for gap in gaps),
        ]
        for name, errors in result.severities.items()
    ]
    return Table([*SEVERITY_COLUMNS, *(f"{gap:+d}" for gap in gaps)], rows)


def category_shares_table(result: CorrectionResult) -> Table:
    """Return precision and recall by category."""
    rows = [
        [f"({letter})", shares.precision.value, shares.precision.n, shares.recall.value, shares.recall.n]
        for letter, shares in result.categories.items()
    ]
    return Table(["category", "precision", "reports of the model", "recall", "reports of the experts"], rows)


def write_corrections(
    result: CorrectionResult,
    run: CorrectionRun,
    folder: Path,
    record: Mapping[str, Any],
    *,
    setting: Setting,
    notes: Sequence[str] = (),
) -> list[str]:
    """Write `corrections.json`, `corrections.jsonl`, CSV tables, a plot and `corrections.html`."""
    plotter = PlotFolder(folder)
    sections = [
        *_line_sections(result, setting, folder),
        *_severity_sections(result, plotter),
        *_category_sections(result, folder),
    ]
    if run.excluded:
        rows = [[key, reason] for key, reason in run.excluded.items()]
        sections.append(Section("Excluded", [Table(["report", "reason"], rows)]))
    lines = ({"sample_id": report.pair.sample_id, **report.model.as_record()} for report in run.reports)
    write_jsonl(folder / "corrections.jsonl", lines)
    severities = {
        name: {**asdict(errors), "shares": {str(gap): share for gap, share in errors.shares.items()}}
        for name, errors in result.severities.items()
    }
    about = {"setting": setting, "reports": len(run.reports), "excluded": dict(run.excluded)}
    write_json(folder / "corrections.json", {**record, **about, **asdict(result), "severities": severities})
    title = "FineRadScore compared with radiologists"
    write_page(folder / "corrections.html", title, [*notes, *plotter.notes], sections)
    return plotter.notes


def _line_sections(result: CorrectionResult, setting: Setting, folder: Path) -> list[Section]:
    first, second, third = _PAPER_TABLES[setting]
    sections = []
    if result.changes:
        table = change_table(result)
        table.write(folder / "changes.csv")
        text = (
            "How often the model keeps, deletes or rewrites a line that the radiologist keeps, deletes or rewrites; "
            "how often it inserts anything into a report with insertions, and nothing into a report without."
        )
        sections.append(Section(f"Kind of correction (table {first})", [table, text]))
    if result.text_similarity or result.gains:
        table = text_table(result)
        table.write(folder / "texts.csv")
        text = (
            "Means over reports. Corrected text: all lines that the model rewrites or inserts, compared with those of "
            "the radiologist. Base and corrected: the candidate compared with the reference before and after "
            "correction by the model. BLEU is from 0 to 100 here."
        )
        sections.append(Section(f"Similarity of texts (tables {second} and {third})", [table, text]))
    return sections


def _severity_sections(result: CorrectionResult, plotter: PlotFolder) -> list[Section]:
    if not result.severities:
        return []
    table = severity_table(result)
    table.write(plotter.folder / "severities.csv")
    columns = {
        name: {float(gap): share for gap, share in errors.shares.items()} for name, errors in result.severities.items()
    }
    images = plotter.draw(
        "severities",
        "Differences of the greatest severity of a report",
        lambda path: plots.bars(columns, path, x="severity, minus the radiologist's", y="share of reports", width=1.0),
    )
    text = (
        "The greatest severity of a report, 0 to 4, minus the radiologist's. Other raters: one random rater of a "
        "candidate compared with each of the others."
    )
    return [Section("Severities (section 6.4, figure 2)", [table, text, *images])]


def _category_sections(result: CorrectionResult, folder: Path) -> list[Section]:
    if not result.categories:
        return []
    table = category_shares_table(result)
    table.write(folder / "categories.csv")
    text = (
        "Whether a report has any error of a category. For the experts it has one if the mean of their counts, "
        f"significant or not, is at least 0.5. {CATEGORY_LEGEND}"
    )
    return [Section("Categories of errors (appendix D)", [table, text])]
