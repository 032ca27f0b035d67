"""Deterministic rules that inject labeled errors into reports; the ontology of the offline judge checks each error."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from radfact.error_categories import CategoryLetter
from radfact.errors import Failure
from radfact.io.yaml_files import read_yaml
from radfact.judges.offline import UNREAD_SHARE
from radfact.judges.offline_splitter import split_narrative
from radfact.meta.datasets.reports import SiteReport
from radfact.meta.injection.records import RULES, InjectedError, InjectedReport, ReportSentences, parse_facts
from radfact.reader.facts import Fact
from radfact.reader.ontology_file import default_ontology

_UNCHANGED, _INCREASED = "unchanged from the prior examination", "increased since the prior examination"
MAX_ERRORS = 5  # of a report in ReXamine-Global

TABLES: Mapping[str, Any] = read_yaml(Path(__file__).with_suffix(".yaml"))


def _compile(text: str) -> re.Pattern[str]:
    for name, part in TABLES["parts"].items():
        text = text.replace(f"<{name}>", part)
    return re.compile(text, re.IGNORECASE)


_PATTERNS = {name: _compile("|".join(alternatives)) for name, alternatives in TABLES["patterns"].items()}
_REMOVALS = [(_compile(comparison), replacement) for comparison, replacement in TABLES["removals"]]


@dataclass(frozen=True, slots=True)
class Edit:
    """One possible error: a sentence is replaced by `text` (None removes it), or `text` is added after it."""

    category: CategoryLetter
    operation: str
    index: int
    text: str | None
    is_addition: bool = False


class RuleInjector:
    """Injects k errors into sentences that the ontology reads, one into each; the first k are among the first k + 1."""

    name = RULES

    def __init__(self, *, seed: int = 42) -> None:
        """Create an injector; its choices depend on the seed, and on the id and text of each report."""
        self.seed = seed

    def describe(self) -> dict[str, Any]:
        return {"rules": self.name, "seed": self.seed}

    def inject(self, source_id: str, report: str, category: CategoryLetter, count: int) -> InjectedReport | None:
        """Return a candidate with errors of one category; None if the report offers fewer."""
        document = ReportSentences.of(report)
        edits = self.edits(source_id, document, category)[:count]
        if len(edits) < count:
            return None
        return _apply(f"{source_id}_{category}{count}", source_id, document, edits, category)

    def inject_mixed(self, source_id: str, report: str, count: int) -> InjectedReport:
        """Return a candidate with up to `count` errors of any categories."""
        document = ReportSentences.of(report)
        generator = random.Random(f"{self.seed}/{source_id}/mixed")
        pool = {letter: self.edits(source_id, document, letter) for letter in _GENERATORS}
        edits: list[Edit] = []
        while len(edits) < count and any(pool.values()):
            letter = generator.choice([letter for letter, remaining in pool.items() if remaining])
            edit = pool[letter].pop(0)
            edits += [edit] if _fits(edit, edits) else []
        return _apply(source_id, source_id, document, edits, None)

    def edit(self, reports: Sequence[SiteReport]) -> list[InjectedReport | Failure]:
        """Return candidates with one to five errors, as far as possible (ReXamine-Global, section 2.4, step 3)."""
        candidates: list[InjectedReport | Failure] = []
        for report in reports:
            count = random.Random(f"{self.seed}/{report.sample_id}/count").randint(1, MAX_ERRORS)
            candidate = self.inject_mixed(report.sample_id, report.report, count)
            candidates.append(candidate.model_copy(update=report.labels))
        return candidates

    def edits(self, source_id: str, document: ReportSentences, category: CategoryLetter) -> list[Edit]:
        """Return all errors of a category that fit into the report together, in the order in which they are used."""
        if not is_readable(document):
            return []
        generator = random.Random(f"{self.seed}/{source_id}/{category}/{document.text}")
        possible = list(_GENERATORS[category](document, generator))
        generator.shuffle(possible)
        edits: list[Edit] = []
        for edit in possible:
            edits += [edit] if _fits(edit, edits) else []
        return edits


def _fits(edit: Edit, edits: Sequence[Edit]) -> bool:
    """Return whether no other edit replaces the same sentence."""
    return edit.is_addition or all(other.is_addition or other.index != edit.index for other in edits)


def is_readable(document: ReportSentences) -> bool:
    """Return whether the ontology recognizes findings in enough sentences; False for other languages or modalities."""
    unread = sum(not parse_facts(sentence) for sentence in document.sentences)
    return unread < UNREAD_SHARE * len(document.sentences)


def _apply(
    sample_id: str, source_id: str, document: ReportSentences, edits: Sequence[Edit], category: CategoryLetter | None
) -> InjectedReport:
    sentences = {index: [document.text[start:end]] for index, (start, end) in enumerate(document.spans)}
    changes = []
    for edit in edits:
        original = None if edit.is_addition else document.sentences[edit.index]
        if edit.is_addition:
            sentences[edit.index].append(edit.text or "")
        else:
            sentences[edit.index][0] = edit.text or ""
        changes.append(
            InjectedError(category=edit.category, operation=edit.operation, original=original, modified=edit.text)
        )
    texts = {"reference": document.text, "candidate": document.replaced(sentences)}
    return InjectedReport(sample_id=sample_id, source_id=source_id, category=category, changes=tuple(changes), **texts)


def _false_findings(document: ReportSentences, generator: random.Random) -> Iterator[Edit]:
    """State a denied finding, or add one that the report does not mention."""
    if not document.sentences:
        return
    facts = [fact for sentence in document.sentences for fact in parse_facts(sentence)]
    used: set[int] = set()
    findings = list(TABLES["findings"].items())
    for finding, texts in generator.sample(findings, len(findings)):
        text = generator.choice(texts)
        if any(_are_related(fact.concept, finding) for fact in facts if fact.present):
            continue
        denials = [
            index
            for index, sentence in enumerate(document.sentences)
            if any(_is_denial_of(fact, finding, text) for fact in parse_facts(sentence))
        ]
        if not denials:
            index = generator.randrange(len(document.sentences))
            yield Edit("a", "finding added", index, text, is_addition=True)
        elif len(denials) == 1 and denials[0] not in used:
            rest = _without_denial(document.sentences[denials[0]], finding, text)
            if rest is not None:
                used.add(denials[0])
                yield Edit("a", "negation flip", denials[0], f"{rest} {text}".strip())


def _are_related(concept: str, finding: str) -> bool:
    ontology = default_ontology()
    return ontology.is_a(concept, finding) or ontology.is_a(finding, concept)


def _is_denial_of(fact: Fact, finding: str, text: str) -> bool:
    """Return whether a fact denies a finding as stated in `text`: "no large effusion" does not deny a small one."""
    if fact.present or not default_ontology().is_denied_by(fact.concept, finding):
        return False
    stated = parse_facts(text)
    levels = {level for other in stated for level in other.severity}
    sides = [{side for other in facts for side, _ in other.places if side} for facts in ([fact], stated)]
    return all(not a or not b or not a.isdisjoint(b) for a, b in ((fact.severity, levels), sides))


def _split(sentence: str) -> list[str]:
    """Return the statements of a sentence; the whole sentence if they omit one of its findings."""
    singles = split_narrative(f"{sentence}.")
    before, after = (
        Counter(fact.concept for text in texts for fact in parse_facts(text) if fact.present)
        for texts in ([sentence], singles)
    )
    return singles if before <= after else [f"{sentence}."]


def _without_denial(sentence: str, finding: str, text: str) -> str | None:
    """Return a sentence without the denial of a finding as stated in `text`; None if it cannot be separated."""
    rest = []
    for single in _split(sentence):
        facts = parse_facts(single)
        denials = [fact for fact in facts if _is_denial_of(fact, finding, text)]
        if denials and len(denials) < len(facts):
            return None
        if not denials:
            rest.append(single)
    return " ".join(rest)


def _omissions(document: ReportSentences, generator: random.Random) -> Iterator[Edit]:
    """Deny a finding, or remove its statement; statements of normal or stable structures are kept."""
    is_a = default_ontology().is_a
    for index, sentence in enumerate(document.sentences):
        singles = _split(sentence)
        stated = [text for text in singles if parse_facts(text) and all(map(_is_finding, parse_facts(text)))]
        if not stated or len(document.sentences) < 2:
            continue
        chosen = generator.choice(stated)
        remaining = [text for text in singles if text is not chosen]
        if not {fact for text in remaining for fact in parse_facts(text)} <= set(parse_facts(sentence)):
            continue
        rest = " ".join(remaining)
        if _names_bare_structure(rest.rstrip(".")):
            continue
        facts = parse_facts(chosen)
        concepts = {fact.concept for fact in facts}
        if any(_are_related(fact.concept, c) for c in concepts for fact in parse_facts(rest) if fact.present):
            continue
        others = [fact for i, other in enumerate(document.sentences) if i != index for fact in parse_facts(other)]
        repeated = [(a, b) for a in facts for b in others if b.present and is_a(b.concept, a.concept)]
        if any(not a.places or not b.places or set(a.places) & set(b.places) for a, b in repeated):
            continue
        denial = f"No {' '.join(TABLES['spelling'].get(word, word) for word in facts[0].concept.split('_'))}."
        read = parse_facts(denial)
        is_denied = len(concepts) == 1 and len(read) == 1 and not read[0].present and {read[0].concept} == concepts
        if is_denied and not repeated and concepts.isdisjoint(TABLES["not_denied"]) and generator.random() < 0.5:
            yield Edit("b", "negation flip", index, f"{rest} {denial}".strip())
        else:
            yield Edit("b", "finding removed", index, rest or None)


def _is_finding(fact: Fact) -> bool:
    """Return whether a fact states an abnormal finding or a device, not only the state of a normal structure."""
    finding = default_ontology().findings.get(fact.concept)
    return fact.present and finding is not None and not finding.normal and fact.concept not in TABLES["states"]


def _swaps(
    table: str, category: CategoryLetter, operation: str, changed: str, document: ReportSentences, _: random.Random
) -> Iterator[Edit]:
    """Replace a word or a range ("mild to moderate") by that of a table; "large nodule of 5 mm" would make no sense."""
    words: Mapping[str, str] = TABLES[table]
    options = "|".join(words)
    single = re.compile(rf"\b(?:{options})\b", re.IGNORECASE)
    several = re.compile(rf"(?<![\w/-])({options})(?:[ -]to[ -](?:{options}))?\b(?!/)", re.IGNORECASE)
    for index, sentence in enumerate(document.sentences):
        if not any(fact.present for fact in parse_facts(sentence)):
            continue
        present = [word.lower() for word in single.findall(sentence)]
        for match in several.finditer(sentence):
            word, replacement = match[1].lower(), words[match[1].lower()]
            if _PATTERNS["terms"].match(sentence, match.start()):
                continue
            if changed == "places" and (present.count(word) > 1 or replacement in present):
                continue
            if match[0][:1].isupper():
                replacement = replacement.capitalize()
            text = fix_articles(sentence[: match.start()] + replacement + sentence[match.end() :])
            impossible = _PATTERNS["impossible"]
            if changed == "places" and impossible.search(text) and not impossible.search(sentence):
                continue
            before, after = parse_facts(sentence), parse_facts(text)
            if not _differ_only_in(changed, before, after) or any(map(_is_misplaced, before, after)):
                continue
            changes = [fact for fact, other in zip(before, after, strict=True) if fact != other]
            if all(fact.present and not (changed == "severity" and fact.measures) for fact in changes):
                yield Edit(category, operation, index, f"{text}.")
                break


def _is_misplaced(before: Fact, after: Fact) -> bool:
    """Return whether the zone changes of a finding that occurs in one zone only, such as costophrenic blunting."""
    finding = default_ontology().findings.get(before.concept)
    zones = [{zone for _, zone in fact.places} for fact in (before, after)]
    return finding is not None and finding.usual_zone is not None and zones[0] != zones[1]


def _locations(document: ReportSentences, generator: random.Random) -> Iterator[Edit]:
    yield from _swaps("sides", "c", "laterality flip", "places", document, generator)
    yield from _swaps("zones", "c", "location swap", "places", document, generator)


def _added_comparisons(document: ReportSentences, generator: random.Random) -> Iterator[Edit]:
    for index, sentence in enumerate(document.sentences):
        before = parse_facts(sentence)
        if not before or any(fact.change for fact in before) or _PATTERNS["mention"].search(sentence):
            continue
        increases = generator.random() < 0.5 and _can_increase(sentence, before)
        text = f"{sentence}, {_INCREASED if increases else _UNCHANGED}"
        if _differ_only_in("change", before, parse_facts(text)):
            yield Edit("e", "comparison added", index, f"{text}.")


def _can_increase(sentence: str, facts: Sequence[Fact]) -> bool:
    """Return whether all facts are findings that can increase, unlike devices and normal structures."""
    is_a = default_ontology().is_a
    can_grow = all(fact.present and not any(is_a(fact.concept, name) for name in TABLES["static"]) for fact in facts)
    return can_grow and not _PATTERNS["not_increased"].search(sentence)


def _removed_comparisons(document: ReportSentences, _: random.Random) -> Iterator[Edit]:
    for index, sentence in enumerate(document.sentences):
        before = parse_facts(sentence)
        if not any(fact.change for fact in before):
            continue
        if _PATTERNS["state"].search(sentence) and not _PATTERNS["compared"].search(sentence):
            continue  # "increased markings" is a state
        text = sentence
        for comparison, replacement in _REMOVALS:
            text = comparison.sub(replacement, text).strip(" ,")
        if not text or text == sentence or _PATTERNS["broken"].search(text):
            continue
        text = fix_articles(text)
        after = parse_facts(text)
        if any(fact.change for fact in after) or not _differ_only_in("change", before, after):
            continue
        states = [fact for fact in before if fact.change and fact.concept in TABLES["states"]]
        if not states and not _names_bare_structure(text):
            yield Edit("f", "comparison removed", index, f"{text[:1].upper()}{text[1:]}.")


def _names_bare_structure(sentence: str) -> bool:
    """Return whether a sentence names a structure without its state, as in "cardiomegaly and mediastinal contour"."""
    return any(
        not parse_facts(text) and any(fact.change for fact in parse_facts(f"{text.rstrip('.')}, unchanged"))
        for text in split_narrative(f"{sentence}.")
    )


def _differ_only_in(name: str, before: Sequence[Fact], after: Sequence[Fact]) -> bool:
    ignored: dict[str, Any] = {name: None, "exceptions": None}
    others = [[replace(fact, **ignored) for fact in facts] for facts in (before, after)]
    return others[0] == others[1] and [getattr(f, name) for f in before] != [getattr(f, name) for f in after]


def fix_articles(text: str) -> str:
    text = re.sub(r"\b([Aa])n (?=[bcdfghjklmnpqrstvwxz])", r"\1 ", text)
    return re.sub(r"\b([Aa]) (?=[aei]|o(?!ne\b|nce\b)|up|un(?!i))", r"\1n ", text)


_GENERATORS: Mapping[CategoryLetter, Callable[[ReportSentences, random.Random], Iterator[Edit]]] = {
    "a": _false_findings,
    "b": _omissions,
    "c": _locations,
    "d": partial(_swaps, "degrees", "d", "severity step", "severity"),
    "e": _added_comparisons,
    "f": _removed_comparisons,
}
