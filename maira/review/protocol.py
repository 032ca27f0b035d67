"""The review protocol: steps, clinical implications and error types (MAIRA-2, figure F.1)."""

from __future__ import annotations

from typing import Literal

from radfact.records import Record

SeverityId = Literal[0, 1, 2]


class Severity(Record):
    """Clinical implications of an error (figure F.1; ids as in tables F.1 to F.3)."""

    id: SeverityId
    name: str
    definition: str


class Step(Record):
    """A step of a review with its instruction (figure F.1)."""

    number: int
    name: str
    instruction: str


SEVERITIES = (
    Severity(
        id=0,
        name="No implications",
        definition="Finding omission/ error is minor and unlikely to be considered in patient management\n"
        "Omitted finding is chronic, describes old finding/ condition (e.g., old rib fracture, lung scarring) or "
        "something that cannot be actioned or treated (e.g., mild scoliosis)\n"
        "Describes personal preference in reporting style",
    ),
    Severity(
        id=1,
        name="Minor implications",
        definition="Patient condition unlikely to get worse\n"
        "Could cause delay in patient discharge\n"
        "Creates additional work for clinicians/ radiologists by requesting additional, non-necessary scans. Only "
        "minor exposure to additional procedures (e.g., radiation exposure)\n"
        "Causes confusion/ worry in clinicians/ patients if finding is illegible and would likely be ignored",
    ),
    Severity(
        id=2,
        name="Significant implications",
        definition="Serious omission of a clinical finding\n"
        "Serious misinterpretation of finding (e.g., cancer mistaken for infection)\n"
        "Serious negative impact on patient management (e.g., no/ wrong treatment given; no/ wrong/ unnecessary or "
        "invasive follow-up tests)\n"
        "Could cause patient death",
    ),
)

STEPS = (
    Step(
        number=1,
        name="Check",
        instruction="Check the factual correctness of the generated findings phrases given the frontal and any lateral "
        "or prior image and context information (indication, technique, comparison).",
    ),
    Step(
        number=2,
        name="Correct",
        instruction="Make any “clinically necessary” edits based on the image(s) and context information:\n"
        "Delete if entirely false, non-sensical, not knowable from image\n"
        "Edit imprecisions/ smaller mistakes directly on the findings text to correct any clinically incorrect "
        "information\n"
        "Add missing findings that are clinically relevant given the image",
    ),
    Step(
        number=3,
        name="Compare",
        instruction="Review reference report sentences and make any additional edits this suggests. Leave a comment.",
    ),
    Step(
        number=4,
        name="Assess",
        instruction="Indicate severity of clinical implications for patient treatment as “no”, “minor”, “significant” "
        "for each added, deleted or edited finding.",
    ),
)

REFERENCE_STEP = 3
"""The first step in which the reader sees the reference report."""

ERROR_TYPES = (
    "OMISSION",
    "OMISSION: Anatomical Observation",
    "OMISSION: Normal Finding",
    "MISCLASSIFICATION",
    "MISCLASSIFICATION: Inconsistency (internal logic)",
    "OVERSPECIFIC",
    "INCORRECT PROGRESSION",
    "INCORRECT LOCATION",
    "OTHER",
    "OTHER: Anatomically imprecise description",
)
"""Error types of tables F.1 to F.3, with the subtype after a colon; readers may add others."""
