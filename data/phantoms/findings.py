"""Findings of phantoms: thirteen kinds, their possible locations and their boxes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from maira.data.phantoms.anatomy import Anatomy, Side

Kind = Literal[
    "endotracheal_tube", "nasogastric_tube", "central_line", "pacemaker", "consolidation", "mass", "nodule",
    "atelectasis", "edema", "effusion", "pneumothorax", "cardiomegaly", "rib_fracture",
]  # fmt: skip
Zone = Literal["upper", "mid", "lower"]
Rectangle = tuple[float, float, float, float]

KINDS: tuple[Kind, ...] = Kind.__args__  # type: ignore[attr-defined]
"""All kinds, in the order in which a report mentions them."""

FREQUENCY: dict[Kind, float] = {
    "endotracheal_tube": 0.7, "nasogastric_tube": 0.7, "central_line": 1.0, "pacemaker": 1.0, "consolidation": 1.5,
    "mass": 1.0, "nodule": 1.0, "atelectasis": 1.0, "edema": 1.0, "effusion": 2.0, "pneumothorax": 1.2,
    "cardiomegaly": 1.6, "rib_fracture": 0.7,
}  # fmt: skip
"""Relative frequency of each kind."""

UNSIDED: tuple[Kind, ...] = ("endotracheal_tube", "nasogastric_tube", "edema", "cardiomegaly")
RADII: dict[Kind, tuple[float, float]] = {
    "consolidation": (0.065, 0.105), "mass": (0.066, 0.088), "nodule": (0.036, 0.046),
}  # fmt: skip
BILATERAL_SHARE: dict[Kind, float] = {"atelectasis": 0.25, "effusion": 0.3}
GRADED: tuple[Kind, ...] = ("effusion", "pneumothorax", "cardiomegaly", "edema")
"""Kinds with a size or severity in three grades."""

ZONE_V: dict[Zone, tuple[float, float]] = {"upper": (0.26, 0.31), "mid": (0.41, 0.46), "lower": (0.57, 0.62)}
"""Range of v for the center of a finding by zone; the gaps make the wording unambiguous."""
GRADES = ((0.0, 0.25), (0.38, 0.62), (0.75, 1.0))
"""Extents of the three grades; the gaps make the wording unambiguous."""


@dataclass(frozen=True)
class Finding:
    """One abnormality."""

    kind: Kind
    sides: tuple[Side, ...] = ()  # the patient's; empty for findings without a side (heart, midline tubes)
    zone: Zone | None = None  # third of the lung, for findings described by it
    lateral: float = 0.0  # distance of the center from the midline
    v: float = 0.0  # height of the center
    extent: float = 0.5  # in [0, 1], from the smallest to the largest of its kind

    @property
    def grade(self) -> int:
        """Grade 0, 1 or 2: small / mild, moderate, large / severe."""
        return 0 if self.extent < 0.31 else 1 if self.extent < 0.69 else 2

    @property
    def side(self) -> Literal["left", "right", "both"] | None:
        """The side as used in labels."""
        return "both" if len(self.sides) == 2 else self.sides[0] if self.sides else None

    @property
    def radius(self) -> float:
        """Radius of round findings."""
        minimum, maximum = RADII[self.kind]
        return minimum + (maximum - minimum) * self.extent


def draw_finding(kind: Kind, anatomy: Anatomy, rng: np.random.Generator) -> Finding:
    """Draw a random finding of a kind in a patient."""
    sides: tuple[Side, ...] = ()
    if kind not in UNSIDED:
        sides = ("left",) if rng.random() < 0.5 else ("right",)
        if rng.random() < BILATERAL_SHARE.get(kind, 0.0):
            sides = ("left", "right")
    extent = float(rng.uniform(*GRADES[rng.integers(3)]))
    if kind in RADII:
        zone = list(ZONE_V)[rng.integers(3)]
        v = float(rng.uniform(*ZONE_V[zone]))
        # The heart hides the medial part of the lower left zone.
        inner = 0.19 if zone == "lower" and sides == ("left",) else 0.13
        lateral = float(rng.uniform(inner, max(inner + 0.02, float(anatomy.outer(v)) - 0.09)))
        return Finding(kind, sides, zone, lateral, v, extent)
    if kind == "rib_fracture":
        v = float(rng.uniform(0.36, 0.62))
        return Finding(kind, sides, None, float(anatomy.outer(v)) - 0.035, v, extent)
    return Finding(kind, sides, None, 0.0, float(rng.uniform(-0.012, 0.012)), extent)


def apply_to(anatomy: Anatomy, findings: tuple[Finding, ...]) -> Anatomy:
    """Return the anatomy changed by the findings (a larger heart)."""
    for finding in findings:
        if finding.kind == "cardiomegaly":
            anatomy = replace(anatomy, heart_share=0.55 + 0.15 * finding.extent)
    return anatomy


def device_path(finding: Finding, anatomy: Anatomy) -> list[tuple[float, float]]:
    """Return the points (u, v) of a tube, catheter or lead."""
    u, shift = anatomy.midline, finding.v
    if finding.kind == "endotracheal_tube":
        return [(u, 0.0), (u + 0.004, 0.12), (u, 0.255 + shift)]
    if finding.kind == "nasogastric_tube":
        stomach = anatomy.dome_left + 0.10
        return [(u + 0.022, 0.0), (u + 0.02, 0.4), (u + 0.03, stomach - 0.08), (u + 0.09, stomach),
                (u + 0.16, stomach + 0.02 + shift)]  # fmt: skip
    if finding.kind == "central_line" and finding.side == "right":
        return [(u - 0.10, 0.0), (u - 0.085, 0.14), (u - 0.055, 0.24), (u - 0.052, 0.42 + shift)]
    if finding.kind == "central_line":
        return [(u + 0.30, 0.16), (u + 0.20, 0.155), (u + 0.08, 0.20), (u - 0.03, 0.27), (u - 0.05, 0.42 + shift)]
    left, top, right, _ = generator(finding, anatomy)
    return [((left + right) / 2, top), (u + (-0.12 if finding.side == "right" else 0.12), 0.17), (u - 0.035, 0.30),
            (u - 0.04, 0.52), (u + 0.06, 0.68 + shift)]  # fmt: skip


def generator(finding: Finding, anatomy: Anatomy) -> Rectangle:
    """Return the box of a pacemaker's generator."""
    u, v = anatomy.u(finding.sides[0], 0.27), 0.235 + finding.v
    return u - 0.05, v - 0.04, u + 0.05, v + 0.04


