"""Mark exchanged devices and findings as absent: "the catheter was replaced by a port", "edema gave way to scars"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from radfact.reader.ontology import Ontology
from radfact.reader.tokens import Token

if TYPE_CHECKING:
    from radfact.reader.finding_mentions import Mention

_VERBS = frozenset({"exchanged", "replaced", "swapped", "substituted", "converted", "upgraded"})
_NOUNS = frozenset({"exchange", "replacement", "conversion", "substitution", "upgrade"})
_EXCHANGES = _VERBS | _NOUNS | {"instead", "place"}
_GIVEN = frozenset({"gave", "given"})
_INCOMPLETE = frozenset({"not", "never", "partially", "partly", "incompletely"})
_NEW = frozenset({"for", "by", "with", "to"})
"""Words before the new device."""


def is_artificial(concept: str, ontology: Ontology) -> bool:
    """Return whether a concept is a device or the result of an operation."""
    return ontology.is_a(concept, "device") or ontology.is_a(concept, "postoperative_change")


def mark_exchanged(mentions: Sequence[Mention], tokens: Sequence[Token], ontology: Ontology) -> None:
    """Mark findings that "gave way to" others, and devices exchanged for another kind, as absent."""
    devices = [mention for mention in mentions if mention.present and is_artificial(mention.concept, ontology)]
    for i, token in enumerate(tokens):
        if token.words[-1] == "way" and i and tokens[i - 1].words[-1] in _GIVEN:
            _mark_replaced(mentions, tokens, i)
        if token.words[-1] not in _EXCHANGES or "finding" in token.meanings:
            continue
        before = [mention for mention in devices if mention.anchor < i]
        after = [mention for mention in devices if mention.anchor > i]
        words = [other.words[0] for other in tokens[i + 1 : i + 3]]
        old = new = None
        if token.words[-1] in _VERBS and before and after:
            is_passive = not _NEW.isdisjoint(words[:1])
            old, new = (before[-1], after[0]) if is_passive else (after[0], before[-1])
        elif token.words[-1] in _NOUNS and words[:1] == ["of"] and len(after) > 1:
            between = {other.words[0] for other in tokens[after[0].anchor : after[1].anchor]}
            old, new = (after[0], after[1]) if between & _NEW else (None, None)
        elif token.words[-1] in ("place", "instead") and words[:1] == ["of"] and before and after:
            old, new = after[0], before[-1]  # "takes the place of", "instead of"
        if old is not None and new is not None and old.concept != new.concept:
            old.present = False


def _mark_replaced(mentions: Sequence[Mention], tokens: Sequence[Token], way: int) -> None:
    """Mark the subject of "has given way to" as absent, unless the same finding follows, of another degree."""
    first = max((j + 1 for j in range(way) if tokens[j].ends_clause or tokens[j].words == (",",)), default=0)
    subject = [mention for mention in mentions if first <= mention.anchor < way]
    following = {mention.concept for mention in mentions if mention.anchor > way}
    words = {word for token in tokens[first:way] for word in token.words}
    if words & _INCOMPLETE or any(mention.concept in following for mention in subject):
        return
    for mention in subject:
        mention.present = False
