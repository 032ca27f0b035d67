"""Contradictions within one report: what one sentence denies and another one states, both with certainty."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product
from pathlib import Path
from typing import NamedTuple

from radfact.reader.entailment_rules import EntailmentChecker
from radfact.reader.facts import Fact, parse_sentence
from radfact.reader.ontology_file import OntologyReader
from radfact.reader.reasons import describe_fact
from radfact.reader.tokens import CONCLUDED
from radfact.reader.vocabulary import pattern

_LIMITED, _FOCAL, _OUTSIDE = map(pattern, ("limited_denial", "focal_denial", "outside_lungs_and_bones"))
_SUMMARIES = ("chest", "thoracic", "cardiopulmonary", "acute_cardiopulmonary", "acute_lung", "acute_mediastinal")
"""What "normal chest" and "no acute disease" deny: they sum up a report, whatever else it states."""
_SHADOWS = ("parenchymal_abnormality", "fracture")
_OLD_FINDINGS = ("granuloma", "scarring", "fibrosis", "calcification", "degenerative_change")
_OLD_ATTRIBUTES = frozenset({"chronic", "calcified", "healed", "persistent", "unchanged"})


class Contradiction(NamedTuple):
    """Indices of two sentences that cannot both be true, in order, and why."""

    first: int
    second: int
    why: str


class ContradictionReader(OntologyReader):
    """Finds the sentences of a report that contradict each other, by rules; see `docs/metrics.md`."""

    version = "1"

    def __init__(self, ontology: Path | str | None = None) -> None:
        super().__init__(ontology)
        self._checker = EntailmentChecker(self.ontology)

    def find(self, sentences: Sequence[str]) -> list[Contradiction]:
        """Return the pairs of sentences of a report that contradict each other."""
        groups = [parse_sentence(text, self.ontology).groups for text in sentences]
        facts = [[group[0] for group in parts if len(group) == 1 and group[0].doubt <= CONCLUDED] for parts in groups]
        found: dict[tuple[int, int], str] = {}
        for i, j in permutations(range(len(sentences)), 2):
            for denial, claim in product(facts[i], facts[j]):
                if denial.present or not claim.present or not self._checker.excludes(denial, claim):
                    continue
                if self._denies_all(denial, sentences[i]) and self._is_meant(denial, claim, sentences[i], sentences[j]):
                    why = f"{describe_fact(denial, self.ontology)}, but {describe_fact(claim, self.ontology)}"
                    found.setdefault((min(i, j), max(i, j)), why)
        return [Contradiction(*pair, found[pair]) for pair in sorted(found)]

    def _denies_all(self, denial: Fact, sentence: str) -> bool:
        """Return whether a denial has no limit that the reader does not know, and does not merely sum up the report."""
        parsed = parse_sentence(sentence, self.ontology)
        has_unread_place = not denial.places and any(kind in ("side", "zone") for kind, _ in parsed.attributes)
        is_limited = parsed.unread_words or has_unread_place or denial.change or denial.exceptions
        is_summary = denial.concept.removesuffix("_abnormality") in _SUMMARIES
        return not (is_limited or is_summary or _LIMITED.search(sentence))

    def _is_meant(self, denial: Fact, claim: Fact, denying: str, stating: str) -> bool:
        """Return whether a denial is about a claim that its words include."""
        is_a = self.ontology.is_a
        if _OUTSIDE.search(stating) and any(is_a(claim.concept, kind) for kind in _SHADOWS):
            return False
        is_focal = is_a(denial.concept, "opacity") and _FOCAL.search(denying) is not None
        # "Clear lungs" and "intact bones" stand beside known and old findings in signed reports.
        has_old_attribute = not _OLD_ATTRIBUTES.isdisjoint(claim.details | claim.change)
        is_old = has_old_attribute or any(is_a(claim.concept, kind) for kind in _OLD_FINDINGS)
        if denial.concept == claim.concept:
            return not is_focal or (not is_old and [side for side, _ in claim.places] in ([], ["left"], ["right"]))
        return not (is_focal or is_old)