def effusion_level(finding: Finding, anatomy: Anatomy, side: Side) -> float:
    """Return v of the surface of an effusion at its lowest point."""
    return anatomy.dome(side) + 0.03 - 0.05 - 0.24 * finding.extent


def pneumothorax_rim(finding: Finding) -> tuple[float, float]:
    """Return (width of the rim of air, v of its lower end)."""
    return 0.045 + 0.07 * finding.extent, 0.30 + 0.22 * finding.extent


def rectangles(finding: Finding, anatomy: Anatomy) -> list[Rectangle]:
    """Return the ground-truth boxes (u_min, v_min, u_max, v_max), one per side, in the image's centered square."""
    kind, boxes = finding.kind, list[Rectangle]()
    if kind == "cardiomegaly":
        boxes = [anatomy.heart_box]
    elif kind == "pacemaker":
        boxes = [generator(finding, anatomy)]
    elif kind in ("endotracheal_tube", "nasogastric_tube", "central_line"):
        line = np.array(device_path(finding, anatomy))
        (u0, v0), (u1, v1) = line.min(0), line.max(0)
        boxes = [(u0 - 0.015, v0, u1 + 0.015, v1 + 0.01)]
    elif kind in ("edema", "effusion", "pneumothorax", "atelectasis"):
        for side in finding.sides or ("right", "left"):
            inner, outer, top, bottom = _lateral_extent(finding, anatomy, side)
            near, far = anatomy.u(side, inner), anatomy.u(side, outer)
            boxes.append((float(min(near, far)), float(top), float(max(near, far)), float(bottom)))
    else:
        half = 0.045 if kind == "rib_fracture" else finding.radius * 1.1
        u = anatomy.u(finding.sides[0], finding.lateral)
        boxes = [(u - half, finding.v - half, u + half, finding.v + half)]
    return [(max(a, 0.0), max(b, 0.0), min(c, 1.0), min(d, 1.0)) for a, b, c, d in sorted(boxes)]


