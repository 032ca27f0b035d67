"""Errors put into reports by rules: deterministic, labelled, every one checked by what the ontology reads of it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from radfact.error_categories import CategoryLetter
from radfact.judges.offline.facts import Fact
from radfact.judges.offline.judge import UNREAD_SHARE
from radfact.judges.offline.ontology_file import default_ontology
from radfact.judges.offline.splitter import split_narrative
from radfact.meta.injection.records import Change, Injected
from radfact.meta.injection.sentences import Sentences, facts_of

Operation = Literal[
    "finding added",
    "negation flip",
    "finding removed",
    "laterality flip",
    "location swap",
    "severity step",
    "comparison added",
    "comparison removed",
]

FINDINGS: Mapping[str, tuple[str, ...]] = {
    "pneumothorax": ("There is a small right apical pneumothorax.", "There is a small left apical pneumothorax."),
    "pleural_effusion": ("There is a small left pleural effusion.", "There is a moderate right pleural effusion."),
    "consolidation": ("There is consolidation in the right lower lobe.", "There is left lower lobe consolidation."),
    "edema": ("There is moderate pulmonary edema.",),
    "cardiomegaly": ("The heart is moderately enlarged.", "There is moderate cardiomegaly."),
    "atelectasis": ("There is atelectasis at the left lung base.",),
    "nodule": ("There is a 9 mm nodule in the right upper lobe.",),
    "rib_fracture": ("There is an acute fracture of the left sixth rib.",),
    "hiatal_hernia": ("There is a large hiatal hernia.",),
    "pneumoperitoneum": ("There is free air under the right hemidiaphragm.",),
}
"""Clinically significant findings that can be put into a report, by their names in the ontology."""

_AS_WRITTEN = {one: one.upper() for one in ("ards", "copd", "ecmo", "ekg", "ivc", "picc")} | {"kerley": "Kerley"}
"""Words of the ontology's names that reports have in capitals."""
_SIDES = {"left": "right", "right": "left"}
_ZONES = {
    "upper": "lower", "lower": "upper", "apical": "basal", "basal": "apical", "basilar": "apical", "apex": "base",
    "base": "apex", "perihilar": "peripheral", "peripheral": "perihilar", "middle": "upper",
}  # fmt: skip
_DEGREES = {
    "tiny": "large", "trace": "large", "minimal": "severe", "minimally": "severely", "small": "large",
    "mild": "severe", "mildly": "severely", "slight": "marked", "slightly": "markedly", "moderate": "minimal",
    "moderately": "minimally", "large": "small", "severe": "mild", "severely": "mildly", "marked": "slight",
    "markedly": "slightly", "massive": "small",
}  # fmt: skip
_UNCHANGED, _INCREASED = "unchanged from the prior examination", "increased since the prior examination"
_NOT_INCREASED = re.compile(
    r"\b(?:normal|clear|intact|unremarkable|midline|patent|well|low|lower|decreased)\b", re.IGNORECASE
)
_LASTING = ("device", "postoperative_change", "surgical_clips", "sternotomy", "normal_lung_volumes")
"""What is there or not, and does not grow, by its name in the ontology."""
_CHANGED = (
    r"stable|unchanged|new|persistent|residual|increased|increasing|decreased|decreasing|worsened|worsening|improved|"
    r"improving|progressive"
)
_PRIOR = (
    r"(?:the |a |an )?(?:prior|previous|earlier|last)?\s*(?:exam\w*|stud\w+|radiograph\w*|film\w*|imag\w+|prior|XXXX)?"
)
_WITHOUT_COMPARISON: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), by)
    for pattern, by in (
        (rf"^(?:in comparison (?:to|with)|(?:when )?compared (?:to|with)|since) {_PRIOR}\s*,\s*", ""),
        (rf",? (?:in comparison (?:to|with)|(?:when |as )?compared (?:to|with)|since|from) {_PRIOR}$", ""),
        (rf",? (?:(?:which |that )?(?:is|are) )?(?:{_CHANGED})(?: (?:compared (?:to|with)|from|since) {_PRIOR})?$", ""),
        (r"\b(?:interval|again)\s+(?=\w)", ""),
        (rf"\b(?:{_CHANGED})\s+(?=[a-z]{{3,}})(?!(?:in|from|since|compared|and|or|with|to|at|on)\b)", ""),
        (rf"\b(is|are|appears?|remains?) (?:\w+ly )?(?:{_CHANGED})\b.*$", r"\1 present"),
    )
)


