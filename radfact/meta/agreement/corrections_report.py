"""FineRadScore beside radiologists as files: JSON, CSV, a plot and a page, and every correction of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from radfact.html import plots
from radfact.html.meta_page import Picture, Section, Table, write_page
from radfact.html.plot_files import Drawing
from radfact.io.jsonl import write_json, write_jsonl
from radfact.meta.agreement.corrections import Answers, CorrectionFindings, Setting
from radfact.meta.agreement.line_corrections import CHANGES
from radfact.meta.agreement.tables import kinds_of_errors

_NUMBERS: Mapping[Setting, tuple[str, str, str]] = {
    "original": ("1", "2", "3"),
    "shuffled": ("4", "5", "6"),
    "paraphrased": ("7", "8", "9"),
}
"""Of the tables of paper 001."""


SEVERITY_COLUMNS = ("beside the radiologist", "n", "mean absolute error", "the same", "within one")


def change_table(found: CorrectionFindings) -> Table:
    """A row a group: how often the model does what the radiologist did, and in how many cases he did it."""
    headings = ["reports", *(f"{change.replace('_', ' ')}{part}" for change in CHANGES for part in ("", ", n"))]
    rows = [
        [group, *(value for change in CHANGES for value in (shares[change].value, shares[change].n))]
        for group, shares in found.changes.items()
    ]
    return Table(headings, rows)


def text_table(found: CorrectionFindings) -> Table:
    """A row a figure: likeness of what was written, and of the report before and after correction."""
    rows = []
    for name in dict.fromkeys((*found.written, *found.gains)):
        written, gain = found.written.get(name), found.gains.get(name)
        cells = [written.value, written.n] if written else [None, 0]
        rows.append([name, *cells, *([gain.base, gain.corrected, gain.n] if gain else [None, None, 0])])
    return Table(["figure", "written text", "reports", "base", "corrected", "reports of both"], rows)


def severity_table(found: CorrectionFindings) -> Table:
    """A row the model and a row the raters: mean absolute error, and the share of each difference."""
    gaps = sorted({gap for one in found.severities.values() for gap in one.shares})
    rows = [
        [
            *(name, one.n, one.mean_absolute, one.shares.get(0, 0.0)),
            sum(share for gap, share in one.shares.items() if abs(gap) <= 1),
            *(one.shares.get(gap, 0.0) for gap in gaps),
        ]
        for name, one in found.severities.items()
    ]
    return Table([*SEVERITY_COLUMNS, *(f"{gap:+d}" for gap in gaps)], rows)


def category_table(found: CorrectionFindings) -> Table:
    """Precision and recall by category."""
    rows = [
        [f"({letter})", one.precision.value, one.precision.n, one.recall.value, one.recall.n]
        for letter, one in found.categories.items()
    ]
    return Table(["category", "precision", "reports found in", "recall", "reports true in"], rows)


def write_corrections(
    found: CorrectionFindings,
    answers: Answers,
    folder: Path,
    record: Mapping[str, Any],
    *,
    setting: Setting,
    notes: Sequence[str] = (),
) -> list[str]:
    """Write `corrections.json`, `corrections.jsonl`, CSV tables, the plot and `corrections.html`.

    Args:
        found: to be written.
        answers: the model's corrections, one line a report.
        folder: made if it is not there.
        record: how it was made, JSON values.
        setting: of the reports.
        notes: sentences for the page.

    Returns:
        What could not be drawn, and why.
    """
    drawing = Drawing(folder)
    sections = [
        *_line_sections(found, setting, folder),
        *_severity_sections(found, drawing),
        *_category_sections(found, folder),
    ]
    if answers.left_out:
        rows = [[key, why] for key, why in answers.left_out.items()]
        sections.append(Section("Left out", [Table(["report", "why"], rows)]))
    lines = ({"sample_id": one.pair.sample_id, **one.model.as_record()} for one in answers.reports)
    write_jsonl(folder / "corrections.jsonl", lines)
    about = {"setting": setting, "reports": len(answers.reports), "left_out": dict(answers.left_out)}
    write_json(folder / "corrections.json", {**record, **about, **_as_json(found)})
    write_page(folder / "corrections.html", "FineRadScore beside radiologists", [*notes, *drawing.notes], sections)
    return drawing.notes


def _as_json(found: CorrectionFindings) -> dict[str, Any]:
    severities = {
        name: {**asdict(one), "shares": {str(gap): share for gap, share in one.shares.items()}}
        for name, one in found.severities.items()
    }
    return {**asdict(found), "severities": severities}


def _line_sections(found: CorrectionFindings, setting: Setting, folder: Path) -> list[Section]:
    first, second, third = _NUMBERS[setting]
    sections = []
    if found.changes:
        table = change_table(found)
        table.write(folder / "changes.csv")
        said = (
            "How often the model leaves, deletes or rewrites a line that the radiologist did that with; how often it "
            "inserts anything in a report in which he did, and nothing in one in which he did not."
        )
        sections.append(Section(f"The same kind of correction (table {first})", [table, said]))
    if found.written or found.gains:
        table = text_table(found)
        table.write(folder / "texts.csv")
        said = (
            "Means over reports. Written text: all lines that the model rewrote or inserted, beside the "
            "radiologist's. Base and corrected: the candidate beside the reference before the model's corrections and "
            "after. BLEU is from 0 to 100 here."
        )
        sections.append(Section(f"The same text (tables {second} and {third})", [table, said]))
    return sections


def _severity_sections(found: CorrectionFindings, drawing: Drawing) -> list[Section]:
    if not found.severities:
        return []
    table = severity_table(found)
    table.write(drawing.folder / "severities.csv")
    columns = {name: {float(gap): share for gap, share in one.shares.items()} for name, one in found.severities.items()}
    drawing.add(
        "severities",
        "Differences of the greatest severity of a report",
        lambda path: plots.bars(columns, path, x="severity, minus the radiologist's", y="share of reports", width=1.0),
    )
    said = (
        "The greatest severity of a report, 0 to 4, minus the radiologist's. Other raters: one at random of those who "
        "have corrected the same candidate, beside each of the others."
    )
    parts: list[Table | Picture | str] = [table, said, *drawing.taken()]
    return [Section("Severities (section 6.4, figure 2)", parts)]


def _category_sections(found: CorrectionFindings, folder: Path) -> list[Section]:
    if not found.categories:
        return []
    table = category_table(found)
    table.write(folder / "categories.csv")
    said = (
        "Whether a category is found at all in a report. The experts have found it where the mean of their numbers, "
        f"significant or not, is at least a half. {kinds_of_errors()}"
    )
    return [Section("Categories of errors (appendix D)", [table, said])]
