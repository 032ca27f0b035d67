"""Split narrative findings into single-finding sentences by rules (MAIRA-2, appendix B.5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from radfact.errors import Failure
from radfact.judges.protocol import ExplainingSplitter, RemovedText, SplitSentence, flatten_split
from radfact.languages import Language
from radfact.reader import removal
from radfact.reader.clause import FactReader
from radfact.reader.grammar import divide_sentence
from radfact.reader.ontology import Ontology
from radfact.reader.ontology_file import OntologyReader, default_ontology
from radfact.reader.segmentation import segment_sentences
from radfact.reader.tokens import MAX_CHARACTERS

_NOTE = "Split by rules, not by the language model of the paper: scores are not comparable with published ones."


class OfflineSplitter(OntologyReader, ExplainingSplitter):
    """A splitter without a model: a grammar splits, and an ontology checks that no finding is lost."""

    version = "7"

    def __init__(self, ontology: Path | str | None = None, *, keep_interpretations: bool = False) -> None:
        """Load the ontology of a YAML file; interpretations are such as "consistent with pneumonia"."""
        super().__init__(ontology)
        self.keep_interpretations = keep_interpretations

    def explain(self, narratives: Sequence[str]) -> list[list[SplitSentence] | Failure]:
        """Return the split sentences of each narrative, in order; a failure for a narrative in another script."""
        return [
            explain_split(narrative, self.ontology, keep_interpretations=self.keep_interpretations)
            if Language.ENGLISH.matches(narrative)
            else Failure(Language.ENGLISH.skip_reason)
            for narrative in narratives
        ]

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "keep_interpretations": self.keep_interpretations, "note": _NOTE}


def split_narrative(text: str, ontology: Ontology | None = None) -> list[str]:
    """Split a narrative into sentences of one finding each.

    Args:
        text: the findings section of a report.
        ontology: by default the packaged one.

    Returns:
        Sentences in reading order, each ending in a full stop.
    """
    return flatten_split(explain_split(text, ontology))


def explain_split(
    text: str, ontology: Ontology | None = None, *, keep_interpretations: bool = False
) -> list[SplitSentence]:
    """Split a narrative, with the result for each sentence (MAIRA-2, listings 1 and 2); long ones stay whole."""
    reader = FactReader(ontology or default_ontology())
    split: list[SplitSentence] = []
    last: int | None = None  # index of the last sentence that was not removed
    for sentence in segment_sentences(text):
        if removal.is_linked(sentence, reader):
            if last is not None:
                before = split[last]
                linked = f"{before.new[-1].rstrip('.')}; {sentence[:1].lower()}{sentence[1:]}."
                split[last] = SplitSentence(f"{before.orig}. {sentence}", (*before.new[:-1], linked), before.removed)
            else:
                split.append(SplitSentence(sentence, (), (RemovedText(sentence, removal.LINKED),)))
        else:
            split.append(SplitSentence(sentence, *_split_sentence(sentence, reader.ontology, keep_interpretations)))
            last = len(split) - 1 if split[-1].new else last
    return split


@lru_cache(maxsize=1 << 15)
def _split_sentence(
    sentence: str, ontology: Ontology, keep_interpretations: bool
) -> tuple[tuple[str, ...], tuple[RemovedText, ...]]:
    """Return the single-finding sentences of one sentence, and the removed parts; many reports share sentences."""
    if len(sentence) > MAX_CHARACTERS:
        return (_as_sentence(sentence),), ()
    reader = FactReader(ontology)
    head, links = _cut_links(sentence, reader)
    if links:
        singles, removed = _split_sentence(head, ontology, keep_interpretations)
        if not singles:
            return (), (*removed, RemovedText(links.strip("; "), removal.LINKED))
        return (*singles[:-1], f"{singles[-1].rstrip('.')}{links}."), removed
    connected = removal.remove_connective(sentence)
    stated = removal.remove_circumstance(connected, reader)
    text = removal.remove_heading(stated, reader)
    advised = removal.remove_recommendation(text, reader)
    uninterpreted = advised if keep_interpretations else removal.remove_interpretation(advised, reader)
    removed = (
        *_removed_text(connected, stated, removal.TECHNIQUE),
        *_removed_text(text, advised, removal.RECOMMENDATION),
        *_removed_text(advised, uninterpreted, removal.INTERPRETATION),
    )
    if (reason := removal.find_removal_reason(uninterpreted, reader)) is not None:
        return (), (RemovedText(uninterpreted, reason), *removed)
    parts = divide_sentence(uninterpreted, reader)
    if parts == [sentence]:
        return (_as_sentence(sentence),), removed
    splits = [_split_sentence(part.strip(" .;,"), ontology, keep_interpretations) for part in parts]
    parts_removed = tuple(part for _, removed_here in splits for part in removed_here)
    denied = {fact.concept for fact in reader.facts_in(sentence) if not fact.present}
    doubted = {finding for part in parts_removed for finding in reader.named_findings(part.text)}
    if any(ontology.is_denied_by(concept, finding) for concept in denied for finding in doubted):
        # "No consolidation, but pneumonia is possible" denies no pneumonia.
        return (_as_sentence(sentence),), removed
    return tuple(single for singles, _ in splits for single in singles), parts_removed + removed


def _removed_text(before: str, after: str, reason: str) -> tuple[RemovedText, ...]:
    """Return the part that was removed from a text; empty if the text is unchanged."""
    if before == after:
        return ()
    words, kept = ([word.strip(",;") for word in text.split()] for text in (before, after))
    begin = next((i for i, (a, b) in enumerate(zip(words, kept, strict=False)) if a != b), len(kept))
    ends = enumerate(zip(words[begin:][::-1], kept[begin:][::-1], strict=False))
    end = len(words) - next((i for i, (a, b) in ends if a != b), len(kept) - begin)
    return (RemovedText(" ".join(before.split()[begin:end]).strip(" ,;"), reason),)


def _cut_links(sentence: str, reader: FactReader) -> tuple[str, str]:
    """Cut "; it has increased; it is small" off the end of a sentence."""
    end = len(sentence)
    while (cut := sentence.rfind("; ", 0, end)) >= 0 and removal.is_linked(sentence[cut + 2 : end], reader):
        end = cut
    return sentence[:end], sentence[end:]


def _as_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('?') else '.'}"