@dataclass(frozen=True, slots=True)
class Edit:
    """One possible error: which sentence it changes, or follows, and what stands there then."""

    category: CategoryLetter
    operation: Operation
    place: int
    text: str | None
    adds: bool = False


Maker = Callable[[Sentences, random.Random], Iterator[Edit]]


class RuleInjector:
    """Puts k errors of one category into reports, at most one a sentence.

    The errors of k are among those of k + 1, so that a report only gets worse. An edit is made where what the ontology
    reads of the sentence changes just as the label says; what it cannot read is left alone, and so is a report that
    `is_read` is false of.
    """

    name = "rules"

    def __init__(self, *, seed: int = 42) -> None:
        """Take the seed of all choices; a report's depend on its id and text alone besides."""
        self.seed = seed

    def inject(self, source_id: str, report: str, category: CategoryLetter, count: int) -> Injected | None:
        """A candidate with `count` errors of a category; None where the report has no room for as many.

        Args:
            source_id: of the report.
            report: the reference.
            category: letter of GREEN's categories.
            count: number of errors, at least 1.
        """
        document = Sentences.of(report)
        edits = self.edits(source_id, document, category)[:count]
        if len(edits) < count:
            return None
        return _injected(f"{source_id}_{category}{count}", source_id, document, edits, category)

    def mixed(self, source_id: str, report: str, count: int) -> Injected:
        """A candidate with up to `count` errors of any categories, as ReXamine-Global wants one (paper 002, step 3)."""
        document = Sentences.of(report)
        drawn = random.Random(f"{self.seed}/{source_id}/mixed")
        pool = {letter: self.edits(source_id, document, letter) for letter in _MAKERS}
        edits: list[Edit] = []
        while len(edits) < count and any(pool.values()):
            letter = drawn.choice([one for one, left in pool.items() if left])
            edit = pool[letter].pop(0)
            if edit.adds or all(other.place != edit.place for other in edits if not other.adds):
                edits.append(edit)
        return _injected(source_id, source_id, document, edits, None)

    def edits(self, source_id: str, document: Sentences, category: CategoryLetter) -> list[Edit]:
        """All errors of a category that the report has room for together, in the order in which they are made."""
        if not is_read(document):
            return []
        drawn = random.Random(f"{self.seed}/{source_id}/{category}/{document.text}")
        found = list(_MAKERS[category](document, drawn))
        drawn.shuffle(found)
        kept: list[Edit] = []
        for edit in found:
            if edit.adds or all(other.adds or other.place != edit.place for other in kept):
                kept.append(edit)
        return kept


def is_read(document: Sentences) -> bool:
    """Whether the ontology reads enough of a report to put errors in, as it does not of other languages and images."""
    unread = sum(not facts_of(sentence) for sentence in document.sentences)
    return unread < UNREAD_SHARE * len(document.sentences)


def _injected(
    sample_id: str, source_id: str, document: Sentences, edits: Sequence[Edit], category: CategoryLetter | None
) -> Injected:
    added: dict[int, list[str]] = {}
    for edit in edits:
        if edit.adds and edit.text is not None:
            added.setdefault(edit.place, []).append(edit.text)
    return Injected(
        sample_id=sample_id,
        source_id=source_id,
        reference=document.text,
        candidate=document.replaced({edit.place: edit.text for edit in edits if not edit.adds}, added),
        category=category,
        changes=tuple(_change(edit, document) for edit in edits),
    )


