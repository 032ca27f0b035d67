"""Pairs of reports that a teacher is asked about: ways to find or make a candidate (paper 000, section 3.1.1)."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from maira.judge.rewording import reword
from radfact.error_categories import CategoryLetter
from radfact.errors import InputError
from radfact.meta.injection.records import InjectedReport
from radfact.meta.injection.rules import RuleInjector
from radfact.meta.injection.sentences import ReportSentences
from radfact.records import Pair, Report

Pairing = Literal["random", "edited", "drafted", "nearest", "permuted", "reworded"]
"""i) any other report; ii) the report with sentences removed and shuffled; iii) a model's draft; iv) the most similar
other report; v) the report with findings changed. Beside the paper's: the report in other words. For iv the paper takes
BERTScore and for v RadGraph's entities; here they are the cosine of word counts, weighted by rarity, and the rules of
`radfact meta inject`."""
PAIRINGS: tuple[Pairing, ...] = get_args(Pairing)
_NEIGHBOURS = 50
"""The most similar reports that are looked through for one that is not the same text."""


@dataclass(frozen=True, slots=True)
class ReportPair:
    """A pair, how it was made, the reference's name, and what was changed where that is known."""

    pair: Pair
    pairing: Pairing | Literal["rated"]
    source_id: str
    injected: InjectedReport | None = None


def make_pairs(
    reports: Mapping[str, str],
    pairings: Sequence[Pairing],
    *,
    drafts: Mapping[str, str] | None = None,
    seed: int = 42,
    count: int | None = None,
) -> list[ReportPair]:
    """Pairs of all kinds; each report is the reference of one, and no pair of texts comes twice.

    Args:
        reports: references by name.
        pairings: the kinds, which share the reports evenly.
        drafts: a model's candidates by the reference's name, for "drafted".
        seed: of all that is drawn.
        count: most pairs; None for as many as there are reports.

    Raises:
        InputError: there are fewer than two reports, or "drafted" is wanted without drafts of them.
    """
    if len(reports) < 2:
        raise InputError("expected at least two reports to pair")
    usable = {key: text for key, text in (drafts or {}).items() if key in reports}
    if "drafted" in pairings and not usable:
        raise InputError("pairs of the kind 'drafted' need a model's drafts of these reports", field="drafts")
    drawn = random.Random(f"{seed}/pairs")
    order = drawn.sample(sorted(reports), len(reports))
    makers = _makers(reports, usable, pairings, drawn, seed)
    seen = set[tuple[Report, Report]]()
    found: list[ReportPair] = []
    turn = 0
    for key in order:
        # A report that has no candidate of the kind whose turn it is may have one of the next.
        for step in range(len(pairings)):
            kind = pairings[(turn + step) % len(pairings)]
            made = makers[kind](key)
            if made is not None and (texts := (made.pair.reference, made.pair.candidate)) not in seen:
                seen.add(texts)
                found.append(made)
                turn += step + 1
                break
        if count is not None and len(found) == count:
            break
    return found


def is_held_out(source_id: str, share: float, seed: int) -> bool:
    """Whether a reference is held out: a function of its name, so that more reports move none from one side over."""
    digest = hashlib.sha256(f"{seed}/{source_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _makers(
    reports: Mapping[str, str], drafts: Mapping[str, str], pairings: Sequence[Pairing], drawn: random.Random, seed: int
) -> dict[Pairing, Callable[[str], ReportPair | None]]:
    keys = sorted(reports)
    places = {key: place for place, key in enumerate(keys)}
    nearest = _nearest(reports) if "nearest" in pairings else {}
    injector = RuleInjector(seed=seed)

    def paired(kind: Pairing, key: str, candidate: str | None) -> ReportPair | None:
        if candidate is None or not candidate.strip():
            return None
        return ReportPair(Pair(f"{key}_{kind}", candidate, reports[key]), kind, key)

    def other(key: str) -> ReportPair | None:
        place = drawn.randrange(len(keys) - 1)
        return paired("random", key, reports[keys[place + (place >= places[key])]])

    def permuted(key: str) -> ReportPair | None:
        letters: list[CategoryLetter] = drawn.sample(get_args(CategoryLetter), len(get_args(CategoryLetter)))
        # Changes to what is found, how large and where (a to d) come before those to comparisons.
        for letter in sorted(letters, key=lambda one: one in "ef"):
            for number in drawn.sample((1, 2, 3), 3):
                if made := injector.inject(key, reports[key], letter, number):
                    return ReportPair(Pair(made.sample_id, made.candidate, made.reference), "permuted", key, made)
        return None

    return {
        "random": other,
        "edited": lambda key: paired("edited", key, _edited(reports[key], drawn)),
        "drafted": lambda key: paired("drafted", key, drafts.get(key)),
        "nearest": lambda key: paired("nearest", key, reports[nearest[key]] if key in nearest else None),
        "permuted": permuted,
        "reworded": lambda key: paired("reworded", key, reword(reports[key], drawn)),
    }


def _edited(report: str, drawn: random.Random) -> str | None:
    document = ReportSentences.of(report)
    sentences = [document.text[begin:end] for begin, end in document.spans]
    if len(sentences) < 2:
        return None
    kept = drawn.sample(sentences, drawn.randint(1, len(sentences) - 1))
    return " ".join(kept)


def _nearest(reports: Mapping[str, str]) -> dict[str, str]:
    """The most similar other report of each, of those that are not the same text.

    A table of reports by words would not fit where there are many; every report is held by its words alone.
    """
    import numpy as np

    keys = sorted(reports)
    places: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        for word in set(reports[key].lower().replace(".", " ").replace(",", " ").split()):
            places.setdefault(word, []).append(place)
    lengths = np.zeros(len(keys))
    words: list[list[str]] = [[] for _ in keys]
    # A word of all reports tells none apart.
    rare = {word: np.array(there) for word, there in sorted(places.items()) if len(there) < len(keys)}
    for word, there in rare.items():
        lengths[there] += math.log(len(keys) / len(there)) ** 2
        for place in there:
            words[place].append(word)
    lengths = np.maximum(np.sqrt(lengths), 1e-9)
    found: dict[str, str] = {}
    for own, key in enumerate(keys):
        likeness = np.zeros(len(keys))
        for word in words[own]:
            likeness[rare[word]] += math.log(len(keys) / len(rare[word])) ** 2
        likeness /= lengths
        close = (
            np.argpartition(-likeness, _NEIGHBOURS)[:_NEIGHBOURS] if len(keys) > _NEIGHBOURS else np.arange(len(keys))
        )
        for place in sorted(close, key=lambda one: (-likeness[one], one)):
            if reports[keys[place]].split() != reports[key].split():
                found[key] = keys[place]
                break
    return found
