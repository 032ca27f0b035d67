"""Findings of a study on the results page, and what is wrong with its sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from radfact.findings.details import FindingDetails
from radfact.findings.records import AttributeDifference, FindingError, FindingMatch, JudgedFinding
from radfact.judges.offline import name_error
from radfact.metrics.radfact.scores import OTHER, PARTS, Side

_ABSENT: dict[Side, str] = {"candidate": "not in reference", "reference": "missing in candidate"}
_ATTRIBUTES = {"zone": "location", "degree": "severity", "device_position": "position"}


def list_findings(details: FindingDetails, study: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the findings of both reports in the form of the page's script, linked to the sentences of a study."""
    linked: dict[str, set[int]] = {side: set() for side in PARTS}
    links = []
    for link in details.links:
        shown: dict[str, Any] = {"verdict": link.verdict, "tier": link.tier, "reason": link.reason}
        for side in PARTS:
            linked[side].update(getattr(link, side))
            shown[side] = [_shown(getattr(details, side)[index], study[side]) for index in getattr(link, side)]
        shown |= {"concepts": list(_concepts(details, link)), "attributes": link.differing}
        links.append({**shown, "differences": _describe_differences(link)})
    others: dict[str, dict[str, None]] = {"both": {}, **{side: {} for side in PARTS}}
    for side in PARTS:
        for index, finding in enumerate(getattr(details, side)):
            if index not in linked[side]:
                others["both" if finding.verdict == "correct" else side][finding.description] = None
    return {"links": links, "others": {group: list(texts) for group, texts in others.items() if texts}}


def name_errors(study: Mapping[str, Any]) -> None:
    """Add in a few words what is wrong with unsupported sentences: the judge's reason, or differences of findings."""
    links = [link for findings in study.get("findings", {}).values() for link in findings["links"]]
    for side, other in OTHER.items():
        for index, sentence in enumerate(study[side]):
            relation = sentence.get("relation", "entailment")
            if relation == "entailment":
                continue
            own = [link for link in links if any(finding.get("sentence") == index for finding in link[side])]
            differences = [text for link in own for text in link["differences"]]
            error = name_error(sentence.get("why", ""), other) or ", ".join(dict.fromkeys(differences))
            if not error and relation == "neutral":
                error = _ABSENT[side]
            elif not error:
                is_denied = sentence.get("polarity") == "negative"
                error = f"{'abnormal in' if is_denied else 'contradicted by'} {other}"
            sentence["error"] = error


def _describe_differences(link: FindingMatch | FindingError) -> list[str]:
    if isinstance(link, FindingError):
        return [f"{name} only in {'candidate' if link.candidate else 'reference'}" for name in link.differing]
    return [_describe_difference(item) for item in link.attributes if item.cost > 0]


def _describe_difference(item: AttributeDifference) -> str:
    name = _ATTRIBUTES.get(item.attribute, item.attribute)
    if name == "region":
        return "misplaced box"
    for side in PARTS:
        if not getattr(item, side):
            return f"no {name} in {side}"
    return "wrong side" if name == "side" else f"other {name}"


def finding_keys(details: FindingDetails) -> Iterator[str]:
    """Yield concept, tier and kind of each finding as one text, by which a page selects studies."""
    for link in details.links:
        kinds = [link.verdict, *(f"{link.verdict}:{attribute}" for attribute in link.differing)]
        yield from (f"{concept}\t{link.tier}\t{kind}" for concept in _concepts(details, link) for kind in kinds)


def _concepts(details: FindingDetails, link: FindingMatch | FindingError) -> dict[str, None]:
    findings = [getattr(details, side)[index] for side in PARTS for index in getattr(link, side)]
    return dict.fromkeys(finding.concept for finding in findings if finding.is_scored)


def _shown(finding: JudgedFinding, sentences: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the text of a finding, and the index of its sentence among those on the page if it is one of them."""
    text = " ".join(finding.text.split())
    texts = [" ".join(str(sentence["text"]).split()) for sentence in sentences]
    indices = [index for index, sentence in enumerate(texts) if text and text in sentence]
    if not indices:
        return {"text": finding.description}
    return {"text": finding.description, "sentence": finding.sentence if finding.sentence in indices else indices[0]}
