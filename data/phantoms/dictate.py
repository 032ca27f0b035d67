"""Reports of phantoms: one sentence per finding, in varied wording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from maira.data.phantoms.findings import GRADED, KINDS, Finding, Kind, in_report_order

Change = Literal["new", "unchanged", "larger", "smaller"]

SIZES = (("small",), ("moderate", "moderate-sized"), ("large", "extensive"))
SEVERITIES = (("mild", "slight"), ("moderate",), ("severe", "marked"))

NOUNS: dict[Kind, tuple[str, ...]] = {
    "endotracheal_tube": ("endotracheal tube", "ET tube"),
    "nasogastric_tube": ("nasogastric tube", "enteric tube"),
    "central_line": ("central venous catheter", "central line"),
    "pacemaker": ("pacemaker",),
    "consolidation": ("consolidation", "airspace consolidation"),
    "mass": ("mass",),
    "nodule": ("nodule", "pulmonary nodule"),
    "atelectasis": ("atelectasis",),
    "edema": ("pulmonary edema", "pulmonary oedema"),
    "effusion": ("pleural effusion",),
    "pneumothorax": ("pneumothorax",),
    "cardiomegaly": ("cardiomegaly",),
    "rib_fracture": ("rib fracture",),
}
UNCOUNTED: tuple[Kind, ...] = ("consolidation", "atelectasis", "edema", "cardiomegaly")
"""Kinds without an article."""
ZONE_WORDS = {"upper": ("zone", "lobe"), "mid": ("zone", "lung"), "lower": ("zone", "lobe")}
TUBE_ENDS = {
    "endotracheal_tube": ("with its tip above the carina", "terminating above the carina"),
    "nasogastric_tube": ("with its tip in the stomach", "terminating in the stomach"),
    "central_line": ("with its tip in the SVC", "terminating in the superior vena cava"),
}

CLEAR = ("The lungs are clear.", "Lungs are clear.", "Clear lungs.")
NORMAL: dict[Kind, tuple[str, ...]] = {
    "effusion": ("No pleural effusion.", "There is no pleural effusion.", "No pleural effusion is seen."),
    "pneumothorax": ("No pneumothorax.", "There is no pneumothorax.", "No pneumothorax is seen."),
    "cardiomegaly": ("Heart size is normal.", "The heart is normal in size.", "Normal heart size."),
    "rib_fracture": ("No acute osseous abnormality.", "No acute bony abnormality."),
}
"""Statements of a report in which a kind is absent."""
LUNG_KINDS: tuple[Kind, ...] = ("consolidation", "mass", "nodule", "atelectasis", "edema")
INDICATIONS: dict[Kind | None, tuple[str, ...]] = {
    "endotracheal_tube": ("Intubated, check tube position.",),
    "nasogastric_tube": ("Enteric tube placement.",),
    "central_line": ("Line placement.",),
    "consolidation": ("Cough and fever.", "Fever, rule out pneumonia."),
    "mass": ("Weight loss.", "Hemoptysis."),
    "edema": ("Shortness of breath.", "Heart failure."),
    "effusion": ("Shortness of breath.", "Reduced breath sounds."),
    "pneumothorax": ("Sudden chest pain.",),
    "cardiomegaly": ("Shortness of breath.", "Heart failure."),
    "rib_fracture": ("Fall.", "Chest trauma."),
    None: ("Chest pain.", "Preoperative evaluation.", "Cough.", "Shortness of breath."),
}


@dataclass(frozen=True)
class Dictated:
    """A sentence and its finding; None for a negative or normal statement."""

    text: str
    finding: Finding | None = None


def _pick(rng: np.random.Generator, options: tuple[str, ...]) -> str:
    return options[rng.integers(len(options))]


def _side(finding: Finding) -> str:
    return {"both": "bilateral ", None: ""}.get(finding.side, f"{finding.side} ")


def _is_plural(finding: Finding) -> bool:
    return finding.side == "both" and finding.kind == "effusion"


def noun_phrase(finding: Finding, rng: np.random.Generator) -> str:
    """Return a finding with size, side and location, without article: "small left pleural effusion"."""
    noun, side, size, ending = _pick(rng, NOUNS[finding.kind]), _side(finding), "", ""
    if finding.kind in GRADED:
        words = SIZES if finding.kind in ("effusion", "pneumothorax") else SEVERITIES
        size = _pick(rng, words[finding.grade]) + " "
    if finding.zone is not None:
        place = f"{finding.zone} {_pick(rng, ZONE_WORDS[finding.zone])}"
        return f"{side}{place} {noun}" if rng.random() < 0.5 else f"{noun} in the {side}{place}"
    if finding.kind == "atelectasis":
        side += _pick(rng, ("basal ", "basilar "))
    if finding.kind in TUBE_ENDS:
        ending = f" {_pick(rng, TUBE_ENDS[finding.kind])}"
    return f"{size}{side}{noun}{'s' if _is_plural(finding) else ''}{ending}"


def dictate_finding(finding: Finding, change: Change | None, rng: np.random.Generator) -> str:
    """Return a sentence about a finding, with its change since the prior if there is one."""
    phrase, plural = noun_phrase(finding, rng), _is_plural(finding)
    capital, verb = phrase[0].upper() + phrase[1:], "are" if plural else "is"
    article = "" if plural or finding.kind in UNCOUNTED else "an " if phrase[0] in "aeiouE" else "a "
    if change == "new":
        return _pick(rng, (f"New {phrase}.", f"There {verb} {'a ' if article else ''}new {phrase}."))
    if change == "unchanged":
        return _pick(rng, (f"Unchanged {phrase}.", f"{capital}, unchanged."))
    if change is not None:
        word = {"larger": ("increased", "worsened"), "smaller": ("decreased", "improved")}[change]
        return f"{capital}, {_pick(rng, word)}."
    if finding.kind == "cardiomegaly" and rng.random() < 0.5:
        degree = ("mildly", "moderately", "severely")[finding.grade]
        return _pick(rng, (f"The heart is {degree} enlarged.", f"Heart size is {degree} enlarged."))
    return _pick(rng, (f"{capital}.", f"There {verb} {article}{phrase}.", f"{capital} {verb} seen."))


def dictate(
    findings: tuple[Finding, ...], prior: tuple[Finding, ...] | None, rng: np.random.Generator
) -> list[Dictated]:
    """Return the report as single-finding sentences: devices, lungs, pleura, heart, bones."""
    sentences: list[Dictated] = []
    present = {finding.kind for finding in findings}
    resolved = [] if prior is None else [f for f in prior if f.kind not in present]
    for kind in KINDS:
        if kind == "consolidation" and not present & set(LUNG_KINDS):
            sentences.append(Dictated(_pick(rng, CLEAR)))
        for finding in in_report_order(f for f in findings if f.kind == kind):
            change = None if prior is None else change_since(finding, prior)
            sentences.append(Dictated(dictate_finding(finding, change, rng), finding))
        sentences += [Dictated(_dictate_resolved(finding)) for finding in resolved if finding.kind == kind]
        if kind in NORMAL and kind not in present:
            sentences.append(Dictated(_pick(rng, NORMAL[kind])))
    return sentences


def change_since(finding: Finding, prior: tuple[Finding, ...]) -> Change:
    """Return the change of a finding since the prior radiograph."""
    for before in prior:
        if before.kind == finding.kind and before.sides == finding.sides and before.zone == finding.zone:
            if finding.kind not in GRADED or finding.grade == before.grade:
                return "unchanged"
            return "larger" if finding.grade > before.grade else "smaller"
    return "new"


def _dictate_resolved(finding: Finding) -> str:
    subject = f"The {_side(finding)}{NOUNS[finding.kind][0]}"
    if finding.kind in (*TUBE_ENDS, "pacemaker"):
        return f"{subject} has been removed."
    return f"{subject}{'s have' if _is_plural(finding) else ' has'} resolved."


def dictate_indication(findings: tuple[Finding, ...], rng: np.random.Generator) -> str:
    """Return an indication, which fits a finding in two of three cases."""
    hints = [f.kind for f in findings if f.kind in INDICATIONS]
    kind = hints[rng.integers(len(hints))] if hints and rng.random() < 0.67 else None
    return _pick(rng, INDICATIONS[kind])


def read_label(sentence: str) -> tuple[Kind, str | None] | None:
    """Return the (kind, side) that a sentence in the wording of phantoms states as present, None if there is none."""
    text = sentence.lower()
    if text.startswith(("no ", "there is no ", "normal ", "clear ")) or "resolved" in text or "removed" in text:
        return None
    for kind in KINDS:
        nouns = (*NOUNS[kind], "heart") if kind == "cardiomegaly" else NOUNS[kind]
        if any(noun.lower() in text for noun in nouns):
            if kind == "cardiomegaly" and "heart" in text and "enlarged" not in text:
                return None
            sides = [side for side in ("left", "right") if side in text]
            return kind, "both" if "bilateral" in text else sides[0] if sides else None
    return None
