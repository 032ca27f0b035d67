"""The offline extractor: findings by the sentence parser of the offline judge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from radfact.errors import Failure
from radfact.findings.records import Extraction, Finding, report_sentences
from radfact.languages import Language
from radfact.reader.clause import FactReader
from radfact.reader.facts import Fact, parse_sentence
from radfact.reader.ontology import Ontology
from radfact.reader.ontology_file import OntologyReader
from radfact.reader.removal import remove_heading
from radfact.reader.segmentation import segment_sentences
from radfact.reader.tokens import CONCLUDED, MAX_CHARACTERS, tokenize
from radfact.records import PatientContext, Report

_STATEMENTS = frozenset({"normal", "clear", "change"})
NOTHING_READ = "the offline reader finds no statement about the image"


class OfflineFindingExtractor(OntologyReader):
    """An extractor of the offline judge's facts in the report's order, without those of earlier examinations."""

    version = "3"

    def extract(self, reports: Sequence[Report], contexts: Sequence[PatientContext] = ()) -> list[Extraction]:
        """Return the findings of each report, in order; the patient context is not used. See `FindingExtractor`."""
        del contexts
        return [self._extract(report) for report in reports]

    def _extract(self, report: Report) -> Extraction:
        sentences = report_sentences(report)
        if not Language.ENGLISH.matches(" ".join(sentence.text for sentence in sentences)):
            return Failure(Language.ENGLISH.skip_reason)
        findings: list[Finding] = []
        # Neither "..." nor "___" is an empty report.
        is_read = not (report.strip() if isinstance(report, str) else sentences)
        for index, sentence in enumerate(sentences):
            read, claims = _read(sentence.text, self.ontology)
            is_read = is_read or read
            source = {"sentence": index, "text": sentence.text, "boxes": sentence.boxes, "masks": sentence.masks}
            findings += (finding.model_copy(update=source) for finding in claims)
        return tuple(findings) if is_read else Failure(NOTHING_READ)


@lru_cache(maxsize=1 << 15)
def _read(text: str, ontology: Ontology) -> tuple[bool, tuple[Finding, ...]]:
    """Return whether anything is read in a text, such as "Interval improvement.", and the findings."""
    reader = FactReader(ontology)
    parts = [remove_heading(part, reader) for part in segment_sentences(text)]
    facts = [fact for part in parts for fact in parse_sentence(part, ontology).facts]
    is_read = bool(facts) or any(
        token.meanings.keys() & _STATEMENTS for part in parts for token in tokenize(part[:MAX_CHARACTERS], ontology)
    )
    return is_read, tuple(dict.fromkeys(_findings(facts, ontology)))


def _findings(facts: Sequence[Fact], ontology: Ontology) -> Iterator[Finding]:
    for fact in facts:
        is_past = fact.present and "previous" in fact.change and "persistent" not in fact.change
        if not is_past:
            yield Finding(
                concept=fact.concept,
                status="absent" if not fact.present else "uncertain" if fact.doubt > CONCLUDED else "present",
                places=fact.places,
                degree=tuple(sorted(fact.severity)),
                sizes=fact.measures,
                change=tuple(sorted(fact.change)),
                character=tuple(sorted(fact.details - ontology.positions)),
                position=tuple(sorted(fact.details & ontology.positions)),
                is_conclusion=fact.present and fact.doubt == CONCLUDED,
            )
