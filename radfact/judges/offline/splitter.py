"""Narrative findings to single-finding sentences, offline (paper 004, appendix B.5.1, done by rules)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from radfact.errors import Failure
from radfact.judges.offline import removal
from radfact.judges.offline.clause import Facts
from radfact.judges.offline.grammar import divide
from radfact.judges.offline.ontology import Ontology
from radfact.judges.offline.ontology_file import default_ontology, load_ontology
from radfact.judges.offline.segments import sentences_of
from radfact.judges.protocol import SplitSentence, flatten_split

VERSION = "2"

_NOTE = "Split by rules, not by the language model of the paper: figures are not comparable with published ones."


class OfflineSplitter:
    """A splitter that needs no model: grammar divides, an ontology checks that no finding is lost."""

    name = "offline"

    def __init__(self, ontology: Path | str | None = None) -> None:
        """Take the packaged ontology, or the YAML file given.

        Raises:
            InputError: the ontology file is wrong, with its field.
        """
        self.ontology: Ontology = default_ontology() if ontology is None else load_ontology(ontology)

    def split(self, narratives: Sequence[str]) -> list[list[str] | Failure]:
        """The sentences of each narrative, in order."""
        return [split_narrative(narrative, self.ontology) for narrative in narratives]

    def explain(self, narratives: Sequence[str]) -> list[list[SplitSentence] | Failure]:
        """As `split`, with the sentence of the narrative that each was made of."""
        return [explain_split(narrative, self.ontology) for narrative in narratives]

    def describe(self) -> dict[str, Any]:
        """Name, version, ontology hash and what the figures may be compared with."""
        return {
            "name": self.name,
            "version": VERSION,
            "ontology_version": self.ontology.version,
            "ontology_sha256": self.ontology.sha256,
            "note": _NOTE,
        }

    def usage(self) -> dict[str, int]:
        """All zero: the answers cost no calls."""
        return dict.fromkeys(("calls", "tokens_in", "tokens_out", "repairs", "failures", "cached"), 0)


def split_narrative(text: str, ontology: Ontology | None = None) -> list[str]:
    """Split a narrative into sentences of one finding each.

    Args:
        text: the findings section of a report.
        ontology: which findings there are; by default the packaged one.

    Returns:
        Sentences in reading order, each ending in a full stop.
    """
    return flatten_split(explain_split(text, ontology))


def explain_split(text: str, ontology: Ontology | None = None) -> list[SplitSentence]:
    """Each sentence of a narrative with what became of it (paper 004, listings 1 and 2).

    Sentences of several findings are divided; technique, recommendations, bare comparisons and the interpretation of
    what was described already are removed; change is kept. A sentence that cannot be understood without the one before
    it ("This has increased.") stays with it.

    Args:
        text: the findings section of a report.
        ontology: which findings there are; by default the packaged one.
    """
    facts = Facts(ontology or default_ontology())
    split: list[SplitSentence] = []
    for sentence in sentences_of(text):
        last = next((i for i in range(len(split) - 1, -1, -1) if split[i].new), None)
        if removal.is_linked(sentence, facts):
            if last is not None:
                before = split[last]
                linked = f"{before.new[-1].rstrip('.')}; {sentence[:1].lower()}{sentence[1:]}."
                split[last] = SplitSentence(f"{before.orig}. {sentence}", (*before.new[:-1], linked))
        else:
            split.append(SplitSentence(sentence, _single_findings(sentence, facts.ontology)))
    return split


@lru_cache(maxsize=50_000)
def _single_findings(sentence: str, ontology: Ontology) -> tuple[str, ...]:
    """The sentences that one sentence becomes; kept, since the same sentences come back in most reports."""
    facts = Facts(ontology)
    head, semicolon, link = sentence.rpartition("; ")
    if semicolon and removal.is_linked(link, facts):
        parts = list(_single_findings(head, ontology))
        return (*parts[:-1], f"{parts[-1].rstrip('.')}; {link}.") if parts else ()
    kept = removal.without_heading(removal.without_connective(sentence), facts)
    kept = removal.without_interpretation(removal.without_recommendation(kept, facts), facts)
    if removal.is_no_finding(kept, facts):
        return ()
    parts = divide(kept, facts)
    if parts == [sentence]:
        return (f"{sentence[:1].upper()}{sentence[1:]}.",)
    return tuple(single for part in parts for single in _single_findings(part.strip(" .;,"), ontology))
