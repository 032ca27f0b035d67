"""Find the words of a sentence that qualify others: a "not" of visibility, names of views, compared places."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from radfact.reader.tokens import Token
from radfact.reader.vocabulary import word_set

_SEEING = word_set("seeing")
_PARTLY = word_set("partly")
_EARLIER = frozenset({"prior", "previous", "earlier"})
EXCLUSIONS = word_set("exclusions")
CONTRASTS = EXCLUSIONS | {"compared", "compare", "relative", "unlike", "contrast", "opposed"}
"""Words before a side that need not have the finding: "effusion on the left, UNLIKE the right"."""
COMPARISONS = CONTRASTS | {"than"}
VIEWS = frozenset({"lateral", "frontal", "pa", "ap"})
_VIEW_NOUNS = frozenset({"decubitus", "oblique", "view", "film", "radiograph", "projection"})
_VIEW_NAMES = _VIEW_NOUNS | {"lateral", "anterior", "posterior", "image", "side", "down", "up", "chest"}


def find_qualified_negations(tokens: Sequence[Token]) -> tuple[set[int], set[int]]:
    """Find the tokens with a "not" that does not deny a finding."""
    limited, before = set[int](), set[int]()
    for i, token in enumerate(tokens):
        if token.words[0] != "not":
            continue
        end = next((j for j in range(i, len(tokens)) if tokens[j].ends_clause), len(tokens))
        words = [word for other in tokens[i:end] for word in other.words][1:]
        seeing = next((n for n, word in enumerate(words[:4]) if word in _SEEING), None)
        if seeing is None:
            continue
        place = next((n for n in range(seeing + 1, len(words)) if words[n] in ("on", "in", "at", "by")), len(words))
        is_dated = any(word == "yesterday" or re.fullmatch(r"\d{4}", word) for word in words[seeing:])
        if is_dated or not _EARLIER.isdisjoint(words[place : place + 4]):
            before.add(i)
        elif not VIEWS.isdisjoint(words[place : place + 4]) or not _PARTLY.isdisjoint(words[:seeing]):
            limited.add(i)
    return limited, before


def find_view_words(tokens: Sequence[Token]) -> set[int]:
    """Find the tokens that name a view, not a place: "on the LEFT LATERAL decubitus film"."""
    views: set[int] = set()
    for i, token in enumerate(tokens):
        if "side" not in token.meanings or i in views:
            continue
        end = i + 1
        while end < len(tokens) and end < i + 4 and _VIEW_NAMES.issuperset(tokens[end].words):
            end += 1
        if any(not _VIEW_NOUNS.isdisjoint(other.words) for other in tokens[i + 1 : end]):
            views.update(range(i, end))
    return views


def find_compared_places(tokens: Sequence[Token], triggers: Collection[str] = COMPARISONS) -> set[int]:
    """Find the tokens of a side that something is compared with: "denser than THE RIGHT"."""
    compared: set[int] = set()
    for i, token in enumerate(tokens):
        if i in compared or token.words[0] not in triggers:
            continue
        if token.words[0] in EXCLUSIONS and len(token.words) > 1:
            continue  # "not seen on the right" denies the finding
        end = i + 1
        while end < len(tokens) and (
            tokens[end].words[0] in ("to", "with", "the", "on", "in", "that", "of", "side")
            or tokens[end].meanings.keys() & {"side", "zone", "place"}
        ):
            end += 1
        if any("side" in other.meanings for other in tokens[i + 1 : end]):
            compared.update(range(i, end))
    return compared
