"""Split narrative findings into single-finding sentences by rules (MAIRA-2, appendix B.5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from radfact.errors import Failure
from radfact.judges.offline import removal
from radfact.judges.offline.clause import FactReader
from radfact.judges.offline.grammar import divide_sentence
from radfact.judges.offline.ontology import Ontology
from radfact.judges.offline.ontology_file import default_ontology, load_ontology
from radfact.judges.offline.segmentation import segment_sentences
from radfact.judges.protocol import SplitSentence, flatten_split

VERSION = "2"

_NOTE = "Split by rules, not by the language model of the paper: scores are not comparable with published ones."


class OfflineSplitter:
    """A splitter without a model: a grammar splits, and an ontology checks that no finding is lost."""

    name = "offline"

    def __init__(self, ontology: Path | str | None = None) -> None:
        """Load the ontology: a YAML file, or by default the packaged one.

        Raises:
            InputError: the ontology file is wrong, with its field.
        """
        self.ontology: Ontology = default_ontology() if ontology is None else load_ontology(ontology)

    def split(self, narratives: Sequence[str]) -> list[list[str] | Failure]:
        """Return the sentences of each narrative, in order."""
        return [split_narrative(narrative, self.ontology) for narrative in narratives]

    def explain(self, narratives: Sequence[str]) -> list[list[SplitSentence] | Failure]:
        """Return the split sentences of each narrative, in order."""
        return [explain_split(narrative, self.ontology) for narrative in narratives]

    def describe(self) -> dict[str, Any]:
        """Return the name, version and ontology, and how the scores compare."""
        return {
            "name": self.name,
            "version": VERSION,
            "ontology_version": self.ontology.version,
            "ontology_sha256": self.ontology.sha256,
            "note": _NOTE,
        }

    def usage(self) -> dict[str, int]:
        """Return zero costs."""
        return dict.fromkeys(("calls", "tokens_in", "tokens_out", "repairs", "failures", "cached"), 0)


def split_narrative(text: str, ontology: Ontology | None = None) -> list[str]:
    """Split a narrative into sentences of one finding each.

    Args:
        text: the findings section of a report.
        ontology: by default the packaged one.

    Returns:
        Sentences in reading order, each ending in a full stop.
    """
    return flatten_split(explain_split(text, ontology))


def explain_split(text: str, ontology: Ontology | None = None) -> list[SplitSentence]:
    """Split a narrative and return the result for each of its sentences (MAIRA-2, listings 1 and 2).

    Sentences of several findings are split; technique, recommendations, bare comparisons and the interpretation of
    described findings are removed; change is kept. A sentence that depends on the previous one ("This has increased.")
    stays with it.

    Args:
        text: the findings section of a report.
        ontology: by default the packaged one.
    """
    reader = FactReader(ontology or default_ontology())
    split: list[SplitSentence] = []
    for sentence in segment_sentences(text):
        last = next((i for i in range(len(split) - 1, -1, -1) if split[i].new), None)
        if removal.is_linked(sentence, reader):
            if last is not None:
                before = split[last]
                linked = f"{before.new[-1].rstrip('.')}; {sentence[:1].lower()}{sentence[1:]}."
                split[last] = SplitSentence(f"{before.orig}. {sentence}", (*before.new[:-1], linked))
        else:
            split.append(SplitSentence(sentence, _split_sentence(sentence, reader.ontology)))
    return split


@lru_cache(maxsize=50_000)
def _split_sentence(sentence: str, ontology: Ontology) -> tuple[str, ...]:
    """Return the single-finding sentences of one sentence; cached, since most reports share sentences."""
    reader = FactReader(ontology)
    head, semicolon, link = sentence.rpartition("; ")
    if semicolon and removal.is_linked(link, reader):
        parts = list(_split_sentence(head, ontology))
        return (*parts[:-1], f"{parts[-1].rstrip('.')}; {link}.") if parts else ()
    text = removal.remove_heading(removal.remove_connective(sentence), reader)
    text = removal.remove_interpretation(removal.remove_recommendation(text, reader), reader)
    if removal.states_no_finding(text, reader):
        return ()
    parts = divide_sentence(text, reader)
    if parts == [sentence]:
        return (f"{sentence[:1].upper()}{sentence[1:]}.",)
    return tuple(single for part in parts for single in _split_sentence(part.strip(" .;,"), ontology))
