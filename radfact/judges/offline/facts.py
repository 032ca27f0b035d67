"""A sentence of a report read into facts: which finding, present or absent, where, how much, how it changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, zip_longest

from radfact.judges.offline.clause_parser import CERTAIN, POSSIBLE, Unit, UnitFinder
from radfact.judges.offline.ontology import Ontology
from radfact.judges.offline.ontology_file import default_ontology

Place = tuple[str | None, str | None]
"""(side, zone): "left", "right", "each" (a plural: "at the bases") or unknown; a zone of the ontology or unknown."""

_MODIFIERS = ("side", "zone", "place", "severity", "change", "detail", "measure", "dominance")
_ARTICLES = frozenset({"the", "a", "an", "recent", "known"})
_COMPARING = frozenset({"compare", "compared", "comparison", "since", "interval", "prior", "previous"})
_CLAIMLESS = frozenset({"filler", "joining", "copula", "locative", "boundary"})


@dataclass(frozen=True, slots=True)
class Fact:
    """One claim about the current image. Sizes in millimetres; `doubt` from CERTAIN to POSSIBLE.

    `exceptions`: what a denial leaves out ("clear except for atelectasis"; "*" for "otherwise clear").
    """

    concept: str
    present: bool
    places: tuple[Place, ...] = ()
    severity: frozenset[int] = frozenset()
    change: frozenset[str] = frozenset()
    details: frozenset[str] = frozenset()
    measures: tuple[float, ...] = ()
    doubt: int = CERTAIN
    exceptions: frozenset[str] = frozenset()

    @property
    def possible(self) -> bool:
        """Whether the sentence is less than certain of it."""
        return self.doubt > CERTAIN


@dataclass(frozen=True, slots=True)
class Parsed:
    """`groups`: all must hold, of each group one ("scarring or atelectasis"). `unread`: words the ontology lacks.

    `required`: words that an entailing text must have too: numbers, and unread words for a place, a cause or a deed.
    """

    groups: tuple[tuple[Fact, ...], ...]
    unread: frozenset[str]
    words: frozenset[str]
    required: frozenset[str]

    @property
    def facts(self) -> tuple[Fact, ...]:
        """All facts of all groups."""
        return tuple(fact for group in self.groups for fact in group)


class SentenceReader(UnitFinder):
    """Gives each unit of one sentence its modifiers and turns it into facts."""

    def __init__(self, text: str, ontology: Ontology) -> None:
        super().__init__(text, ontology)
        self._past = self._speaks_of_before()
        self._compared = any(not _COMPARING.isdisjoint(item.words) for item in self.items)
        for m, item in enumerate(self.items):
            if item.has(*_MODIFIERS):
                self._attach(m)
        self._share_trailing()
        self._share_leading()

    def _speaks_of_before(self) -> bool:
        """Whether it tells what there was: "there was an effusion on the prior study"."""
        words = [item.words[0] for item in self.items if item.words[0] != "the"]
        if not {"was", "were"} & set(words) or any(item.has("change") for item in self.items):
            return False
        return "previously" in words or any(
            first == "on" and second in ("prior", "previous") for first, second in pairwise(words)
        )

    def _attach(self, m: int) -> None:
        anchored = [unit for unit in self.units if unit.anchor == m]
        if anchored or m in self.consumed:
            own_change = self._compared or (m > 0 and self.items[m - 1].words[0] in ("has", "have", "had"))
            for unit in self.units:
                if m == unit.state == unit.anchor or (
                    unit.with_state and (m == unit.anchor or (m == unit.state and own_change))
                ):
                    unit.modifiers.append(m)
            return
        if self._grades_change(m):
            return
        stops = [i for i, item in enumerate(self.items) if item.words == (".",)]
        first = max((i for i in stops if i < m), default=-1)
        last = min((i for i in stops if i > m), default=len(self.items))
        before = [unit for unit in self.units if first < unit.anchor < m]
        after = [unit for unit in self.units if m < unit.anchor < last]
        if not before and not after:
            return
        if not before or not after:
            owner = after[0] if not before else self._subject(m, before)
        else:
            to_next = not self._separated(m, after[0].anchor, "of") and (
                self._separated(before[-1].anchor, m) or not before[-1].with_state
            )
            owner = after[0] if to_next else before[-1]
        owner.modifiers.append(m)

    def _subject(self, m: int, before: Sequence[Unit]) -> Unit:
        """What a verb at the end speaks of: in "opacity, suggesting infection, is unchanged" it is the opacity."""
        verb = self.items[m - 1].has("copula") or self.items[m - 1].words[0] in ("has", "have")
        if (
            self.items[m].has("change")
            and verb
            and any(item.words[0] == "," for item in self.items[before[-1].anchor : m])
        ):
            for first, second in zip(reversed(before[:-1]), reversed(before[1:]), strict=True):
                if not self._linked(first.anchor, second.anchor):
                    return second
            return before[0]
        return before[-1]

    def _grades_change(self, m: int) -> bool:
        """Whether a degree is that of a change, not of the finding: "slightly worse", "improved markedly"."""
        if not self.items[m].has("severity"):
            return False
        before = self.items[m - 1].words[0] if m > 0 else ""
        if before in ("previously", "formerly", "from"):
            return True  # "decreased from moderate"
        graded = ("increased", "decreased")
        j = m + 2 if m + 1 < len(self.items) and self.items[m + 1].words == ("interval",) else m + 1
        following = self.items[j] if j < len(self.items) else None
        if following is not None and following.kinds.get("change") in graded and j not in self.consumed:
            return True
        j += following is not None and following.has("side")
        following = self.items[j] if j < len(self.items) else None
        if following is not None and following.has("detail") and following.words[-1].endswith(("tion", "ment")):
            return True  # "mild right loculation"
        adverb = self.items[m].words[-1].endswith("ly")
        return adverb and m > 0 and self.items[m - 1].kinds.get("change") in graded

    def _share_trailing(self) -> None:
        """What follows a list of findings holds for all of it: "atelectasis and effusion at the left base"."""
        for first, second in zip(reversed(self.units[:-1]), reversed(self.units[1:]), strict=True):
            between = self.items[first.anchor + 1 : second.anchor]
            if first.present != second.present or any(
                item.words == ("with",) or item.has("copula", "boundary", "link") for item in between
            ):
                continue
            if any(m > first.anchor for m in first.modifiers):
                continue
            trailing = [m for m in second.modifiers if m > second.anchor]
            own = {kind for m in first.modifiers for kind in self._slots(m)}
            first.modifiers.extend(m for m in trailing if not own & self._slots(m))

    def _share_leading(self) -> None:
        """Where a list begins holds for all joined to it; what a finding is concluded to be lies where it is."""
        for first, second in zip(self.units[:-1], self.units[1:], strict=True):
            between = self.items[first.anchor + 1 : second.anchor]
            own = {slot for m in second.modifiers for slot in self._slots(m)}
            if first.present != second.present or first.with_state or any(item.ends_clause for item in between):
                continue
            joined = bool(between) and all(item.joins and item.words != ("with",) for item in between)
            bound = any(item.has("link", "adjoining") for item in between)
            slots = {"where", "change"} if joined or bound else set()
            leading = [m for m in first.modifiers if m < first.anchor or bound]
            second.modifiers.extend(m for m in leading if self._slots(m) & slots and not self._slots(m) & own)

    def _slots(self, m: int) -> set[str]:
        kinds = {kind for kind in _MODIFIERS if self.items[m].has(kind)}
        return {"where"} if kinds & {"side", "zone", "place", "dominance"} else kinds

    def facts(self) -> tuple[tuple[Fact, ...], ...]:
        """The facts of the sentence, alternatives ("scarring or atelectasis") grouped together."""
        groups: list[list[Fact]] = []
        for index, unit in enumerate(self.units):
            facts = [fact for modifiers in self._variants(unit) if (fact := self._fact(unit, modifiers))]
            facts = _compared_sides(facts)
            previous = self.units[index - 1] if index else None
            if not facts:
                continue
            if previous is not None and groups and facts[0].present and self._alternative(previous, unit):
                groups[-1] = [replace(other, doubt=max(other.doubt, POSSIBLE)) for other in groups[-1]]
                groups[-1] += [replace(fact, doubt=POSSIBLE) for fact in facts]
            else:
                groups += [[fact] for fact in facts]
        return tuple(tuple(dict.fromkeys(group)) for group in dict.fromkeys(map(tuple, groups)))

    def _alternative(self, first: Unit, second: Unit) -> bool:
        if not first.present or min(first.doubt, second.doubt) > CERTAIN:
            return False  # "may be scarring or atelectasis": both may be
        if "unchanged" in self._changes(first.modifiers):
            return False  # "no change in pneumothorax or effusion" has both
        return any("or" in item.words for item in self.items[first.anchor + 1 : second.anchor])

    def _changes(self, modifiers: Sequence[int]) -> set[str]:
        said = (self.items[m] for m in modifiers)
        return {
            item.kinds["change"] for item in said if item.has("change") and not (self.advises and item.has("removal"))
        }

    def _variants(self, unit: Unit) -> Iterator[list[int]]:
        """One list of modifiers a side, where each side has its own: "large right and small left effusions"."""
        modifiers = sorted(set(unit.modifiers))
        sides = [m for m in modifiers if self.items[m].kinds.get("side") in ("left", "right")]
        for kind in ("severity", "change"):
            graded = [m for m in modifiers if self.items[m].has(kind)]
            differ = len({self.items[m].kinds[kind] for m in graded}) > 1
            if differ and len(graded) == len(sides) == 2 and len({self.items[m].kinds["side"] for m in sides}) == 2:
                both = [m for m in modifiers if self.items[m].kinds.get("side") == "both"]
                rest = [m for m in modifiers if m not in (*graded, *sides, *both)]
                yield from (sorted([*rest, grade, side]) for grade, side in zip(graded, sides, strict=True))
                return
        yield modifiers

    def _fact(self, unit: Unit, modifiers: Sequence[int]) -> Fact | None:
        severity: frozenset[int] = frozenset()
        details: set[str] = set()
        change = self._changes(modifiers) | ({"previous"} if self._past else set())
        for m in modifiers:
            kinds = self.items[m].kinds
            if "severity" in kinds and "change" not in kinds:
                severity |= self.ontology.levels[kinds["severity"]]
            if "detail" in kinds:
                details |= self.ontology.entails[kinds["detail"]]
        if unit.concept in self.ontology.structures and not change:
            return None  # a structure that is merely named
        concept = unit.concept
        node = self.ontology.findings.get(concept)
        for said, special in node.when.items() if node is not None else ():
            if said in details or said in change:
                concept = special
                details.discard(said)
        details = {detail for detail in details if self.ontology.applies(detail, concept)}
        details |= {name for name, parts in self.ontology.derived.items() if parts <= details}
        node = self.ontology.findings.get(concept)
        details -= node.implied if node is not None else frozenset()
        present = unit.present and "resolved" not in change
        if not present:
            # How long a finding has been absent says nothing about the current image; "no NEW nodule" does.
            change &= {"new", "increased", "unchanged", "resolved", "previous"}
        if present and "chronic" in details:
            change = change | {"persistent"}
        if unit.present and not present:
            severity, details = frozenset(), set()  # what has resolved has no degree any more
        closed = frozenset().union(*(self.ontology.entails[c] for c in change))
        places = () if node is not None and node.midline else self._places(modifiers)
        measures = tuple(self.items[m].measure or 0.0 for m in modifiers if self.items[m].has("measure"))
        details |= self.ontology.standard_position(concept, details, measures)
        return Fact(
            concept,
            present,
            places,
            severity,
            closed,
            frozenset(details),
            measures,
            unit.doubt if present else CERTAIN,
            unit.exceptions,
        )

    def _places(self, modifiers: Sequence[int]) -> tuple[Place, ...]:
        """Pairs of side and zone in reading order; in "right upper and lower" both zones are on the right."""
        places: list[Place] = []
        sides: list[str] = []
        fresh = False
        for m in modifiers:
            item = self.items[m]
            kinds = item.kinds
            if "place" in kinds:
                side, zone = self.ontology.places[kinds["place"]]
                places += [(s, zone) for s in (("left", "right") if side == "both" else (side,))]
                continue
            if "side" in kinds or "dominance" in kinds:
                found = [kinds["side"]] if kinds.get("side", "both") != "both" else ["left", "right"]
                sides = sides + found if fresh else found
                fresh = True
            if "zone" in kinds:
                here: list[str | None] = [*sides] or ["each" if item.plural else None]
                places += [(side, kinds["zone"]) for side in here]
                fresh = False
        if fresh:
            unsided = [zone for side, zone in places if side in (None, "each") or len(sides) == 2]
            places = [place for place in places if place[0] not in (None, "each")]
            places += [(side, zone) for side in sides for zone in (dict.fromkeys(unsided) or [None])]
        if any(zone not in (None, "all") for _, zone in places):
            places = [place for place in places if place[1] != "all"]  # "complete collapse of the upper lobe"
        return tuple(sorted(set(places), key=str))


def _compared_sides(facts: list[Fact]) -> list[Fact]:
    """ "Moderate right and small left effusions" are greater on the right."""
    if len(facts) != 2 or not all(fact.severity for fact in facts):
        return facts
    larger = max(facts, key=lambda fact: max(fact.severity))
    detail = f"{larger.places[0][0]}_dominant" if larger.places else ""
    return [replace(fact, details=fact.details | {detail}) if detail else fact for fact in facts]


@lru_cache(maxsize=200_000)
def parse(text: str, ontology: Ontology | None = None) -> Parsed:
    """Read one sentence into facts; the result is kept, since the same sentences come back in most reports."""
    ontology = ontology or default_ontology()
    reader = SentenceReader(text, ontology)
    unread: set[str] = set()
    words: set[str] = set()
    required: set[str] = set()
    named = False
    for item, following in zip_longest(reader.items, reader.items[1:]):
        word = item.words[0]
        if not item.known and len(word) > 1 and word.strip("x"):
            has_object = following is not None and following.words == ("the",)  # "invades the chest wall"
            (required if named or has_object else unread).add(word)
        if not item.kinds and word.isdigit():
            required.add(word)
        named = item.has("locative", "link") or word in ("after", "been") or (named and word in _ARTICLES)
        if item.kinds.keys() - _CLAIMLESS or not item.kinds:
            words.update(word for word in item.words if word[0].isalnum())
    if not words:
        words.update(word for item in reader.items for word in item.words if word[0].isalnum())
    return Parsed(reader.facts(), frozenset(unread), frozenset(words), frozenset(required))
