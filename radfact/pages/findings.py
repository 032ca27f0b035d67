"""Findings on the results page: those of each study, and the table by finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from html import escape
from typing import Any

from radfact.findings.details import FindingDetails, FindingTable, ListedFinding
from radfact.metrics.radfact.scores import PARTS


def list_findings(details: FindingDetails, study: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the findings of both reports in the form of the page's script."""
    linked: dict[str, set[int]] = {side: set() for side in PARTS}
    links = []
    for link in details.links:
        shown: dict[str, Any] = {"verdict": link.verdict, "tier": link.tier, "reason": link.reason}
        concepts: dict[str, None] = {}
        for side in PARTS:
            indices = getattr(link, side)
            findings = [getattr(details, side)[index] for index in indices]
            linked[side].update(indices)
            concepts |= dict.fromkeys(finding.concept for finding in findings if finding.is_positive)
            shown[side] = [_shown(finding, study[side]) for finding in findings]
        links.append({**shown, "concepts": list(concepts), "attributes": link.differing})
    others: dict[str, dict[str, None]] = {"both": {}, **{side: {} for side in PARTS}}
    for side in PARTS:
        for index, finding in enumerate(getattr(details, side)):
            if index not in linked[side]:
                others["both" if finding.verdict == "correct" else side][finding.description] = None
    return {"links": links, "others": {group: list(texts) for group, texts in others.items() if texts}}


def _shown(finding: ListedFinding, sentences: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the text of a finding, and the index of its sentence among those on the page if it is one of them."""
    text = " ".join(finding.text.split())
    texts = [" ".join(str(sentence["text"]).split()) for sentence in sentences]
    indices = [index for index, sentence in enumerate(texts) if text and text in sentence]
    if not indices:
        return {"text": finding.description}
    return {
        "text": finding.description,
        "sentence": finding.sentence if finding.sentence in indices else indices[0],
    }


def finding_keys(study: Mapping[str, Any]) -> Iterator[str]:
    """Yield concept, tier and kind of each finding of a study as one text, by which a page selects studies."""
    for compared in study.get("findings", {}).values():
        for link in compared["links"]:
            kinds = [link["verdict"], *(f"{link['verdict']}:{attribute}" for attribute in link["attributes"])]
            yield from ("\t".join((concept, link["tier"], kind)) for concept in link["concepts"] for kind in kinds)


_COLUMNS = ("Studies", "Correct", "Attribute error", "Wrong side", "Omitted", "Contradicted")
_CAPTION = (
    "Numbers of studies. Stated by the reference: all of the finding is correct, or it is matched with another "
    "attribute (of these, on the wrong side), or the candidate omits or denies it. Stated by the candidate alone: "
    "without a match in the reference, or the reference denies it. Choose a finding to list its studies. findings.csv "
    "has the same numbers."
)


def findings_section(tables: Mapping[str, FindingTable]) -> str:
    """Return the section with the table by finding of each metric that compares findings; empty if there is none."""
    sections = [_section(metric, table, is_only=len(tables) == 1) for metric, table in tables.items() if table.rows]
    return "".join(sections)


def _section(metric: str, table: FindingTable, *, is_only: bool) -> str:
    heading = "Findings of the set" if is_only else f"Findings of the set ({escape(metric)})"
    rows = "".join(
        f'<tr><th scope="row"><button type="button" class="link" data-concept="{escape(concept)}">'
        f"{escape(capitalize(table.names[concept]))}</button></th>"
        f"{''.join(f'<td>{count}</td>' for count in astuple(counts))}</tr>"
        for concept, counts in table.rows
    )
    columns = "".join(f'<th scope="col">{name}</th>' for name in (*_COLUMNS, "Unsupported", "Contradicted"))
    title = f"{escape(metric)}-title"
    return (
        f'<section class="finding-counts" aria-labelledby="{title}"><h2 id="{title}">{heading}</h2>'
        f'<p class="hint">{_CAPTION}</p><div class="panel"><table><colgroup></colgroup>'
        f'<colgroup span="{len(_COLUMNS)}"></colgroup><colgroup span="2"></colgroup>'
        '<thead><tr><th rowspan="2" scope="col">Finding</th>'
        f'<th colspan="{len(_COLUMNS)}" scope="colgroup">Stated by the reference</th><th colspan="2" scope="colgroup">'
        f"Stated by the candidate alone</th></tr><tr>{columns}</tr></thead><tbody>{rows}</tbody></table></div>"
        "</section>"
    )


def capitalize(name: str) -> str:
    """Return the name of a finding as a heading."""
    return name[:1].upper() + name[1:]