def _lateral_extent(finding: Finding, anatomy: Anatomy, side: Side) -> Rectangle:
    """Return (inner, outer, v_min, v_max) of a finding on a side, with distances from the midline."""
    dome = anatomy.dome(side)
    if finding.kind == "effusion":
        return 0.10, anatomy.half_width, effusion_level(finding, anatomy, side) - 0.03, dome + 0.10
    if finding.kind == "atelectasis":
        return 0.13, 0.31, dome - 0.10, dome - 0.005
    if finding.kind == "edema":
        return 0.06, 0.30, 0.30, 0.64
    width, end = pneumothorax_rim(finding)
    start = float(anatomy.outer(anatomy.lung_top + 0.03)) - width
    return max(start, 0.04), float(anatomy.outer(end)), anatomy.lung_top, end


_SIMILAR = ({"effusion", "pneumothorax"}, {"effusion", "atelectasis"}, {"pacemaker", "central_line"})
"""Kinds that cannot be told apart on one side."""
_COVERED = (("effusion", "lower"), ("atelectasis", "lower"), ("pacemaker", "upper"), ("pneumothorax", "upper"))
"""Kinds, and the zones that they cover on their side."""


def compatible(finding: Finding, others: list[Finding]) -> bool:
    """Return whether a finding can be distinguished from the others of a radiograph."""
    for other in others:
        kinds, zones = {other.kind, finding.kind}, {other.zone, finding.zone} - {None}
        if len(kinds) == 1 and (finding.kind not in ("nodule", "consolidation") or other.side == finding.side):
            return False
        if "edema" in kinds and kinds & {"consolidation", "nodule"}:
            return False
        if set(other.sides) & set(finding.sides) and (
            kinds in _SIMILAR
            or any(kind in kinds and zone in zones for kind, zone in _COVERED)
            or (other.zone is not None and other.zone == finding.zone)
        ):
            return False
    return True


def in_report_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings in the order in which a report mentions them."""
    return tuple(sorted(findings, key=lambda finding: (KINDS.index(finding.kind), finding.sides, finding.v)))


def draw_findings(anatomy: Anatomy, rng: np.random.Generator) -> tuple[Finding, ...]:
    """Draw up to four findings that can be seen next to each other, in the order of a report."""
    count = int(rng.choice(5, p=[0.12, 0.26, 0.30, 0.22, 0.10]))
    weights = np.array([FREQUENCY[kind] for kind in KINDS])
    chosen: list[Finding] = []
    for _ in range(4 * count):
        if len(chosen) == count:
            break
        finding = draw_finding(KINDS[rng.choice(len(KINDS), p=weights / weights.sum())], anatomy, rng)
        if compatible(finding, chosen):
            chosen.append(finding)
    return in_report_order(chosen)


def draw_prior(findings: tuple[Finding, ...], anatomy: Anatomy, rng: np.random.Generator) -> tuple[Finding, ...]:
    """Draw the findings of the prior radiograph: some missing, some of another size, some resolved since."""
    prior: list[Finding] = []
    for finding in findings:
        if rng.random() < 0.3:
            continue
        if finding.kind in GRADED and rng.random() < 0.35:
            grade = (finding.grade + 1 + int(rng.integers(2))) % 3
            finding = replace(finding, extent=float(rng.uniform(*GRADES[grade])))
        prior.append(finding)
    present = {finding.kind for finding in findings}
    for extra in draw_findings(anatomy, rng)[:1]:
        if rng.random() < 0.4 and extra.kind not in present and compatible(extra, prior):
            prior.append(extra)
    return in_report_order(prior)