def _change(edit: Edit, document: Sentences) -> Change:
    original = None if edit.adds else document.sentences[edit.place]
    return Change(category=edit.category, operation=edit.operation, original=original, modified=edit.text)


def _false_findings(document: Sentences, drawn: random.Random) -> Iterator[Edit]:
    """A denied finding is stated instead, or one that the report says nothing of is added."""
    if not document.sentences:
        return
    ontology = default_ontology()
    said = [fact for sentence in document.sentences for fact in facts_of(sentence)]
    used: set[int] = set()
    for finding, texts in drawn.sample(list(FINDINGS.items()), len(FINDINGS)):
        text = drawn.choice(texts)
        if any(_related(fact.concept, finding) for fact in said if fact.present):
            continue
        denials = [
            place
            for place, sentence in enumerate(document.sentences)
            if any(not fact.present and ontology.is_denied_by(fact.concept, finding) for fact in facts_of(sentence))
        ]
        if not denials:
            yield Edit("a", "finding added", drawn.randrange(len(document.sentences)), text, adds=True)
        elif len(denials) == 1 and denials[0] not in used:
            flipped = _without_denial(document.sentences[denials[0]], finding)
            if flipped is not None:
                used.add(denials[0])
                yield Edit("a", "negation flip", denials[0], f"{flipped} {text}".strip())


def _related(concept: str, finding: str) -> bool:
    ontology = default_ontology()
    return ontology.is_a(concept, finding) or ontology.is_a(finding, concept)


def _without_denial(sentence: str, finding: str) -> str | None:
    """What else a sentence says than that there is no such finding; None where the two cannot be parted."""
    ontology = default_ontology()
    kept = []
    for single in split_narrative(f"{sentence}."):
        facts = facts_of(single)
        denies = [fact for fact in facts if not fact.present and ontology.is_denied_by(fact.concept, finding)]
        if denies and len(denies) < len(facts):
            return None
        if not denies:
            kept.append(single)
    return " ".join(kept)


def _omissions(document: Sentences, drawn: random.Random) -> Iterator[Edit]:
    """A finding is denied, or what is said of it is taken out."""
    for place, sentence in enumerate(document.sentences):
        singles = split_narrative(f"{sentence}.")
        stated = [one for one in singles if facts_of(one) and all(fact.present for fact in facts_of(one))]
        if not stated or len(document.sentences) < 2:
            continue
        chosen = drawn.choice(stated)
        rest = " ".join(one for one in singles if one is not chosen)
        concepts = {fact.concept for fact in facts_of(chosen)}
        if any(_related(fact.concept, concept) for concept in concepts for fact in facts_of(rest) if fact.present):
            continue
        denial = f"No {_written(facts_of(chosen)[0].concept)}."
        read = facts_of(denial)
        flips = len(concepts) == 1 and len(read) == 1 and not read[0].present and {read[0].concept} == concepts
        if flips and drawn.random() < 0.5:
            yield Edit("b", "negation flip", place, f"{rest} {denial}".strip())
        else:
            yield Edit("b", "finding removed", place, rest or None)


def _written(concept: str) -> str:
    return " ".join(_AS_WRITTEN.get(word, word) for word in concept.split("_"))


