"""Attach sides, zones, degrees, changes, details and sizes to the finding mentions that they describe."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import dropwhile, pairwise

from radfact.reader.finding_mentions import Mention, MentionFinder
from radfact.reader.qualifiers import COMPARISONS, CONTRASTS, find_compared_places, find_view_words
from radfact.reader.tokens import CONCLUDED, Token

ALTERNATIVE = frozenset({"or", "versus", "vs"})
"""Words between findings of which at least one is present."""
_MODIFIERS = ("side", "zone", "place", "severity", "change", "detail", "measure", "dominance")
_CAUSES = frozenset({"from", "by"})
_IN_THE_HEMITHORAX = ("opacity", "pleural_abnormality", "volume_loss", "elevated_hemidiaphragm", "chest_tube")
_PLACE_KINDS = frozenset({"locative", "side", "zone", "place", "copula", "state"})
_COMPARISON_WORDS = frozenset({"compare", "compared", "comparison", "since", "interval", "prior", "previous"})


class ModifierAttacher(MentionFinder):
    """Attaches the modifiers of one sentence to its finding mentions."""

    def attach_modifiers(self) -> None:
        """Attach each modifier to the mention that it describes, and share those of lists."""
        if not self.mentions:
            return
        self._anchors = [mention.anchor for mention in self.mentions]
        self._stops = [-1, *(i for i, token in enumerate(self.tokens) if token.words == (".",)), len(self.tokens)]
        views = find_view_words(self.tokens) if self.kinds["side"] else ()
        for m in sorted({m for kind in _MODIFIERS for m in self.kinds[kind]}.difference(views)):
            self._attach_modifier(m)
        if not COMPARISONS.isdisjoint(self.heads):
            self._detach_compared_places()
        if len(self.mentions) > 1:
            self._share_trailing_modifiers()
            self._share_leading_modifiers()

    def _detach_compared_places(self) -> None:
        """Detach the side of a comparison: "the left base is denser THAN THE RIGHT", which has one opacity."""
        compared = find_compared_places(self.tokens)
        contrasted = find_compared_places(self.tokens, CONTRASTS)
        for mention in self.mentions if compared else ():
            mention.modifiers = [m for m in mention.modifiers if m not in contrasted]
            if mention.has_state or mention.concept in self.ontology.structures:
                comparatives = {m - 1 for m in compared if "change" in self.tokens[m - 1].meanings}
                mention.modifiers = [m for m in mention.modifiers if m not in compared | comparatives]

    def _attach_modifier(self, m: int) -> None:
        before_m, from_m = bisect_left(self._anchors, m), bisect_right(self._anchors, m)
        if before_m < from_m or m in self.consumed:
            own_change = (m > 0 and self.tokens[m - 1].words[0] in ("has", "have", "had")) or not all(
                _COMPARISON_WORDS.isdisjoint(token.words) for token in self.tokens
            )
            for mention in self.mentions:
                if m == mention.state == mention.anchor or (
                    mention.has_state and (m == mention.anchor or (m == mention.state and own_change))
                ):
                    mention.modifiers.append(m)
            return
        previous = self.tokens[m - 1] if m else None
        # "Chronic change in the left base" names a finding, not a change over time.
        is_kind = previous is not None and ("detail" in previous.meanings or not previous.is_known)
        if is_kind and self.tokens[m].words[0] == "change":
            return
        if self._is_degree_of_change(m) or self.is_unused_negation(m - 1):
            return
        stop = bisect_left(self._stops, m)
        first, last = self._stops[stop - 1], self._stops[stop]
        before = self.mentions[before_m - 1] if before_m and self._anchors[before_m - 1] > first else None
        after = self.mentions[from_m] if from_m < len(self._anchors) and self._anchors[from_m] < last else None
        if before is None:
            owner = after
        elif after is None:
            owner = self._subject_of_change(m, self.mentions[bisect_right(self._anchors, first) : before_m])
        else:
            to_next = not self._are_separated(m, after.anchor, "of") and (
                self._are_separated(before.anchor, m) or not before.has_state
            )
            owner = after if to_next else before
        if owner is not None:
            owner.modifiers.append(m)

    def _subject_of_change(self, m: int, before: Sequence[Mention]) -> Mention:
        """Return the subject of a final verb: the opacity in "opacity, suggesting infection, is unchanged"."""
        has_verb = "copula" in self.tokens[m - 1].meanings or self.tokens[m - 1].words[0] in ("has", "have")
        is_apart = any(token.words[0] == "," for token in self.tokens[before[-1].anchor : m])
        if "change" in self.tokens[m].meanings and has_verb and is_apart:
            for first, second in reversed(list(pairwise(before))):
                if not self._are_linked(first.anchor, second.anchor):
                    return second
            return before[0]
        return before[-1]

    def _is_degree_of_change(self, m: int) -> bool:
        """Return whether a degree qualifies a change, not the finding: "slightly worse", "improved markedly"."""
        if "severity" not in self.tokens[m].meanings:
            return False
        before = self.tokens[m - 1].words[0] if m > 0 else ""
        if before in ("previously", "formerly", "from"):
            return True  # "decreased from moderate"
        graded = ("increased", "decreased")
        j = m + 1
        following = self.tokens[j : j + 3]
        if following and following[0].words == ("interval",):
            j, following = j + 1, following[1:]
        if following and following[0].meanings.get("change") in graded and j not in self.consumed:
            return True
        if following and "side" in following[0].meanings:
            following = following[1:]
        if following and "detail" in following[0].meanings and following[0].words[-1].endswith(("tion", "ment")):
            return True  # "mild right loculation"
        adverb = self.tokens[m].words[-1].endswith("ly")
        return adverb and m > 0 and self.tokens[m - 1].meanings.get("change") in graded

    def _share_trailing_modifiers(self) -> None:
        """Share modifiers after a list with all of its findings: "atelectasis and effusion at the left base"."""
        for first, second in reversed(list(pairwise(self.mentions))):
            if first.present != second.present or any(m > first.anchor for m in first.modifiers):
                continue
            if any(
                token.words == ("with",) or token.meanings.keys() & {"copula", "boundary", "link"}
                for token in self.tokens[first.anchor + 1 : second.anchor]
            ):
                continue
            trailing = [m for m in second.modifiers if m > second.anchor]
            own = {kind for m in first.modifiers for kind in self._slots(m)}
            first.modifiers.extend(m for m in trailing if not own & self._slots(m))

    def _share_leading_modifiers(self) -> None:
        """Share modifiers before a list with all of its findings, and those of a finding with its interpretation."""
        for first, second in pairwise(self.mentions):
            if first.present != second.present:
                continue
            between = self.tokens[first.anchor + 1 : second.anchor]
            own = {slot for m in second.modifiers for slot in self._slots(m)}
            bound = any(token.meanings.keys() & {"link", "adjoining"} or token.words[0] in _CAUSES for token in between)
            bound = bound or self._is_apposition(second, between)
            between = [token for token in between if token.words[0].strip("x")]  # without de-identified words
            if any(
                token.words == ("which",) and "link" in following.meanings for token, following in pairwise(between)
            ):
                between = [token for token in between if token.words != ("which",)]  # "opacity, which represents edema"
            if any(token.ends_clause for token in between):
                continue
            structures = self.ontology.structures
            in_one_lung = self._are_in_one_lung(first, second, between)
            if (first.has_state and not bound and not in_one_lung) or (
                first.concept in structures and second.concept not in structures
            ):
                continue
            joined = all(token.joins and token.words != ("with",) for token in between)
            slots = {"where", "change"} if joined or bound else set()
            if first.has_state or (in_one_lung and not slots):
                # "blunting of the right angle, consistent with effusion", "right basal opacity and small effusion"
                slots = {"where"}
            leading = [m for m in first.modifiers if m < first.anchor or bound or in_one_lung]
            is_listed_by_place = [token.words for token in between[:1]] == [("and",)] and all(
                token.meanings.keys() & {"side", "zone", "place"} for token in between[1:]
            )
            if "change" not in own and is_listed_by_place:
                # "resolution of the edema and basal opacities": the change is a noun with objects
                second.modifiers.extend(
                    m
                    for m in leading
                    if m < first.anchor and "change" in self.tokens[m].meanings
                    if not {"of", "in"}.isdisjoint((*self.tokens[m].words, *self.tokens[m + 1].words)[-2:])
                )
            second.modifiers.extend(m for m in leading if self._slots(m) & slots and not self._slots(m) & own)
            if in_one_lung and not any(self.tokens[m].meanings.keys() & {"side", "place"} for m in second.modifiers):
                # "left effusion with basal atelectasis"
                second.modifiers.extend(m for m in leading if "side" in self.tokens[m].meanings)

    def _are_in_one_lung(self, first: Mention, second: Mention, between: Sequence[Token]) -> bool:
        """Return whether findings of lung and pleura are listed with only a degree, or after "with" an adjective."""
        between = [*dropwhile(lambda token: token.words == ("the",) or token.meanings.keys() & _PLACE_KINDS, between)]
        if [token.words[0] for token in between[:2]] == ["and", "or"]:
            between = between[1:]
        joint = between[0].words if between else ()
        is_with = joint == ("with",)
        kinds = {"severity", "change", "detail", "zone"} if is_with else {"severity"}
        is_listed = joint in (("and",), ("or",), ("with",)) and all(
            token.meanings.keys() & kinds or (is_with and (token.words[0] == "a" or not token.is_known))
            for token in between[1:]
        )
        return is_listed and all(
            any(self.ontology.is_a(mention.concept, general) for general in _IN_THE_HEMITHORAX)
            for mention in (first, second)
        )

    def _is_apposition(self, second: Mention, between: Sequence[Token]) -> bool:
        """Return whether an opacity's interpretation follows: "opacity in the left base, atelectasis or scarring"."""
        comma = max((i for i, token in enumerate(between) if token.words == (",",)), default=None)
        if comma is None or any(token.words == ("and",) for token in between[comma:]):
            return False
        following = [word for token in self.tokens[second.anchor + 1 : second.anchor + 3] for word in token.words]
        is_alternative = not ALTERNATIVE.isdisjoint(following[: 2 if following[:1] == ["and"] else 1])
        is_masked = any(not token.words[0].strip("x") for token in between[comma:])
        return second.doubt > CONCLUDED or is_alternative or is_masked

    def _slots(self, m: int) -> set[str]:
        meanings = {kind for kind in _MODIFIERS if kind in self.tokens[m].meanings}
        return {"where"} if meanings & {"side", "zone", "place", "dominance"} else meanings
