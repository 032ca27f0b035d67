"""Pairs of reports for teachers to label: ways to find or make a candidate (GREEN, section 3.1.1)."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from maira.judge.rewording import reword
from radfact.error_categories import CategoryLetter
from radfact.errors import ErrorCode, InputError
from radfact.meta.injection.records import InjectedReport, ReportSentences
from radfact.meta.injection.rules import RuleInjector
from radfact.records import Pair, Report

Pairing = Literal["random", "edited", "drafted", "nearest", "permuted", "reworded", "shuffled", "shortened", "mixed"]
"""i) any other report; ii) the report with sentences removed and shuffled; iii) a model's draft; iv) the most similar
other report; v) the report with findings changed; and, not in the paper, the report in other words. For iv the paper
uses BERTScore, for v RadGraph's entities; here they are the TF-IDF cosine and the rules of `radfact meta inject`.

Of section 5.1, for modalities without a model of reports: the report with sentences shuffled, or removed, and as many
sentences of other reports at random."""
PAIRINGS: tuple[Pairing, ...] = get_args(Pairing)
SENTENCE_PAIRINGS = PAIRINGS[-3:]
_LETTERS: tuple[CategoryLetter, ...] = get_args(CategoryLetter)
_NEIGHBORS = 50
"""Number of most similar reports that are searched for one with another text."""


@dataclass(frozen=True, slots=True)
class ReportPair:
    """Candidate and reference, how the candidate was found or made, the name of the reference, and injected errors."""

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
    """Make unique pairs of some kinds, among which the reports are distributed evenly, each the reference of one."""
    if len(reports) < 2:
        raise InputError(f"expected at least two reports, found {len(reports)}", code=ErrorCode.EMPTY_INPUT)
    drafts = {key: text for key, text in (drafts or {}).items() if key in reports}
    if "drafted" in pairings and not drafts:
        message = "pairs of the kind 'drafted' need a model's drafts of these reports"
        raise InputError(message, code=ErrorCode.MISSING_OPTION, field="drafts")
    rng = random.Random(f"{seed}/pairs")
    order = rng.sample(sorted(reports), len(reports))
    make = _maker(reports, drafts, pairings, rng, seed)
    seen = set[tuple[Report, Report]]()
    pairs: list[ReportPair] = []
    turn = 0
    for key in order:
        # A report without a candidate of the kind whose turn it is may have one of the next kind.
        for step in range(len(pairings)):
            made = make(pairings[(turn + step) % len(pairings)], key)
            if made is not None and (texts := (made.pair.reference, made.pair.candidate)) not in seen:
                seen.add(texts)
                pairs.append(made)
                turn += step + 1
                break
        if count is not None and len(pairs) == count:
            break
    return pairs


def is_held_out(source_id: str, share: float, seed: int) -> bool:
    """Return whether a reference is held out; by its name only, so that more reports move none to the other split."""
    digest = hashlib.sha256(f"{seed}/{source_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _maker(
    reports: Mapping[str, str], drafts: Mapping[str, str], pairings: Sequence[Pairing], rng: random.Random, seed: int
) -> Callable[[Pairing, str], ReportPair | None]:
    """Return a function that makes the pair of a kind with a reference, or None if there is none."""
    keys = sorted(reports)
    places = {key: place for place, key in enumerate(keys)}
    nearest = _nearest(reports) if "nearest" in pairings else {}
    injector = RuleInjector(seed=seed)

    def other(key: str) -> str:
        place = rng.randrange(len(keys) - 1)
        return reports[keys[place + (place >= places[key])]]

    candidates: dict[str, Callable[[str], str | None]] = {
        "random": other,
        "edited": lambda key: _edit(reports[key], "edited", rng),
        "shuffled": lambda key: _edit(reports[key], "shuffled", rng),
        "shortened": lambda key: _edit(reports[key], "shortened", rng),
        "mixed": lambda key: " ".join(rng.choice(_sentences(other(key)) or [""]) for _ in _sentences(reports[key])),
        "drafted": drafts.get,
        "nearest": nearest.get,
        "reworded": lambda key: reword(reports[key], rng),
    }

    def make(kind: Pairing, key: str) -> ReportPair | None:
        if kind != "permuted":
            text = candidates[kind](key)
            return ReportPair(Pair(f"{key}_{kind}", text, reports[key]), kind, key) if text and text.strip() else None
        # Changes of findings, size and place (a to d) come before changes of comparisons.
        for letter in sorted(rng.sample(_LETTERS, len(_LETTERS)), key=lambda letter: letter in "ef"):
            for number in rng.sample((1, 2, 3), 3):
                if made := injector.inject(key, reports[key], letter, number):
                    return ReportPair(Pair(made.sample_id, made.candidate, made.reference), kind, key, made)
        return None

    return make


def _edit(report: str, kind: Pairing, rng: random.Random) -> str | None:
    """Return the report with sentences shuffled, removed, or both (`edited`); None if it has only one."""
    sentences = _sentences(report)
    if len(sentences) < 2:
        return None
    count = len(sentences) if kind == "shuffled" else rng.randint(1, len(sentences) - 1)
    kept = rng.sample(range(len(sentences)), count)
    if kind == "shortened":
        kept.sort()
    elif kept == sorted(kept) and kind == "shuffled":
        kept.reverse()
    return " ".join(sentences[place] for place in kept)


def _sentences(report: str) -> list[str]:
    document = ReportSentences.of(report)
    return [document.text[begin:end] for begin, end in document.spans]


def _nearest(reports: Mapping[str, str]) -> dict[str, str]:
    """Return the most similar other text for each report, by TF-IDF cosine, without a matrix of reports by words."""
    import numpy as np

    keys = sorted(reports)
    places: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        for word in set(reports[key].lower().replace(".", " ").replace(",", " ").split()):
            places.setdefault(word, []).append(place)
    lengths = np.zeros(len(keys))
    words: list[list[tuple[float, Any]]] = [[] for _ in keys]
    for _, indices in sorted(places.items()):
        if len(indices) == len(keys):
            continue  # a word of all reports has no weight
        weighted = math.log(len(keys) / len(indices)) ** 2, np.array(indices)
        lengths[indices] += weighted[0]
        for place in indices:
            words[place].append(weighted)
    lengths = np.maximum(np.sqrt(lengths), 1e-9)
    nearest: dict[str, str] = {}
    for key, own in zip(keys, words, strict=True):
        similarity = np.zeros(len(keys))
        for weight, indices in own:
            similarity[indices] += weight
        similarity /= lengths
        closest = np.arange(len(keys))
        if len(keys) > _NEIGHBORS:
            closest = np.argpartition(-similarity, _NEIGHBORS)[:_NEIGHBORS]
        ranked = sorted(closest, key=lambda place: (-similarity[place], place))
        texts = (reports[keys[place]] for place in ranked)
        if (text := next((text for text in texts if text.split() != reports[key].split()), None)) is not None:
            nearest[key] = text
    return nearest
