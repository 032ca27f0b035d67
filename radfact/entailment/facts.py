"""A sentence of a report read into facts: which finding, present or absent, where, how much, how it changed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from radfact.entailment.ontology import Ontology, default_ontology, lemmas

Place = tuple[str | None, str | None]
"""(side, zone): "left" or "right" or unknown, and a zone of the ontology or unknown."""

_MODIFIERS = ("side", "zone", "place", "severity", "change", "detail", "measure")
_MEASURE = re.compile(r"(\d+(?:\.\d+)?)(?:\s*(?:x|by|×)\s*(\d+(?:\.\d+)?))*\s*(mm|cm)\b", re.IGNORECASE)
_STOPS = frozenset({";", ".", "(", ")"})


@dataclass(frozen=True, slots=True)
class Fact:
    """One claim about the current image. Sizes in millimetres."""

    concept: str
    present: bool
    places: tuple[Place, ...] = ()
    severity: frozenset[int] = frozenset()
    change: frozenset[str] = frozenset()
    details: frozenset[str] = frozenset()
    measures: tuple[float, ...] = ()
    possible: bool = False


@dataclass(frozen=True, slots=True)
class Parsed:
    """`groups`: all must hold, of each group one ("scarring or atelectasis"). `unread`: words the ontology lacks."""

    groups: tuple[tuple[Fact, ...], ...]
    unread: frozenset[str]
    words: frozenset[str]

    @property
    def facts(self) -> tuple[Fact, ...]:
        """All facts of all groups."""
        return tuple(fact for group in self.groups for fact in group)


@dataclass(slots=True)
class Item:
    """A phrase of the lexicon in a sentence (or one unknown word): `begin` and `end` are characters of the text."""

    words: tuple[str, ...]
    kinds: dict[str, str]
    begin: int
    end: int
    measure: float | None = None

    def has(self, *kinds: str) -> bool:
        """Whether the phrase can mean one of `kinds`."""
        return any(kind in self.kinds for kind in kinds)


@dataclass(slots=True)
class Unit:
    """A finding named in a sentence, before its modifiers are known; `anchor` is the item that names it."""

    concept: str
    anchor: int
    present: bool
    possible: bool = False
    with_state: bool = False
    modifiers: list[int] = field(default_factory=list)


def read_items(text: str, ontology: Ontology) -> list[Item]:
    """Cut `text` into the longest phrases of the lexicon, measures, punctuation and unknown words."""
    tokens = lemmas(text)
    words = [word for word, _, _ in tokens]
    measures = {m.start(): m for m in _MEASURE.finditer(text)}
    items: list[Item] = []
    i = 0
    while i < len(tokens):
        begin = tokens[i][1]
        if begin in measures:
            match = measures[begin]
            numbers = [float(n) for n in re.findall(r"\d+(?:\.\d+)?", match[0])]
            factor = 10.0 if match[3].lower() == "cm" else 1.0
            items.append(Item(("measure",), {"measure": "measure"}, begin, match.end(), max(numbers) * factor))
            while i < len(tokens) and tokens[i][1] < match.end():
                i += 1
            continue
        length, meanings = 1, {}
        for phrase, kinds in ontology.lexicon.get(words[i], ()):
            if tuple(words[i : i + len(phrase)]) == phrase:
                length, meanings = len(phrase), kinds
                break
        end = tokens[i + length - 1][2]
        items.append(Item(tuple(words[i : i + length]), meanings, begin, end))
        i += length
    return items


class SentenceReader:
    """Finds the units of one sentence and gives each its polarity and its modifiers."""

    def __init__(self, text: str, ontology: Ontology) -> None:
        self.ontology = ontology
        self.items = read_items(text, ontology)
        self.consumed: set[int] = set()
        self.units: list[Unit] = []
        self._find_units()
        self.units.sort(key=lambda unit: unit.anchor)
        self._name_by_place()
        self._attach_modifiers()

    def _is_boundary(self, i: int) -> bool:
        item = self.items[i]
        return item.words[0] in _STOPS or (item.has("boundary") and not item.has("filler"))

    def _find_units(self) -> None:
        pending: list[int] = []
        subject: list[int] = []
        for i, item in enumerate(self.items):
            if self._is_boundary(i):
                pending, subject = [], []
            elif i in self.consumed:
                continue
            elif item.has("state", "normal", "clear", "abnormal") and self._resolve_state(i, pending, subject):
                subject = pending or [unit.anchor for unit in self.units[-1:]]
                pending = []
            elif item.has("finding"):
                self._add_finding(i, pending)
                pending, subject = [], []
            elif item.has("structure") and not self._is_location(i):
                pending.append(i)
        if not self.units:
            self.units = [
                Unit(f"{item.kinds['structure']} (no state)", i, True)
                for i, item in enumerate(self.items)
                if item.has("structure")
            ]

    def _name_by_place(self) -> None:
        """Give a general finding its name in the structure that it is said to be in: "fracture of the sixth rib"."""
        anchors = {unit.anchor for unit in self.units}
        for i, item in enumerate(self.items):
            if i in anchors or not item.has("structure"):
                continue
            here = self.ontology.structures[item.kinds["structure"]].here
            before = [unit for unit in self.units if unit.anchor < i][-1:]
            after = [unit for unit in self.units if unit.anchor > i][:1]
            for unit in (*before, *after):
                if not self._joined(min(i, unit.anchor), max(i, unit.anchor)):
                    unit.concept = here.get(unit.concept, unit.concept)

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
            span = self.items[max(0, min(structure_item, i) - 3) : i]
            acute = any({"acute", "active"} & set(other.words) for other in span)
            return (structure.acute if acute else structure.abnormal), True
        return None

    def _resolve_state(self, i: int, pending: Sequence[int], subject: Sequence[int]) -> bool:
        targets = [s for s in pending if self._state_of(i, s)]
        following = i + 1 < len(self.items) and self.items[i + 1]
        if targets and following and self.items[i].has("severity") and following.has("state"):
            return False  # "borderline enlarged": a degree, not a state
        prefix = False
        if not targets:
            targets = [s for s in self._structures_after(i) if self._state_of(i, s)]
            prefix = bool(targets)
        if not targets:
            targets = [s for s in subject if self._state_of(i, s)]
        for s in targets:
            concept, present = self._state_of(i, s) or ("", True)
            negated, possible = self._polarity_of_state(i, s, prefix)
            self.units.append(Unit(concept, s, present != negated, possible, True))
        if targets:
            self.consumed.add(i)
            if prefix:
                self.consumed.update(targets)
        return bool(targets)

    def _structures_after(self, i: int) -> list[int]:
        """Structures that a state word stands before: "enlarged heart", "elevation of the right hemidiaphragm"."""
        found: list[int] = []
        for j in range(i + 1, len(self.items)):
            item = self.items[j]
            if item.has("structure") and not item.has("finding"):
                found.append(j)
            elif item.has("state", "normal", "clear", "abnormal") and not item.has("change", "severity"):
                # The list belongs to its own state: "normal heart, and the lungs are clear".
                copulas = [k for k in range(i + 1, j) if self.items[k].has("copula")]
                return [s for s in found if s < self._list_start(copulas[0])] if copulas else found
            elif not (
                item.has("side", "zone", "severity", "detail", "change", "joining")
                or item.words[0] in (",", "the", "of", "a")
                or (j == i + 1 and item.words == ("in",))
            ):
                break
        return found

    def _list_start(self, copula: int) -> int:
        """Where the subject of the verb at `copula` begins: after the last joining word before it."""
        for j in range(copula - 1, -1, -1):
            if self.items[j].has("joining") or self.items[j].words[0] == ",":
                return j
        return 0

    def _polarity_of_state(self, i: int, s: int, prefix: bool) -> tuple[bool, bool]:
        first, last = (i, s) if prefix else (s, i)
        negated = any(self.items[j].has("negation", "not") for j in range(first, last))
        copula = any(self.items[j].has("copula") for j in range(first, last))
        if not copula:
            negated = negated or self._negated_before(first)
        negated = negated or self._denied_after(last)
        return negated, self._uncertain(last)

    def _add_finding(self, i: int, pending: Sequence[int]) -> None:
        item = self.items[i]
        concepts = [(item.kinds["finding"], i)]
        # "hilar or mediastinal adenopathy": the first adjective shares the noun.
        if i >= 2 and self.items[i - 1].has("joining") and self.items[i - 2].has("structure") and i - 2 in pending:
            phrase = (*self.items[i - 2].words, item.words[-1])
            for known, kinds in self.ontology.lexicon.get(phrase[0], ()):
                if known == phrase and "finding" in kinds:
                    concepts.insert(0, (kinds["finding"], i - 2))
        negated = self._negated_before(i) or self._denied_after(i)
        for concept, anchor in concepts:
            self.units.append(Unit(concept, anchor, not negated, self._uncertain(i)))

    def _negated_before(self, i: int) -> bool:
        for j in range(i - 1, -1, -1):
            item = self.items[j]
            if self._is_boundary(j) or item.words == ("with",):
                return False
            if item.has("negation", "not"):
                return True
            if item.words == ("there",) and j > 0 and self.items[j - 1].has("joining"):
                return False
            if j in self.consumed and item.has("normal", "clear") and not item.has("negation"):
                return False
        return False

    def _denied_after(self, i: int) -> bool:
        for j in range(i + 1, len(self.items)):
            if self._is_boundary(j):
                return False
            if self.items[j].has("negation_after"):
                return True
        return False

    def _uncertain(self, i: int) -> bool:
        for j in range(i - 1, -1, -1):
            if self._is_boundary(j):
                break
            if self.items[j].has("uncertain"):
                return True
        for j in range(i + 1, len(self.items)):
            if self._is_boundary(j):
                break
            if self.items[j].has("uncertain_after"):
                return True
        return False

    def _joined(self, first: int, last: int) -> bool:
        """Whether a joining word, a comma or a clause end lies strictly between two items."""
        return any(
            self.items[j].has("joining", "negation") or self.items[j].words[0] == "," or self._is_boundary(j)
            for j in range(first + 1, last)
        )

    def _attach_modifiers(self) -> None:
        anchors = [unit.anchor for unit in self.units]
        for m, item in enumerate(self.items):
            if (m in self.consumed and m not in anchors) or not item.has(*_MODIFIERS):
                continue
            if m in anchors:
                for unit in self.units:
                    if unit.anchor == m and unit.with_state:
                        unit.modifiers.append(m)
                continue
            before = [unit for unit in self.units if unit.anchor < m]
            after = [unit for unit in self.units if unit.anchor > m]
            if not before and not after:
                continue
            if not before:
                owner = after[0]
            elif not after:
                owner = before[-1]
            else:
                to_next = not self._joined(m, after[0].anchor) and (
                    self._joined(before[-1].anchor, m) or not before[-1].with_state
                )
                owner = after[0] if to_next else before[-1]
            owner.modifiers.append(m)
        self._share_trailing()

    def _share_trailing(self) -> None:
        """What follows a list of findings holds for all of it: "atelectasis and effusion at the left base"."""
        for first, second in zip(reversed(self.units[:-1]), reversed(self.units[1:]), strict=True):
            between = self.items[first.anchor + 1 : second.anchor]
            verb = any(item.has("copula", "boundary") and item.words[0] != "with" for item in between)
            if verb or first.present != second.present or any(item.words == ("with",) for item in between):
                continue
            if any(m > first.anchor for m in first.modifiers):
                continue
            trailing = [m for m in second.modifiers if m > second.anchor]
            own = {kind for m in first.modifiers for kind in self._slots(m)}
            first.modifiers.extend(m for m in trailing if not own & self._slots(m))

    def _slots(self, m: int) -> set[str]:
        kinds = {kind for kind in _MODIFIERS if self.items[m].has(kind)}
        return {"where"} if kinds & {"side", "zone", "place"} else kinds

    def facts(self) -> tuple[tuple[Fact, ...], ...]:
        """The facts of the sentence, alternatives ("scarring or atelectasis") grouped together."""
        groups: list[list[Fact]] = []
        for index, unit in enumerate(self.units):
            fact = self._fact(unit)
            previous = self.units[index - 1] if index else None
            either = previous is not None and any(
                "or" in self.items[j].words or "versus" in self.items[j].words
                for j in range(previous.anchor + 1, unit.anchor)
            )
            if either and previous is not None and fact.present and previous.present:
                groups[-1] = [replace(other, possible=True) for other in groups[-1]]
                groups[-1].append(replace(fact, possible=True))
            else:
                groups.append([fact])
        return tuple(tuple(dict.fromkeys(group)) for group in dict.fromkeys(map(tuple, groups)))

    def _fact(self, unit: Unit) -> Fact:
        modifiers = sorted(set(unit.modifiers))
        severity: frozenset[int] = frozenset()
        change: set[str] = set()
        details: set[str] = set()
        for m in modifiers:
            kinds = self.items[m].kinds
            if "change" in kinds:
                change.add(kinds["change"])
            elif "severity" in kinds:
                severity |= self.ontology.levels[kinds["severity"]]
            if "detail" in kinds:
                details |= self.ontology.entails[kinds["detail"]]
        node = self.ontology.findings.get(unit.concept)
        # Acute is said of every infiltrate and effusion; only for bones is it a claim of its own.
        if not self.ontology.is_a(unit.concept, "osseous_abnormality") or unit.concept.startswith("acute_"):
            details.discard("acute")
        present = unit.present and "resolved" not in change
        if not present:
            # How long a finding has been absent says nothing about the current image; "no NEW nodule" does.
            change &= {"new", "increased"}
        closed = frozenset().union(*(self.ontology.entails[c] for c in change))
        places = () if node is not None and node.midline else self._places(modifiers)
        measures = tuple(self.items[m].measure or 0.0 for m in modifiers if self.items[m].has("measure"))
        return Fact(
            unit.concept, present, places, severity, closed, frozenset(details), measures, unit.possible and present
        )

    def _places(self, modifiers: Sequence[int]) -> tuple[Place, ...]:
        """Pairs of side and zone in reading order; in "right upper and lower" both zones are on the right."""
        places: list[Place] = []
        sides: list[str] = []
        fresh = False
        for m in modifiers:
            kinds = self.items[m].kinds
            if "place" in kinds:
                side, zone = self.ontology.places[kinds["place"]]
                places += [(s, zone) for s in (("left", "right") if side == "both" else (side,))]
                continue
            if "side" in kinds:
                found = ["left", "right"] if kinds["side"] == "both" else [kinds["side"]]
                sides = sides + found if fresh else found
                fresh = True
            if "zone" in kinds:
                places += [(side, kinds["zone"]) for side in sides] if sides else [(None, kinds["zone"])]
                fresh = False
        if fresh:
            unsided = [zone for side, zone in places if side is None]
            places = [place for place in places if place[0] is not None]
            places += [(side, zone) for side in sides for zone in (unsided or [None])]
        return tuple(sorted(set(places), key=str))


@lru_cache(maxsize=200_000)
def parse(text: str, ontology: Ontology | None = None) -> Parsed:
    """Read one sentence into facts; the result is kept, since the same sentences come back in most reports."""
    ontology = ontology or default_ontology()
    reader = SentenceReader(text, ontology)
    unread = {
        item.words[0] for item in reader.items if not item.kinds and item.words[0].isalpha() and len(item.words[0]) > 1
    }
    claimless = {"filler", "joining", "copula", "locative", "boundary"}
    words = {word for item in reader.items if set(item.kinds) - claimless or not item.kinds for word in item.words}
    return Parsed(reader.facts(), frozenset(unread), frozenset(word for word in words if word[0].isalnum()))
