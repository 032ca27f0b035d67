"""Findings of two systems: in which studies the second one is right where the first is wrong, and the reverse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from radfact.findings.details import FindingOutcome, severity
from radfact.findings.records import Verdict

Outcomes = Mapping[str, Mapping[str, Mapping[str, FindingOutcome]]]
"""Metric -> sample_id -> concept -> what the candidate makes of the finding."""


@dataclass(frozen=True, slots=True)
class FindingChange:
    """A study in which two systems differ in a finding; a verdict is None where neither report states the finding."""

    sample_id: str
    baseline: Verdict | None
    system: Verdict | None


@dataclass(slots=True)
class FindingContrast:
    """One kind of finding, over the samples that two systems share and whose findings were compared for both.

    The order of verdicts is correct, attribute error, omitted or unsupported, contradicted. `support` counts samples
    whose reference states the finding, `errors` those in which a system is wrong about it.
    """

    metric: str
    finding: str
    name: str
    support: int = 0
    baseline_errors: int = 0
    errors: int = 0
    improved: list[FindingChange] = field(default_factory=list)
    worse: list[FindingChange] = field(default_factory=list)

    @property
    def net(self) -> int:
        """Number of improved samples minus that of worse ones."""
        return len(self.improved) - len(self.worse)


def contrast_findings(baseline: Outcomes, system: Outcomes) -> list[FindingContrast]:
    """Compare two systems by kind of finding; those with the largest net improvement come first."""
    contrasts: dict[tuple[str, str], FindingContrast] = {}
    for metric in (name for name in baseline if name in system):
        for sample_id, first in baseline[metric].items():
            second = system[metric].get(sample_id)
            if second is None:
                continue
            for concept in dict.fromkeys((*first, *second)):
                name = (first.get(concept) or second[concept]).name
                own, other = (outcomes.get(concept) or FindingOutcome(name) for outcomes in (first, second))
                contrast = contrasts.setdefault((metric, concept), FindingContrast(metric, concept, name))
                contrast.support += own.reference is not None or other.reference is not None
                severities = severity(own.verdict), severity(other.verdict)
                contrast.baseline_errors += severities[0] > 0
                contrast.errors += severities[1] > 0
                if severities[0] != severities[1]:
                    changes = contrast.worse if severities[0] < severities[1] else contrast.improved
                    changes.append(FindingChange(sample_id, own.verdict, other.verdict))
    return sorted(contrasts.values(), key=lambda contrast: (contrast.metric, -contrast.net, contrast.finding))
