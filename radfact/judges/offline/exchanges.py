"""Mark exchanged devices and findings as absent: "the catheter was replaced by a port", "edema gave way to scars"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from radfact.judges.offline.tokens import Token

if TYPE_CHECKING:
    from radfact.judges.offline.finding_mentions import Mention

_VERBS = frozenset({"exchanged", "replaced", "swapped", "substituted", "converted", "upgraded"})
_NOUNS = frozenset({"exchange", "replacement", "conversion", "substitution", "upgrade"})
_GIVING = frozenset({"gave", "given", "giving"})
_NEW = frozenset({"for", "by", "with", "to"})
"""Words before the new device."""


def mark_exchanged(mentions: Sequence[Mention], tokens: Sequence[Token], is_artificial: Callable[[str], bool]) -> None:
    """Mark as absent what "gave way to" another state, and exchanged devices unless the new one is of the same kind.

    Args:
        mentions: mentions of a sentence, sorted by position.
        tokens: tokens of the sentence.
        is_artificial: function that returns whether a finding is a device or a postoperative change.
    """
    devices = [mention for mention in mentions if is_artificial(mention.concept) and mention.present]
    for i, token in enumerate(tokens):
        if token.words[-1] == "way" and i and tokens[i - 1].words[-1] in _GIVING:
            for mention in [mention for mention in mentions if mention.anchor < i and mention.present][-1:]:
                mention.present = False
        if token.words[-1] not in _VERBS | _NOUNS | {"instead", "place"} or "finding" in token.meanings:
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
        elif token.words[-1] == "place" and words[:1] == ["of"] and before and after:
            old, new = after[0], before[-1]  # "takes the place of", "in place of"
        elif token.words[-1] == "instead" and words[:1] == ["of"] and before and after:
            old, new = after[0], before[-1]
        if old is not None and new is not None and old.concept != new.concept:
            old.present = False