def _swaps(
    words: Mapping[str, str], category: CategoryLetter, operation: Operation, changed: str, *, alone: bool = False
) -> Maker:
    """Edits that exchange one word and so change one property of the facts, and nothing else.

    Args:
        words: each with what stands for it then.
        category: of the error.
        operation: its name.
        changed: the property.
        alone: exchange a word only where the sentence has neither it nor the other a second time, because "right
            greater than left" or "in the right lung, at the right base" would make no sense with one word exchanged.
    """
    pattern = re.compile(rf"\b({'|'.join(words)})\b", re.IGNORECASE)

    def make(document: Sentences, drawn: random.Random) -> Iterator[Edit]:
        del drawn
        for place, sentence in enumerate(document.sentences):
            if not any(fact.present for fact in facts_of(sentence)):
                continue
            said = [word.lower() for word in pattern.findall(sentence)]
            for match in pattern.finditer(sentence):
                word, other = match[0].lower(), words[match[0].lower()]
                if alone and (said.count(word) > 1 or other in said):
                    continue
                text = _with_article(sentence, match, _like(match[0], other))
                if _differ_only_in(changed, facts_of(sentence), facts_of(text)):
                    yield Edit(category, operation, place, f"{text}.")
                    break

    return make


def _both(*makers: Maker) -> Maker:
    def make(document: Sentences, drawn: random.Random) -> Iterator[Edit]:
        for maker in makers:
            yield from maker(document, drawn)

    return make


def _comparisons_added(document: Sentences, drawn: random.Random) -> Iterator[Edit]:
    for place, sentence in enumerate(document.sentences):
        before = facts_of(sentence)
        if not before or any(fact.change for fact in before):
            continue
        grown = drawn.random() < 0.5 and _may_have_increased(sentence, before)
        text = f"{sentence}, {_INCREASED if grown else _UNCHANGED}"
        if _differ_only_in("change", before, facts_of(text)):
            yield Edit("e", "comparison added", place, f"{text}.")


def _may_have_increased(sentence: str, facts: Sequence[Fact]) -> bool:
    """Whether all that is said is a finding that can grow; of what is normal, or a tube, nobody would say so."""
    ontology = default_ontology()
    grows = all(fact.present and not any(ontology.is_a(fact.concept, one) for one in _LASTING) for fact in facts)
    return grows and not _NOT_INCREASED.search(sentence)


def _comparisons_removed(document: Sentences, drawn: random.Random) -> Iterator[Edit]:
    del drawn
    for place, sentence in enumerate(document.sentences):
        before = facts_of(sentence)
        if not any(fact.change for fact in before):
            continue
        text = sentence
        for pattern, by in _WITHOUT_COMPARISON:
            text = _articles(pattern.sub(by, text)).strip(" ,")
        after = facts_of(text)
        if text != sentence and not any(fact.change for fact in after) and _differ_only_in("change", before, after):
            yield Edit("f", "comparison removed", place, f"{text[:1].upper()}{text[1:]}.")


_PROPERTIES = ("concept", "present", "places", "severity", "change")


def _differ_only_in(name: str, before: Sequence[Fact], after: Sequence[Fact]) -> bool:
    """Whether facts are the same but for one property, and not the same in that."""
    same = [
        [tuple(getattr(fact, one) for one in _PROPERTIES if one != name) for fact in facts] for facts in (before, after)
    ]
    return same[0] == same[1] and [getattr(f, name) for f in before] != [getattr(f, name) for f in after]


def _like(model: str, word: str) -> str:
    return word.capitalize() if model[:1].isupper() else word


def _with_article(sentence: str, match: re.Match[str], word: str) -> str:
    return _articles(sentence[: match.start()] + word + sentence[match.end() :])


def _articles(text: str) -> str:
    """ "A" and "an" as the next word wants them."""
    text = re.sub(r"\b([Aa])n (?=[bcdfgjklmnpqrstvwxz])", r"\1 ", text)
    return re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", text)


_MAKERS: Mapping[CategoryLetter, Maker] = {
    "a": _false_findings,
    "b": _omissions,
    "c": _both(
        _swaps(_SIDES, "c", "laterality flip", "places", alone=True),
        _swaps(_ZONES, "c", "location swap", "places", alone=True),
    ),
    "d": _swaps(_DEGREES, "d", "severity step", "severity"),
    "e": _comparisons_added,
    "f": _comparisons_removed,
}
