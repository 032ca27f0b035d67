"""Detect the finding mentions of a sentence, each with presence and certainty; `facts.py` adds the modifiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from radfact.reader.doubts import DoubtReader
from radfact.reader.ontology import Ontology
from radfact.reader.qualifiers import EXCLUSIONS, find_compared_places
from radfact.reader.scope import read_scope
from radfact.reader.tokens import CERTAIN, POSSIBLE, Token
from radfact.reader.vocabulary import word_set

_DENIALS = frozenset({"negation", "not"})
_CONTRASTING = word_set("contrasting")
_AFTER = frozenset({"after", "post", "following", "given"})
_LAST_DENIALS = frozenset({"no", "nil", "negative"})
_STATES = ("state", "normal", "clear", "abnormal")
_NOUN_ENDINGS = ("ing", "ment", "tion", "sion", "ence", "ity", "ness")
_DETERMINERS = frozenset({"the", "this", "these", "those"})
_NOUNS = ("finding", "process", "disease", "change", "injury")
_PRONOUNS = frozenset({"this", "these", "those", "it", "they", "which", "that", "such", "finding"})

_EXCHANGE_VERBS = word_set("exchange_verbs")
_EXCHANGE_NOUNS = word_set("exchange_nouns")
_EXCHANGES = _EXCHANGE_VERBS | _EXCHANGE_NOUNS | {"instead", "place"}
_INCOMPLETE = frozenset({"not", "never", "partially", "partly", "incompletely"})
_BEFORE_NEW = frozenset({"for", "by", "with", "to"})
"""Words before the device that replaces another."""


@dataclass(slots=True)
class Mention:
    """A mention of a finding, before its modifiers are known."""

    concept: str  # the finding, or a structure
    anchor: int  # index of the token that names it
    present: bool  # whether the finding is present or absent
    doubt: int = CERTAIN  # CERTAIN, CONCLUDED, PROBABLE or POSSIBLE
    has_state: bool = False  # whether it is a structure with a state ("the heart is enlarged"), which modifiers follow
    state: int | None = None  # index of the token with the state
    modifiers: list[int] = field(default_factory=list)  # indices of the modifiers, added later
    exceptions: frozenset[str] = frozenset()  # findings that a denial excepts


class MentionFinder(DoubtReader):
    """Detects the finding mentions of one sentence."""

    def __init__(self, tokens: Sequence[Token], ontology: Ontology) -> None:
        super().__init__(tokens, ontology)
        self.consumed: set[int] = set()
        self.has_advice = "advice" in self.kinds
        # Tokens that exclude a side: "but NOT ON THE RIGHT".
        self.excluding = set() if EXCLUSIONS.isdisjoint(self.heads) else find_compared_places(tokens, EXCLUSIONS)
        self.used_denials: set[int] = set()  # tokens that deny a mention
        # Tokens that deny what follows: "without", "clear of".
        denials = {i for kind in _DENIALS for i in self.kinds[kind]}
        clear = self.kinds["clear"]
        denials |= {i for i in clear if any(other.words[0] in ("of", "from") for other in tokens[i + 1 : i + 2])}
        removals = self.kinds["removal"] if self.has_advice else ()
        denials.difference_update(self.limited, self.not_before, self.excluding, removals)
        for i in sorted(denials):
            if i and tokens[i - 1].words == ("not",) and "not" not in tokens[i].meanings:
                denials -= {i - 1, i}  # "not clear of"
        self.denials = denials
        self.mentions: list[Mention] = []

    def find_mentions(self) -> None:
        """Find the mentions, in any order."""
        pending: list[int] = []
        subject: list[int] = []
        for i, token in enumerate(self.tokens):
            if token.ends_clause:
                pending, subject = [], []
            elif i in self.consumed:
                continue
            elif token.meanings.keys() & _STATES and i not in self.denials and self._resolve_state(i, pending, subject):
                subject = pending or [mention.anchor for mention in self.mentions[-1:]]
                pending = []
            elif "finding" in token.meanings:
                self._add_finding(i, pending)
                pending, subject = pending if self._is_stated_normal(i) else [], []
            elif token.words == ("with",):
                subject = []
            elif "absence" in token.meanings:
                self.mentions.append(Mention(token.meanings["absence"], i, False, state=i))
            elif "structure" in token.meanings and not self._is_adjective(i) and not self._is_location(i):
                pending.append(i)
        used = self.consumed.union(*((mention.anchor, mention.state) for mention in self.mentions))
        is_only_named = not self.mentions
        for i in self.kinds["structure"]:
            if is_only_named or (i and i not in used and self._is_unchanged(i)):
                self.mentions.append(Mention(self.tokens[i].meanings["structure"], i, True))
        if not self.mentions and self.tokens and self.tokens[0].words[0] not in _PRONOUNS:
            # "There is no relevant change" is about the whole chest.
            has_others = any(self.kinds[kind] for kind in ("detail", "finding", "side", "zone")) or not all(
                token.is_known for token in self.tokens
            )
            changes = [i for i in self.kinds["change"] if self.tokens[i].meanings["change"] == "unchanged"]
            self.mentions = [Mention("chest", i, True, has_state=True) for i in changes[:1] if not has_others]

    def _is_unchanged(self, i: int) -> bool:
        """Return whether a structure is unchanged, not another finding: "STABLE HEART SIZE, enlarged aorta"."""
        if self.tokens[i - 1].meanings.get("change") != "unchanged" or "finding" in self.tokens[i].meanings:
            return False
        is_last = all(following.ends_clause or following.joins for following in self.tokens[i + 1 : i + 2])
        return is_last and not self._is_location(i)

    def refine_mentions(self) -> None:
        """Sort the mentions, drop those that assert nothing, and add names by place and exceptions."""
        scope = read_scope(self.tokens)
        self.mentions = [
            mention
            for mention in sorted(self.mentions, key=lambda mention: mention.anchor)
            if mention.anchor not in scope.unasserted
            and (mention.anchor not in scope.historical or _is_artificial(mention.concept, self.ontology))
        ]
        for mention in self.mentions:
            if mention.anchor in scope.uncertain:
                mention.doubt, mention.present = POSSIBLE, mention.present or mention.anchor in scope.undenied
        self._resolve_cleared()
        _mark_exchanged(self.mentions, self.tokens, self.ontology)
        # "The endotracheal tube is low; the tube should be withdrawn" has one device.
        devices = [mention for mention in self.mentions if self.ontology.is_a(mention.concept, "device")]
        concepts = self.ontology.concepts
        if not all(concepts[mention.concept].generic for mention in devices):
            self.mentions = [mention for mention in self.mentions if not concepts[mention.concept].generic]
        # "No opacity concerning for pneumonia" denies only the pneumonia.
        for first, second in list(pairwise(self.mentions)):
            is_qualified = any(first.anchor < i < second.anchor for i in self.kinds["qualifying"])
            if is_qualified and not first.present and not second.present:
                self.mentions.remove(first)
        self._rename_by_place()
        self._set_exceptions()

    def _resolve_cleared(self) -> None:
        """Mark a finding that is the subject of "clear" as resolved: "the infiltrates of both bases ARE now CLEAR"."""
        for i in self.kinds["clear"]:
            if i in self.consumed or i in self.denials or not self._ends_phrase(i + 1):
                continue
            verb = next((j for j in range(i - 1, max(i - 3, 0), -1) if "copula" in self.tokens[j].meanings), -1)
            for mention in [mention for mention in self.mentions if mention.anchor < verb][-1:]:
                between = self.tokens[mention.anchor : i]
                is_subject = not any(other.joins or other.ends_clause for other in between)
                if is_subject and mention.present and not mention.has_state:
                    self.tokens[i].meanings = {**self.tokens[i].meanings, "change": "resolved"}
                    self.kinds["change"].append(i)

    def _rename_by_place(self) -> None:
        """Replace a general finding by its name in the stated structure: "fracture of the sixth rib"."""
        anchors = {mention.anchor for mention in self.mentions}
        for i in self.kinds["structure"]:
            here = self.ontology.structures[self.tokens[i].meanings["structure"]].here
            if not here or i in anchors:
                continue
            before = [mention for mention in self.mentions if mention.anchor < i][-1:]
            after = [mention for mention in self.mentions if mention.anchor > i][:1]
            for mention in (*before, *after):
                first, last = sorted((i, mention.anchor))
                is_other_claim = any(
                    token.ends_clause
                    or "link" in token.meanings
                    # "Fracture of the sixth and seventh ribs" is one claim.
                    or (token.joins and not (left.words[0].isdigit() and right.words[0].isdigit()))
                    for left, token, right in zip(
                        self.tokens[first:last], self.tokens[first + 1 : last], self.tokens[first + 2 :], strict=False
                    )
                )
                if not is_other_claim:
                    mention.concept = here.get(mention.concept, mention.concept)

    def _set_exceptions(self) -> None:
        """Add exceptions to normal statements: "clear except for atelectasis", "otherwise clear"."""
        excepted = {
            mention.concept
            for i in self.kinds["except"]
            for mention in self.mentions
            if mention.present
            and mention.anchor > i
            and not any(self.tokens[j].ends_clause for j in range(i + 1, mention.anchor))
        }
        if self.kinds["otherwise"]:
            excepted |= {mention.concept for mention in self.mentions if mention.present} or {"*"}
        for mention in self.mentions:
            if mention.has_state and not mention.present:
                mention.exceptions = frozenset(excepted)

    def _is_adjective(self, i: int) -> bool:
        """Return whether a structure only qualifies another: "MEDIASTINAL lymph nodes", "BASE of the left lung"."""
        j = i + 1
        if j < len(self.tokens) and self.tokens[j].words == ("of",) and "zone" in self.tokens[i].meanings:
            while j + 1 < len(self.tokens) and (
                self.tokens[j].words[0] in ("of", "the") or "side" in self.tokens[j].meanings
            ):
                j += 1
        return any(
            "structure" in other.meanings and "finding" not in other.meanings for other in self.tokens[j : j + 1]
        )

    def _is_location(self, i: int) -> bool:
        """Return whether the structure is only the location: "opacity in the left lung"."""
        seen_finding = any(j < i for j in self.kinds["finding"][:1])
        is_zone = "zone" in self.tokens[i].meanings
        for j in range(i - 1, -1, -1):
            token = self.tokens[j]
            if is_zone and j not in self.consumed and "finding" in token.meanings:
                return True  # "scarring right apex"
            if "locative" in token.meanings:
                return seen_finding or token.words[0] != "of"
            kinds = token.meanings.keys()
            is_unread = not kinds and token.words[0].isalnum()  # "of the SIXTH rib"
            if not (is_unread or kinds & {"side", "zone", "filler", "structure"}) or kinds & {"copula", "joining"}:
                return False
        return False

    def _state_of(self, i: int, structure: int) -> tuple[str, bool] | None:
        token = self.tokens[i]
        name = self.tokens[structure].meanings["structure"]
        node = self.ontology.structures[name]
        if (name, token.words) in self.ontology.states:
            return self.ontology.states[name, token.words], True
        if "intact" in token.words:
            return node.acute or node.abnormal, False  # degenerated bones may be intact
        if "normal" in token.meanings or (name, token.words) in self.ontology.normal_states:
            return node.abnormal, False
        if "clear" in token.meanings:
            return node.clear or node.abnormal, False
        if "abnormal" in token.meanings:
            before = {word for other in self.tokens[max(structure, i - 3) : i] for word in other.words}
            if before & _DETERMINERS and not before & {"is", "are"} and token.words[-1].endswith(_NOUNS):
                return None  # "heart size is normal, the findings of edema"
            span = self.tokens[max(0, min(structure, i) - 3) : i + 1]
            is_acute = any({"acute", "active"} & set(neighbor.words) for neighbor in span)
            return (is_acute and node.acute) or node.abnormal, True
        return None

    def _resolve_state(self, i: int, pending: Sequence[int], subject: Sequence[int]) -> bool:
        targets = [s for s in pending if self._state_of(i, s)]
        is_before_state = any("state" in following.meanings for following in self.tokens[i + 1 : i + 2])
        if targets and is_before_state and "severity" in self.tokens[i].meanings:
            return False  # "borderline enlarged": a degree, not a state
        is_before = False  # whether the state precedes its structures
        between = self.tokens[targets[-1] + 1 : i] if targets else ()
        is_next = between and between[-1].joins and not any("copula" in token.meanings for token in between)
        if is_next or not targets:
            following = self._structures_after(i)
            stated = [s for s in following if self._state_of(i, s)]
            # The state begins the next phrase of a list: "stable heart size, ENLARGED aorta".
            if not targets or (stated and following[0] <= i + 3):
                targets, is_before = stated, bool(stated)
        if not targets:
            targets = [s for s in subject if self._state_of(i, s)]
        for s in targets:
            concept, present = self._state_of(i, s) or ("", True)
            first, last = (i, s) if is_before else (s, i)
            is_negated = self._is_state_negated(first, last)
            self.mentions.append(Mention(concept, s, present != is_negated, self._doubt(first, last), True, i))
        if targets:
            self.consumed.add(i)
            if is_before:
                self.consumed.update(targets)
        return bool(targets)

    def _structures_after(self, i: int) -> list[int]:
        """Return the structures after a state: "enlarged heart", "elevation of the right hemidiaphragm"."""
        structures: list[int] = []
        noun = self.tokens[i].words[0].endswith(_NOUN_ENDINGS)  # "blunting is seen at the left costophrenic angle"
        for j in range(i + 1, len(self.tokens)):
            token = self.tokens[j]
            if structures and self.tokens[j - 1].joins and token.meanings.get("change") == "unchanged":
                break  # "enlarged hilum, UNCHANGED heart size"
            if "structure" in token.meanings and "finding" not in token.meanings:
                if not self._is_adjective(j):
                    structures.append(j)
            elif token.meanings.keys() & _STATES and not token.meanings.keys() & {"change", "severity"}:
                if not structures and "state" in token.meanings:
                    continue  # "tortuous and calcified aorta"
                # The list belongs to its own state: "normal heart, and the lungs are clear".
                copulas = [k for k in self.kinds["copula"] if i < k < j]
                own = max((k for k in self._joints if k < (copulas[0] if copulas else j)), default=0)
                return [s for s in structures if s < own] if copulas or own else structures
            elif not (
                token.meanings.keys() & {"side", "zone", "severity", "detail", "change", "joining"}
                or (noun and token.meanings.keys() & {"copula", "locative", "seeing"})
                or token.words[0] in (",", "the", "of", "a", "size", "sized")
                or (j == i + 1 and token.words == ("in",))
            ):
                break
        return structures

    def _is_state_negated(self, first: int, last: int) -> bool:
        copula = False
        for j in range(last - 1, first - 1, -1):
            token = self.tokens[j]
            if j in self.consumed and token.meanings.keys() & _STATES:
                return False  # "not enlarged and of normal size"
            if token.meanings.keys() & _DENIALS:
                self.used_denials.add(j)
                return True
            copula = copula or "copula" in token.meanings
        if not copula:
            start = self.tokens[first]
            direct = first > 0 and self.tokens[first - 1].meanings.keys() & _DENIALS
            # "No effusion, and intact bones": what is denied in a list is no normal statement.
            if direct:
                self.used_denials.add(first - 1)
            if direct or (not start.meanings.keys() & {"normal", "clear"} and self._is_negated_before(first)):
                return True
        return self._is_denied_after(last)

    def _add_finding(self, i: int, pending: Sequence[int]) -> None:
        concepts = [(self._divided_name(i) or self.tokens[i].meanings["finding"], i)]
        # "hilar or mediastinal adenopathy", "endotracheal and enteric tubes": the first adjective shares the noun.
        if i >= 2 and "joining" in self.tokens[i - 1].meanings:
            adjective = self.tokens[i - 2]
            phrase = (*adjective.words, self.tokens[i].words[-1])
            shares = i - 2 in pending or not adjective.meanings
            if shares and (shared := self.ontology.phrases.get(phrase, {}).get("finding")):
                concepts.insert(0, (shared, i - 2))
        negated = (
            self._is_negated_before(i, self.ontology.is_a(concepts[-1][0], "device"))
            or self._is_denied_after(i)
            or self._is_stated_normal(i)
        )
        for concept, anchor in concepts:
            self.mentions.append(Mention(concept, anchor, not negated, self._doubt(i, i)))

    def _divided_name(self, i: int) -> str | None:
        """Return the finding whose name is divided by its place: "NODULAR left basal OPACITY"."""
        j = i - 1
        while j >= 0 and self.tokens[j].meanings.keys() & {"side", "zone", "place"} and not self.tokens[j].joins:
            j -= 1
        if not 0 <= j < i - 1 or self.tokens[j].joins:
            return None
        name = (*self.tokens[j].words, *self.tokens[i].words)
        finding = self.ontology.phrases.get(name, {}).get("finding")
        self.tokens[j].is_known |= finding is not None
        return finding

    def _is_negated_before(self, i: int, device: bool = False) -> bool:
        is_second_device = is_definite = is_listed = False
        for j in range(i - 1, -1, -1) if self.denials else ():
            token = self.tokens[j]
            is_claim = token.words == ("there",) and "copula" in self.tokens[j + 1].meanings
            is_conclusion = token.words == (",",) and "link" in self.tokens[j + 1].meanings
            if token.ends_clause or token.words == ("with",) or is_claim or is_conclusion:
                return False
            if token.doubt and "exclusion" in token.meanings:
                return False  # "the absence of consolidation does not EXCLUDE pneumonia"
            if j in self.denials and device >= ("removal" in token.meanings) >= is_second_device:
                self.used_denials.add(j)
                return True
            is_listed = is_listed or token.joins
            is_definite = is_definite or device or (token.words[0] in ("the", "this", "known") and not is_listed)
            if is_definite and ("locative" in token.meanings or token.words[0] in _AFTER):
                return False  # "no growth OF THE nodule", "no pneumothorax AFTER chest tube placement"
            is_device_listed = device and token.words == (",",) and not self.kinds["removal"]
            if is_device_listed and not any(k > j for k in self._ors[-1:]):
                return False  # "no pneumothorax, right PICC"
            following = (self.tokens[j + 1], *self.tokens[i + 1 : i + 5]) if device and token.joins else ()
            if any("change" in other.meanings or other.words[-1] in ("remain", "place") for other in following):
                return False  # "and the tube REMAINS"
            if device and token.words == ("and",):
                is_second_device = True  # "no effusion and a PICC", but "removal of the catheter and the tube"
            elif token.joins and self._starts_new_claim(j):
                return False
            if j in self.consumed and token.meanings.keys() & {"normal", "clear"} and "negation" not in token.meanings:
                return False
        return False

    def _is_stated_normal(self, i: int) -> bool:
        """Return whether a verb calls a finding normal: "heart size and vascular ENGORGEMENT are normal"."""
        if not any("copula" in following.meanings for following in self.tokens[i + 1 : i + 2]):
            return False
        end = i + 1
        while end < len(self.tokens) and "normal" not in self.tokens[end].words:
            if not self.tokens[end].meanings.keys() & {"copula", "filler"}:
                return False
            end += 1
        return i + 1 < end < len(self.tokens) and self._ends_phrase(end + 1)

    def _starts_new_claim(self, joint: int) -> bool:
        """Return whether a new claim begins after `joint`: "no effusion, stable cardiomegaly"."""
        following = self.tokens[joint + 1]
        has_or = any(i > joint for i in self._ors[-1:])
        graded = {"severity", "measure", "detail", "side", "place", "zone"}
        is_second = self.tokens[joint].words == (",",) and any(
            i < joint for i in (*self.kinds["finding"], *self.kinds["structure"])
        )
        if is_second and not has_or and (graded & following.meanings.keys() or following.words[0] in _CONTRASTING):
            return following.words[0] != "large"  # "no pneumothorax, SMALL effusion"
        if following.words == ("there",) or following.meanings.get("change") in ("unchanged", "persistent"):
            return True
        article = following.words[0] in ("a", "an", "the") and self.tokens[joint].words != ("or",)
        is_graded = "severity" in following.meanings and self.tokens[joint].words == ("and",)
        return (article or is_graded) and not has_or

    def _is_denied_after(self, i: int) -> bool:
        if self.heads.isdisjoint(_LAST_DENIALS | {"not"}) and not self.kinds["negation_after"]:
            return False
        for j in range(i - 1, -1, -1):
            if "part" in self.tokens[j].meanings and not self.tokens[j].joins:
                return False  # "the tip of the tube is not seen": the tube is present
            if self.tokens[j].ends_clause or self.tokens[j].joins:
                break
        for j in range(i + 1, len(self.tokens)):
            token = self.tokens[j]
            if token.ends_clause or "part" in token.meanings:
                return False
            if j in self.limited or j in self.not_before or j in self.excluding:
                continue
            if token.words == ("not",) and any("seeing" in other.meanings for other in self.tokens[j + 1 : j + 3]):
                self.used_denials.add(j)
                return True  # "is not also present"
            if token.words[0] in _LAST_DENIALS and all(other.ends_clause for other in self.tokens[j + 1 : j + 2]):
                return True  # "pneumothorax: no"
            before = {word for other in self.tokens[j - 2 : j] for word in other.words}
            if "negation_after" in token.meanings and not before.isdisjoint(("not", "never")):
                return False  # "has not been removed"
            if "negation_after" in token.meanings and not (self.has_advice and "removal" in token.meanings):
                return True  # "should be removed" implies that it is present
        return False

    def is_unused_negation(self, i: int) -> bool:
        """Return whether a token is a "no" or "not" that denies no mention: "is not stable"."""
        is_used = i in self.used_denials or i in self.limited or i in self.not_before
        return i >= 0 and self.tokens[i].words in (("no",), ("not",)) and not is_used


def _is_artificial(concept: str, ontology: Ontology) -> bool:
    return ontology.is_a(concept, "device") or ontology.is_a(concept, "postoperative_change")


def _mark_exchanged(mentions: Sequence[Mention], tokens: Sequence[Token], ontology: Ontology) -> None:
    """Mark findings that "gave way to" others, and devices exchanged for another kind, as absent."""
    devices = [mention for mention in mentions if mention.present and _is_artificial(mention.concept, ontology)]
    for i, token in enumerate(tokens):
        if token.words[-1] == "way" and i and tokens[i - 1].words[-1] in ("gave", "given"):
            _mark_replaced(mentions, tokens, i)
        if token.words[-1] not in _EXCHANGES or "finding" in token.meanings:
            continue
        before = [mention for mention in devices if mention.anchor < i]
        after = [mention for mention in devices if mention.anchor > i]
        words = [other.words[0] for other in tokens[i + 1 : i + 3]]
        old = new = None
        if token.words[-1] in _EXCHANGE_VERBS and before and after:
            is_passive = not _BEFORE_NEW.isdisjoint(words[:1])
            old, new = (before[-1], after[0]) if is_passive else (after[0], before[-1])
        elif token.words[-1] in _EXCHANGE_NOUNS and words[:1] == ["of"] and len(after) > 1:
            between = {other.words[0] for other in tokens[after[0].anchor : after[1].anchor]}
            old, new = (after[0], after[1]) if between & _BEFORE_NEW else (None, None)
        elif token.words[-1] in ("place", "instead") and words[:1] == ["of"] and before and after:
            old, new = after[0], before[-1]  # "takes the place of", "instead of"
        if old is not None and new is not None and old.concept != new.concept:
            old.present = False


def _mark_replaced(mentions: Sequence[Mention], tokens: Sequence[Token], way: int) -> None:
    first = max((j + 1 for j in range(way) if tokens[j].ends_clause or tokens[j].words == (",",)), default=0)
    subject = [mention for mention in mentions if first <= mention.anchor < way]
    following = {mention.concept for mention in mentions if mention.anchor > way}
    words = {word for token in tokens[first:way] for word in token.words}
    if words & _INCOMPLETE or any(mention.concept in following for mention in subject):
        return
    for mention in subject:
        mention.present = False
