"""Determine how certain the finding mentions of a sentence are from the words around them."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from itertools import takewhile

from radfact.reader.ontology import Ontology
from radfact.reader.qualifiers import VIEWS, find_qualified_negations
from radfact.reader.tokens import CERTAIN, POSSIBLE, Token

_ADVERBS = frozenset({"possibly", "probably", "presumably", "questionably", "likely", "perhaps"})


class DoubtReader:
    """Determines the level of doubt of the findings in one sentence."""

    def __init__(self, tokens: Sequence[Token], ontology: Ontology) -> None:
        self.tokens = tokens
        self.ontology = ontology
        self.kinds: dict[str, list[int]] = defaultdict(list)  # indices of the tokens with each kind of meaning
        for i, token in enumerate(tokens):
            for kind in token.meanings:
                self.kinds[kind].append(i)
        self._joints = [i for i, token in enumerate(tokens) if token.joins]
        self._ors = [i for i, token in enumerate(tokens) if "or" in token.words]
        self.heads = {token.words[0] for token in tokens}
        # Tokens with a "not" of limited visibility, and with one about an earlier examination.
        self.limited, self.not_before = find_qualified_negations(tokens) if "not" in self.heads else (set(), set())
        # Tokens of doubt, each with the token that alone is in doubt ("may be LARGER", "possible INCREASE in") or None.
        self.doubting = {
            i: self._doubted_change(i)
            for i, token in enumerate(tokens)
            if token.doubt > CERTAIN or "uncertain_after" in token.meanings
        }

    def _doubt(self, first: int, last: int) -> int:
        if not self.doubting and not self.limited:
            return CERTAIN
        doubting = {j for j, change in self.doubting.items() if change is None}
        doubt = CERTAIN
        opening = min([*self.kinds["finding"][:1], *self.kinds["structure"][:1]], default=len(self.tokens))
        has_claim = False  # whether a verb follows: "may be infection, and the heart is large"
        for j in range(first - 1, -1, -1):
            token = self.tokens[j]
            if token.ends_clause or (token.joins and has_claim):
                break
            has_claim = has_claim or token.words[0] in ("there", "is", "are")
            if j in doubting:
                doubt = max(doubt, token.doubt)
                if "uncertain_after" in token.meanings and (j <= opening or self._are_linked(j, first)):
                    return POSSIBLE  # "there is possible pneumonia", "is unlikely to represent pneumonia"
        doubt = max(doubt, *(token.doubt for token in self.tokens[first + 1 : last]), CERTAIN)
        for j in range(last + 1, len(self.tokens)):
            token = self.tokens[j]
            if token.ends_clause:
                break
            if token.meanings.keys() & {"finding", "structure"}:
                is_listed = _has_between(self._joints, last, j) and not _has_between(self._ors, last, j)
                if is_listed or self._are_linked(last, j):
                    break  # "a new opacity, and infection should be considered"
            if j in self.limited:
                is_seen = any("seeing" in other.meanings or other.words[0] == "there" for other in self.tokens[:j])
                if not is_seen or all(VIEWS.isdisjoint(other.words) for other in self.tokens[j + 1 : j + 8]):
                    return POSSIBLE  # unlike "seen on the frontal view, not on the lateral"
            if j not in doubting:
                continue
            # "Is likely due to atelectasis": only the conclusion is uncertain.
            if "uncertain_after" in token.meanings and not any(
                other.meanings.keys() & {"link", "uncertain", "finding"} or other.words == ("be",)
                for other in takewhile(lambda other: not other.joins, self.tokens[j + 1 : j + 4])
            ):
                return POSSIBLE
            if token.doubt > doubt and self._ends_phrase(j + 1) and not self._doubts_circumstance(j):
                doubt = token.doubt  # "trace effusion suspected at the left base"
        return doubt

    def _ends_phrase(self, j: int) -> bool:
        if j >= len(self.tokens):
            return True
        token = self.tokens[j]
        return token.ends_clause or token.joins or "locative" in token.meanings or "copula" in token.meanings

    def _doubts_circumstance(self, j: int) -> bool:
        """Return whether a doubt is about a place or cause alone: "effusion, PROBABLY in the fissure"."""
        token, following = self.tokens[j], self.tokens[j + 1 : j + 2]
        word, is_apart = token.words[-1], self.tokens[j - 1].joins
        is_adverb = word.endswith("bly") or (is_apart and word in ("likely", "perhaps"))
        return is_adverb and any("locative" in other.meanings for other in following)

    def _doubted_change(self, j: int) -> int | None:
        if "link" in self.tokens[j].meanings and self.tokens[j].words[-1] not in _ADVERBS | {"be"}:
            return None  # "may represent resolving pneumonia"
        k = j + 1
        while k < len(self.tokens) and (
            "severity" in self.tokens[k].meanings or self.tokens[k].words[0] in ("interval", "to", "be")
        ):
            k += 1
        if k == len(self.tokens):
            return None
        is_graded = self.tokens[k].meanings.get("change") in ("increased", "decreased")
        is_predicate = "be" in self.tokens[j].words or "be" in self.tokens[k - 1].words  # "may be loculated"
        # "possibly enlarging effusion", not "possible enlarging effusion"
        is_graded = is_graded and (self._ends_phrase(k + 1) or self.tokens[j].words[-1] in _ADVERBS)
        is_detail = is_predicate and "detail" in self.tokens[k].meanings and self._ends_phrase(k + 1)
        return k if is_graded or is_detail else None

    def find_doubted_modifiers(self) -> set[int]:
        """Return the tokens of places and changes in doubt, with the doubt: "probably in the LEFT LOWER LOBE"."""
        doubted: set[int] = set()
        for j, end in self.doubting.items():
            if end is None and j and self._doubts_circumstance(j):
                following = range(j + 2, len(self.tokens))
                is_listed = takewhile(lambda k: not (self.tokens[k].ends_clause or self.tokens[k].joins), following)
                end = max(is_listed, default=j + 1)
            doubted.update(range(j, end + 1) if end is not None else ())
        return doubted

    def _are_linked(self, first: int, last: int) -> bool:
        return _has_between(self.kinds["link"], first, last)

    def _are_separated(self, first: int, last: int, place: str | None = None) -> bool:
        return any(
            token.joins
            or token.ends_clause
            or token.meanings.keys() & {"negation", "link", "probable", "uncertain"}
            or (place is not None and "locative" in token.meanings and token.words != (place,))
            for token in self.tokens[first + 1 : last]
        )


def _has_between(positions: Sequence[int], first: int, last: int) -> bool:
    return bisect_left(positions, last) > bisect_left(positions, first + 1)
