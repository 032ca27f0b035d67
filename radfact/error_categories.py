"""The six categories of report errors that ReXVal, GREEN, VERT, FineRadScore and CheXprompt share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

CategoryLetter = Literal["a", "b", "c", "d", "e", "f"]

ERROR_CATEGORIES: Mapping[str, str] = {
    "a": "False report of a finding in the candidate",
    "b": "Missing a finding present in the reference",
    "c": "Misidentification of a finding's anatomic location/position",
    "d": "Misassessment of the severity of a finding",
    "e": "Mentioning a comparison that isn't in the reference",
    "f": "Omitting a comparison detailing a change from a prior study",
}
"""Names of the categories by letter. Source: GREEN, appendix A.1."""
