"""The findings that a sentence names, each with its polarity and its certainty; their modifiers come after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from radfact.judges.offline.ontology import Ontology
from radfact.judges.offline.tokens import Item, read_items

CERTAIN, CONCLUDED, PROBABLE, POSSIBLE = range(4)
"""How sure a sentence is: "atelectasis", "consistent with atelectasis", "likely atelectasis", "may be atelectasis"."""

_STATES = ("state", "normal", "clear", "abnormal")
_NOUN_ENDINGS = ("ing", "ment", "tion", "sion", "ence", "ity", "ness")
_PRONOUNS = frozenset({"this", "these", "those", "it", "they", "which", "that", "such", "finding"})
_DOUBTS = {"concluded": CONCLUDED, "probable": PROBABLE, "uncertain": POSSIBLE}


@dataclass(slots=True)
class Unit:
    """A finding named in a sentence, before its modifiers are known; `anchor` is the item that names it."""

    concept: str
    anchor: int
    present: bool
    doubt: int = CERTAIN
    with_state: bool = False
    """A structure and what is said of it ("the heart is enlarged"), where modifiers follow."""
    state: int | None = None
    modifiers: list[int] = field(default_factory=list)
    exceptions: frozenset[str] = frozenset()


class UnitFinder:
    """Finds the units of one sentence, in reading order."""

    def __init__(self, text: str, ontology: Ontology) -> None:
        self.ontology = ontology
        self.items: list[Item] = read_items(text, ontology)
        self.consumed: set[int] = set()
        self.advises = any("advice" in item.kinds for item in self.items)
        self.units: list[Unit] = []
        self._find()
        self.units.sort(key=lambda unit: unit.anchor)
        self._drop_repeated_devices()
        self._drop_qualified_denials()
        self._name_by_place()
        self._note_exceptions()

    def _find(self) -> None:
        pending: list[int] = []
        subject: list[int] = []
        for i, item in enumerate(self.items):
            if item.ends_clause:
                pending, subject = [], []
            elif i in self.consumed:
                continue
            elif item.has(*_STATES) and not self._denies(i) and self._resolve_state(i, pending, subject):
                subject = pending or [unit.anchor for unit in self.units[-1:]]
                pending = []
            elif item.has("finding"):
                self._add_finding(i, pending)
                pending, subject = [], []
            elif item.words == ("with",):
                subject = []
            elif item.has("absence"):
                self.units.append(Unit(item.kinds["absence"], i, False, state=i))
            elif item.has("structure") and not self._is_adjective(i) and not self._is_location(i):
                pending.append(i)
        if not self.units:
            self.units = [Unit(item.kinds["structure"], i, True) for i, item in self._kind("structure")]
        if not self.units and self.items and self.items[0].words[0] not in _PRONOUNS:
            # "There is no relevant change" speaks of the whole chest.
            others = any(not item.known or item.has("detail", "finding", "side", "zone") for item in self.items)
            changes = [i for i, item in self._kind("change") if item.kinds["change"] == "unchanged"]
            self.units = [Unit("chest", i, True, with_state=True) for i in changes[:1] if not others]

    def _kind(self, kind: str) -> Iterator[tuple[int, Item]]:
        return ((i, item) for i, item in enumerate(self.items) if kind in item.kinds)

    def _drop_repeated_devices(self) -> None:
        """ "The endotracheal tube is low; the tube should be withdrawn" has one device."""
        named = [unit for unit in self.units if self.ontology.is_a(unit.concept, "device")]
        special = [unit for unit in named if not self.ontology.is_generic(unit.concept)]
        if special:
            self.units = [unit for unit in self.units if not self.ontology.is_generic(unit.concept)]

    def _drop_qualified_denials(self) -> None:
        """ "No opacity concerning for pneumonia" denies the pneumonia; other opacities may be there."""
        for first, second in zip(self.units[:-1], self.units[1:], strict=True):
            between = self.items[first.anchor + 1 : second.anchor]
            qualified = any(item.has("qualifying") for item in between)
            if qualified and not first.present and not second.present:
                first.concept = ""
        self.units = [unit for unit in self.units if unit.concept]

    def _name_by_place(self) -> None:
        """Give a general finding its name in the structure that it is said to be in: "fracture of the sixth rib"."""
        anchors = {unit.anchor for unit in self.units}
        for i, item in self._kind("structure"):
            if i in anchors:
                continue
            here = self.ontology.structures[item.kinds["structure"]].here
            before = [unit for unit in self.units if unit.anchor < i][-1:]
            after = [unit for unit in self.units if unit.anchor > i][:1]
            for unit in (*before, *after):
                if not self._elsewhere(*sorted((i, unit.anchor))):
                    unit.concept = here.get(unit.concept, unit.concept)

    def _elsewhere(self, first: int, last: int) -> bool:
        """Whether two items are parts of different claims; "fracture of the sixth and seventh ribs" is one claim."""
        for j in range(first + 1, last):
            item = self.items[j]
            numbers = item.joins and self.items[j - 1].words[0].isdigit() and self.items[j + 1].words[0].isdigit()
            if item.ends_clause or item.has("link") or (item.joins and not numbers):
                return True
        return False

    def _note_exceptions(self) -> None:
        """ "Clear except for atelectasis", "otherwise clear": what a normal statement leaves out."""
        excepted = {
            unit.concept
            for i, _ in self._kind("except")
            for unit in self.units
            if unit.present
            and unit.anchor > i
            and not any(self.items[j].ends_clause for j in range(i + 1, unit.anchor))
        }
        if any(True for _ in self._kind("otherwise")):
            excepted |= {unit.concept for unit in self.units if unit.present} or {"*"}
        for unit in self.units:
            if unit.with_state and not unit.present:
                unit.exceptions = frozenset(excepted)

    def _is_adjective(self, i: int) -> bool:
        """Whether a structure only names another more closely: "MEDIASTINAL lymph nodes", "BASE of the left lung"."""
        j = i + 1
        if j < len(self.items) and self.items[j].words == ("of",) and self.items[i].has("zone"):
            while j + 1 < len(self.items) and (self.items[j].words[0] in ("of", "the") or self.items[j].has("side")):
                j += 1
        return j < len(self.items) and self.items[j].has("structure") and not self.items[j].has("finding")

    def _is_location(self, i: int) -> bool:
        """Whether the structure only says where: "opacity in the left lung"."""
        seen_finding = any(self.items[j].has("finding") for j in range(i))
        for j in range(i - 1, -1, -1):
            item = self.items[j]
            if item.has("locative"):
                return seen_finding or item.words[0] != "of"
            unread = not item.kinds and item.words[0].isalnum()  # "of the SIXTH rib"
            if not (unread or item.has("side", "zone", "filler", "structure")) or item.has("copula", "joining"):
                return False
        return False

    def _state_of(self, i: int, structure_item: int) -> tuple[str, bool] | None:
        """The finding, and whether it is present, that the state word `i` says of a structure."""
        item = self.items[i]
        structure = self.ontology.structures[self.items[structure_item].kinds["structure"]]
        if item.words in structure.states:
            return structure.states[item.words], True
        if item.words in structure.normal or item.has("normal"):
            return structure.abnormal, False
        if item.has("clear"):
            return structure.clear, False
        if item.has("abnormal"):
            span = self.items[max(0, min(structure_item, i) - 3) : i + 1]
            acute = any({"acute", "active"} & set(other.words) for other in span)
            return (structure.acute if acute else structure.abnormal), True
        return None

    def _resolve_state(self, i: int, pending: Sequence[int], subject: Sequence[int]) -> bool:
        targets = [s for s in pending if self._state_of(i, s)]
        following = self.items[i + 1] if i + 1 < len(self.items) else None
        if targets and following is not None and self.items[i].has("severity") and following.has("state"):
            return False  # "borderline enlarged": a degree, not a state
        prefix = False
        if not targets:
            targets = [s for s in self._structures_after(i) if self._state_of(i, s)]
            prefix = bool(targets)
        if not targets:
            targets = [s for s in subject if self._state_of(i, s)]
        for s in targets:
            concept, present = self._state_of(i, s) or ("", True)
            first, last = (i, s) if prefix else (s, i)
            negated = self._state_negated(first, last)
            self.units.append(Unit(concept, s, present != negated, self._doubt(first, last), True, i))
        if targets:
            self.consumed.add(i)
            if prefix:
                self.consumed.update(targets)
        return bool(targets)

    def _structures_after(self, i: int) -> list[int]:
        """Structures that a state word stands before: "enlarged heart", "elevation of the right hemidiaphragm"."""
        found: list[int] = []
        noun = self.items[i].words[0].endswith(_NOUN_ENDINGS)  # "blunting is seen at the left costophrenic angle"
        for j in range(i + 1, len(self.items)):
            item = self.items[j]
            if item.has("structure") and not item.has("finding"):
                if not self._is_adjective(j):
                    found.append(j)
            elif item.has(*_STATES) and not item.has("change", "severity"):
                if not found and item.has("state"):
                    continue  # "tortuous and calcified aorta"
                # The list belongs to its own state: "normal heart, and the lungs are clear".
                copulas = [k for k in range(i + 1, j) if self.items[k].has("copula")]
                return [s for s in found if s < self._list_start(copulas[0])] if copulas else found
            elif not (
                item.has("side", "zone", "severity", "detail", "change", "joining")
                or (noun and item.has("copula", "locative", "seeing"))
                or item.words[0] in (",", "the", "of", "a", "size")
                or (j == i + 1 and item.words == ("in",))
            ):
                break
        return found

    def _list_start(self, copula: int) -> int:
        """Where the subject of the verb at `copula` begins: after the last joining word before it."""
        for j in range(copula - 1, -1, -1):
            if self.items[j].joins:
                return j
        return 0

    def _state_negated(self, first: int, last: int) -> bool:
        copula = False
        for j in range(last - 1, first - 1, -1):
            item = self.items[j]
            if j in self.consumed and item.has(*_STATES):
                return False  # "not enlarged and of normal size"
            if item.has("negation", "not"):
                return True
            copula = copula or item.has("copula")
        if not copula:
            start = self.items[first]
            direct = first > 0 and self.items[first - 1].has("negation", "not")
            # "No effusion, and intact bones": what is denied in a list is no normal statement.
            if direct or (not start.has("normal", "clear") and self._negated_before(first)):
                return True
        return self._denied_after(last)

    def _add_finding(self, i: int, pending: Sequence[int]) -> None:
        concepts = [(self.items[i].kinds["finding"], i)]
        # "hilar or mediastinal adenopathy", "endotracheal and enteric tubes": the first adjective shares the noun.
        if i >= 2 and self.items[i - 1].has("joining"):
            adjective = self.items[i - 2]
            phrase = (*adjective.words, self.items[i].words[-1])
            shares = i - 2 in pending or not adjective.kinds
            if shares and (shared := self.ontology.phrases.get(phrase, {}).get("finding")):
                concepts.insert(0, (shared, i - 2))
        negated = self._negated_before(i, self.ontology.is_a(concepts[-1][0], "device")) or self._denied_after(i)
        for concept, anchor in concepts:
            self.units.append(Unit(concept, anchor, not negated, self._doubt(i, i)))

    def _denies(self, i: int) -> bool:
        """Whether what follows is absent: "without", "clear of"."""
        item = self.items[i]
        if self.advises and item.has("removal"):
            return False
        following = self.items[i + 1].words[0] if i + 1 < len(self.items) else ""
        return item.has("negation", "not") or (item.has("clear") and following in ("of", "from"))

    def _negated_before(self, i: int, device: bool = False) -> bool:
        for j in range(i - 1, -1, -1):
            item = self.items[j]
            if item.ends_clause or item.words == ("with",):
                return False
            if self._denies(j):
                return True
            if item.joins and (self._starts_anew(j) or (device and item.words == ("and",))):
                return False
            if j in self.consumed and item.has("normal", "clear") and not item.has("negation"):
                return False
        return False

    def _starts_anew(self, joint: int) -> bool:
        """Whether a claim of its own begins after `joint`: "no effusion, stable cardiomegaly"."""
        following = self.items[joint + 1]
        if following.words == ("there",) or following.kinds.get("change") in ("unchanged", "persistent"):
            return True
        article = following.words[0] in ("a", "an", "the") and self.items[joint].words != ("or",)
        own = article or (following.has("severity") and self.items[joint].words == ("and",))
        return own and not any("or" in self.items[j].words for j in range(joint, len(self.items)))

    def _denied_after(self, i: int) -> bool:
        for j in range(i - 1, -1, -1):
            if self.items[j].has("part") and not self.items[j].joins:
                return False  # "the tip of the tube is not seen": the tube is there
            if self.items[j].ends_clause or self.items[j].joins:
                break
        for j in range(i + 1, len(self.items)):
            item = self.items[j]
            if item.ends_clause or item.has("part"):
                return False
            if item.has("negation_after") and not (self.advises and item.has("removal")):
                return True  # that it should be removed says that it is there
        return False

    def _doubt(self, first: int, last: int) -> int:
        doubt = CERTAIN
        for j in range(first - 1, -1, -1):
            if self.items[j].ends_clause or (self.items[j].joins and self._claim_between(j, first)):
                break
            doubt = max(doubt, self._doubt_of(j))
            opens = not any(item.has("finding", "structure") for item in self.items[:j])
            if self.items[j].has("uncertain_after") and (opens or self._linked(j, first)):
                return POSSIBLE  # "there is possible pneumonia", "is unlikely to represent pneumonia"
        for j in range(first + 1, last):
            doubt = max(doubt, self._doubt_of(j))
        for j in range(last + 1, len(self.items)):
            item = self.items[j]
            if item.ends_clause:
                break
            if item.has("finding", "structure") and (self._linked(last, j) or self._listed(last, j)):
                break  # "a new opacity, and infection should be considered"
            if item.has("uncertain_after") and not self._leads_on(j):
                return POSSIBLE
        return doubt

    def _doubt_of(self, j: int) -> int:
        kinds = self.items[j].kinds
        return max((doubt for kind, doubt in _DOUBTS.items() if kind in kinds), default=CERTAIN)

    def _claim_between(self, joint: int, i: int) -> bool:
        """Whether a verb follows the joint: "may be infection, and the heart is large"."""
        return any(self.items[j].words[0] in ("there", "is", "are") for j in range(joint + 1, i))

    def _linked(self, first: int, last: int) -> bool:
        return any(self.items[j].has("link") for j in range(first + 1, last))

    def _listed(self, first: int, last: int) -> bool:
        between = self.items[first + 1 : last]
        return any(item.joins for item in between) and not any("or" in item.words for item in between)

    def _leads_on(self, j: int) -> bool:
        """Whether "is likely" goes on to its conclusion, "due to atelectasis", and so doubts that alone."""
        return any(
            item.has("link", "uncertain", "finding") or item.words == ("be",) for item in self.items[j + 1 : j + 4]
        )

    def _separated(self, first: int, last: int, place: str | None = None) -> bool:
        """Whether a joining or linking word, a comma or a clause end lies strictly between two items.

        With `place`, prepositions of place other than that one separate too.
        """
        return any(
            item.joins
            or item.ends_clause
            or item.has("negation", "link", "probable", "uncertain")
            or (place is not None and item.has("locative") and item.words != (place,))
            for item in self.items[first + 1 : last]
        )
