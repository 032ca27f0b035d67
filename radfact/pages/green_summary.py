"""GREEN summary on the results page: typical errors."""

from __future__ import annotations

from html import escape
from pathlib import Path

from radfact.io.jsonl import read_json
from radfact.records import validate_model
from radfact.results.schema import GREEN_SUMMARY_FILE, GreenCategory, GreenSummaryFile


def green_section(folder: Path) -> str:
    """Return the section of the page; empty if the folder has no summary.

    Raises:
        InputError: the file does not match its schema.
    """
    path = folder / GREEN_SUMMARY_FILE
    if not path.is_file():
        return ""
    summary = validate_model(GreenSummaryFile, read_json(path), file=path)
    rows = "".join(_row(letter, category) for letter, category in summary.categories.items())
    heads = "".join(
        f'<th scope="col">{name}</th>' for name in ("Significant errors", "Reports without", "Errors", "Typical")
    )
    return (
        '<section aria-labelledby="green-title"><h2 id="green-title">Typical errors (GREEN)</h2>'
        f'<div class="panel"><table class="green-table"><caption>GREEN {summary.mean:.3f}, standard deviation '
        f"{summary.std:.3f}, of {summary.n} reports. Typical explanations are the nearest to the center of the "
        f"largest cluster.</caption><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _row(letter: str, category: GreenCategory) -> str:
    typical = "".join(f"<li>{escape(text)}</li>" for text in category.typical)
    cluster = (
        f"<p>the largest of {category.clusters} clusters: {category.largest} errors</p>"
        if category.clusters > 1
        else ""
    )
    return (
        f'<tr><th scope="row">({escape(letter)}) {escape(category.name)}</th><td>{category.without:.1%}</td>'
        f"<td>{category.errors}</td><td>{cluster}<ul>{typical}</ul></td></tr>"
    )
