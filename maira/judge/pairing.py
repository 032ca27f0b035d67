"""Pairs of reports for teachers to label: ways to find or make a candidate.

Source: GREEN, section 3.1.1.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from maira.judge.rewording import reword
from radfact.error_categories import CategoryLetter
from radfact.errors import ErrorCode, InputError
from radfact.meta.injection.records import InjectedReport, ReportSentences
from radfact.meta.injection.rules import RuleInjector
from radfact.records import Pair, Report

Pairing = Literal["random", "edited", "drafted", "nearest", "permuted", "reworded"]
"""i) any other report; ii) the report with sentences removed and shuffled; iii) a model's draft; iv) the most similar
other report; v) the report with findings changed; and, not in the paper, the report in other words. For iv the paper
uses BERTScore, for v RadGraph's entities; here they are the TF-IDF cosine and the rules of `radfact meta inject`."""
PAIRINGS: tuple[Pairing, ...] = get_args(Pairing)
_NEIGHBORS = 50
"""Number of most similar reports that are searched for one with another text."""


@dataclass(frozen=True, slots=True)
class ReportPair:
    """A pair of reports.

    Attributes:
        pair: candidate and reference.
        pairing: how the candidate was found or made.
        source_id: name of the reference.
        injected: the errors in the candidate, if it was made by injection.
    """

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
    """Make pairs of all kinds; each report is the reference of one pair, and pairs of texts are unique.

    Args:
        reports: references by name.
        pairings: the kinds, among which the reports are distributed evenly.
        drafts: a model's candidates by the reference's name, for "drafted".
        seed: of all draws.
        count: maximum number of pairs; None for as many as there are reports.

    Raises:
        InputError: there are fewer than two reports, or no drafts for "drafted".
    """
    if len(reports) < 2:
        raise InputError(f"expected at least two reports, found {len(reports)}", code=ErrorCode.EMPTY_INPUT)
    usable = {key: text for key, text in (drafts or {}).items() if key in reports}
    if "drafted" in pairings and not usable:
        raise InputError(
            "pairs of the kind 'drafted' need a model's drafts of these reports",
            code=ErrorCode.MISSING_OPTION,
            field="drafts",
        )
    rng = random.Random(f"{seed}/pairs")
    order = rng.sample(sorted(reports), len(reports))
    makers = _makers(reports, usable, pairings, rng, seed)
    seen = set[tuple[Report, Report]]()
    pairs: list[ReportPair] = []
    turn = 0
    for key in order:
        # A report without a candidate of the kind whose turn it is may have one of the next kind.
        for step in range(len(pairings)):
            kind = pairings[(turn + step) % len(pairings)]
            made = makers[kind](key)
            if made is not None and (texts := (made.pair.reference, made.pair.candidate)) not in seen:
                seen.add(texts)
                pairs.append(made)
                turn += step + 1
                break
        if count is not None and len(pairs) == count:
            break
    return pairs


def is_held_out(source_id: str, share: float, seed: int) -> bool:
    """Return whether a reference is held out.

    This depends on its name only, so that additional reports move none to the other split.

    Args:
        source_id: name of the reference.
        share: of references that are held out.
        seed: of the draw.
    """
    digest = hashlib.sha256(f"{seed}/{source_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _makers(
    reports: Mapping[str, str], drafts: Mapping[str, str], pairings: Sequence[Pairing], rng: random.Random, seed: int
) -> dict[Pairing, Callable[[str], ReportPair | None]]:
    keys = sorted(reports)
    places = {key: place for place, key in enumerate(keys)}
    nearest = _nearest(reports) if "nearest" in pairings else {}
    injector = RuleInjector(seed=seed)

    def paired(kind: Pairing, key: str, candidate: str | None) -> ReportPair | None:
        if candidate is None or not candidate.strip():
            return None
        return ReportPair(Pair(f"{key}_{kind}", candidate, reports[key]), kind, key)

    def random_pair(key: str) -> ReportPair | None:
        place = rng.randrange(len(keys) - 1)
        return paired("random", key, reports[keys[place + (place >= places[key])]])

    def permuted(key: str) -> ReportPair | None:
        letters: list[CategoryLetter] = rng.sample(get_args(CategoryLetter), len(get_args(CategoryLetter)))
        # Changes of findings, size and place (a to d) come before changes of comparisons.
        for letter in sorted(letters, key=lambda letter: letter in "ef"):
            for number in rng.sample((1, 2, 3), 3):
                if made := injector.inject(key, reports[key], letter, number):
                    return ReportPair(Pair(made.sample_id, made.candidate, made.reference), "permuted", key, made)
        return None

    return {
        "random": random_pair,
        "edited": lambda key: paired("edited", key, _edited(reports[key], rng)),
        "drafted": lambda key: paired("drafted", key, drafts.get(key)),
        "nearest": lambda key: paired("nearest", key, reports[nearest[key]] if key in nearest else None),
        "permuted": permuted,
        "reworded": lambda key: paired("reworded", key, reword(reports[key], rng)),
    }


def _edited(report: str, rng: random.Random) -> str | None:
    document = ReportSentences.of(report)
    sentences = [document.text[begin:end] for begin, end in document.spans]
    if len(sentences) < 2:
        return None
    remaining = rng.sample(sentences, rng.randint(1, len(sentences) - 1))
    return " ".join(remaining)


def _nearest(reports: Mapping[str, str]) -> dict[str, str]:
    """Return the most similar report with another text for each report.

    A matrix of reports by words would not fit in memory for many reports, so each is compared by its own words.
    """
    import numpy as np

    keys = sorted(reports)
    places: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        for word in set(reports[key].lower().replace(".", " ").replace(",", " ").split()):
            places.setdefault(word, []).append(place)
    lengths = np.zeros(len(keys))
    words: list[list[str]] = [[] for _ in keys]
    # A word of all reports has no weight.
    occurrences = {word: np.array(indices) for word, indices in sorted(places.items()) if len(indices) < len(keys)}
    for word, indices in occurrences.items():
        lengths[indices] += math.log(len(keys) / len(indices)) ** 2
        for place in indices:
            words[place].append(word)
    lengths = np.maximum(np.sqrt(lengths), 1e-9)
    nearest: dict[str, str] = {}
    for number, key in enumerate(keys):
        similarity = np.zeros(len(keys))
        for word in words[number]:
            similarity[occurrences[word]] += math.log(len(keys) / len(occurrences[word])) ** 2
        similarity /= lengths
        closest = np.arange(len(keys))
        if len(keys) > _NEIGHBORS:
            closest = np.argpartition(-similarity, _NEIGHBORS)[:_NEIGHBORS]
        for other in sorted(closest, key=lambda place: (-similarity[place], place)):
            if reports[keys[other]].split() != reports[key].split():
                nearest[key] = keys[other]
                break
    return nearest
