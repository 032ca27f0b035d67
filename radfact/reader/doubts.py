"""Determine how certain the finding mentions of a sentence are from the words around them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, takewhile

from radfact.reader.attributes import VIEWS
from radfact.reader.tokens import CERTAIN, POSSIBLE, Token

_ADVERBS = frozenset({"possibly", "probably", "presumably", "questionably", "likely", "perhaps"})


class DoubtReader:
    """Determines the level of doubt of the findings in one sentence.

    Attributes:
        tokens: tokens of the sentence.
        limited: indices of tokens with a "not" of limited visibility.
    """

    tokens: Sequence[Token]
    limited: set[int]

    def _doubt(self, first: int, last: int) -> int:
        doubt = CERTAIN
        opening = min(self._first_with("finding"), self._first_with("structure"))
        has_claim = False  # whether a verb follows: "may be infection, and the heart is large"
        for j in range(first - 1, -1, -1):
            token = self.tokens[j]
            if token.ends_clause or (token.joins and has_claim):
                break
            has_claim = has_claim or token.words[0] in ("there", "is", "are")
            if self._doubted_change(j) is not None:
                continue
            doubt = max(doubt, token.doubt)
            if "uncertain_after" in token.meanings and (j <= opening or self._are_linked(j, first)):
                return POSSIBLE  # "there is possible pneumonia", "is unlikely to represent pneumonia"
        doubt = max(doubt, *(token.doubt for token in self.tokens[first + 1 : last]), CERTAIN)
        for j in range(last + 1, len(self.tokens)):
            token = self.tokens[j]
            if token.ends_clause:
                break
            if token.meanings.keys() & {"finding", "structure"} and (
                self._are_linked(last, j) or self._are_listed(last, j)
            ):
                break  # "a new opacity, and infection should be considered"
            if j in self.limited and not self._is_seen_before(j):
                return POSSIBLE
            if self._doubted_change(j) is not None:
                continue
            if "uncertain_after" in token.meanings and not self._leads_to_conclusion(j):
                return POSSIBLE
            if token.doubt > doubt and self._ends_phrase(j + 1) and not self._doubts_circumstance(j):
                doubt = token.doubt  # "trace effusion suspected at the left base"
        return doubt

    def _is_seen_before(self, j: int) -> bool:
        """Return whether visibility is limited on one view alone: "seen on the frontal view, not on the lateral"."""
        is_seen = any("seeing" in token.meanings or token.words[0] == "there" for token in self.tokens[:j])
        return is_seen and any(not VIEWS.isdisjoint(token.words) for token in self.tokens[j + 1 : j + 8])

    def _ends_phrase(self, j: int) -> bool:
        """Return whether no noun can follow: at the end, a preposition, a comma or a verb."""
        if j >= len(self.tokens):
            return True
        token = self.tokens[j]
        return token.ends_clause or token.joins or bool(token.meanings.keys() & {"locative", "copula"})

    def _doubts_circumstance(self, j: int) -> bool:
        """Return whether a doubt is about a place or cause alone: "effusion, PROBABLY in the fissure"."""
        token, following = self.tokens[j], self.tokens[j + 1 : j + 2]
        is_adverb = token.words[-1].endswith("bly") or (
            token.words[-1] in ("likely", "perhaps") and self.tokens[j - 1].joins
        )
        return is_adverb and any("locative" in other.meanings for other in following)

    def _doubted_change(self, j: int) -> int | None:
        """Return the token of the change or detail that alone is in doubt: "may be LARGER", "possible INCREASE in"."""
        if "link" in self.tokens[j].meanings and self.tokens[j].words[-1] not in _ADVERBS | {"be"}:
            return None  # "may represent resolving pneumonia"
        degrees = takewhile(
            lambda k: "severity" in self.tokens[k].meanings or self.tokens[k].words[0] in ("interval", "to", "be"),
            range(j + 1, len(self.tokens)),
        )
        k = max(degrees, default=j) + 1
        if k == len(self.tokens):
            return None
        is_graded = self.tokens[k].meanings.get("change") in ("increased", "decreased")
        is_predicate = "be" in self.tokens[j].words or "be" in self.tokens[k - 1].words  # "may be loculated"
        # "possibly enlarging effusion", not "possible enlarging effusion"
        is_graded = is_graded and (self._ends_phrase(k + 1) or self.tokens[j].words[-1] in _ADVERBS)
        is_detail = is_predicate and "detail" in self.tokens[k].meanings and self._ends_phrase(k + 1)
        return k if is_graded or is_detail else None

    @cached_property
    def doubted_modifiers(self) -> set[int]:
        """Tokens of places and changes in doubt, with the doubt: "probably in the LEFT LOWER LOBE"."""
        doubted: set[int] = set()
        for j, token in enumerate(self.tokens):
            if token.doubt > CERTAIN or "uncertain_after" in token.meanings:
                end = self._doubted_change(j)
                if end is None and j and self._doubts_circumstance(j):
                    following = range(j + 2, len(self.tokens))
                    end = max(takewhile(lambda k: not self._ends_list(k), following), default=j + 1)
                doubted.update(range(j, end + 1) if end is not None else ())
        return doubted

    def _ends_list(self, k: int) -> bool:
        return self.tokens[k].ends_clause or self.tokens[k].joins

    def _are_linked(self, first: int, last: int) -> bool:
        return self._links[last] > self._links[first + 1]

    def _are_listed(self, first: int, last: int) -> bool:
        return self._joints[last] > self._joints[first + 1] and self._ors[last] == self._ors[first + 1]

    # Cumulative counts of tokens, so that a range in a long sentence is tested without a loop.

    @cached_property
    def _links(self) -> list[int]:
        return list(accumulate(("link" in token.meanings for token in self.tokens), initial=0))

    @cached_property
    def _joints(self) -> list[int]:
        return list(accumulate((token.joins for token in self.tokens), initial=0))

    @cached_property
    def _ors(self) -> list[int]:
        return list(accumulate(("or" in token.words for token in self.tokens), initial=0))

    def _first_with(self, kind: str) -> int:
        """Return the index of the first token with a meaning of this kind; the number of tokens if there is none."""
        return self._first_by_kind.get(kind, len(self.tokens))

    @cached_property
    def _first_by_kind(self) -> dict[str, int]:
        first: dict[str, int] = {}
        for i, token in enumerate(self.tokens):
            for kind in token.meanings:
                first.setdefault(kind, i)
        return first

    def _leads_to_conclusion(self, j: int) -> bool:
        """Return whether "is likely" continues with a conclusion ("due to atelectasis"), which alone is uncertain."""
        return any(
            token.meanings.keys() & {"link", "uncertain", "finding"} or token.words == ("be",)
            for token in self.tokens[j + 1 : j + 4]
        )

    def _are_separated(self, first: int, last: int, place: str | None = None) -> bool:
        """Return whether a joining or linking word, a comma or a clause end is between two tokens."""
        return any(
            token.joins
            or token.ends_clause
            or token.meanings.keys() & {"negation", "link", "probable", "uncertain"}
            or (place is not None and "locative" in token.meanings and token.words != (place,))
            for token in self.tokens[first + 1 : last]
        )
