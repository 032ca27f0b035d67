"""Few-shot examples of VERT from expert ratings (VERT, section 4.1.3, appendices D.5, D.6 and D.8)."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from radfact.error_categories import ERROR_CATEGORIES, CategoryLetter
from radfact.errors import ErrorCode, option_error
from radfact.meta.datasets.ratings import COUNTS, RatedReport, RatingSet, check_scale
from radfact.metrics.llm.vert import Shot
from radfact.records import Pair, digest, narrative
from radfact.statistics.rater_agreement import round_half_up


def ids_without(ratings: RatingSet, pairs: Sequence[Pair]) -> set[str]:
    """Return the ids of a set without pairs to test on: those with the same reference, id or cluster."""
    ids, labels = {pair.sample_id for pair in pairs}, {pair.cluster for pair in pairs if pair.cluster is not None}
    if ratings.numbered:
        ids, labels = set(), set()  # the rows of another file have the same positions
    references = {digest("", pair.reference) for pair in pairs}
    return {
        pair.sample_id
        for pair in ratings.pairs
        if pair.sample_id not in ids and pair.cluster not in labels and digest("", pair.reference) not in references
    }


def rated_shots(ratings: RatingSet, scale: tuple[float, float] | None = None) -> list[Shot]:
    """Return an example of each report with known ratings: mean counts by category, and the target from 0 to 1."""
    has_counts = ratings.has_categories
    if scale is None and not has_counts:
        message = f"expected the lowest and highest '{ratings.target}', since errors are not counted by category"
        raise option_error(message, "scale", ErrorCode.MISSING_OPTION)
    worst, best = check_scale(scale or (0.0, 1.0))[:: 1 if ratings.better[ratings.target] == "higher" else -1]
    shots, by_text = list[Shot](), dict[str, list[RatedReport]]()
    for sample in ratings.samples:
        by_text.setdefault(digest(sample.pair.candidate, sample.pair.reference), []).append(sample)
    for same in by_text.values():
        # Each sample may have the ratings of another reader.
        pooled = {
            name: {f"{index} {by}": n for index, of in enumerate(same) for by, n in of.ratings.get(name, {}).items()}
            for name in ratings.better
        }
        sample = replace(same[0], ratings=pooled)
        names = {kind: [f"{kind}_{letter}" for letter in ERROR_CATEGORIES] for kind in COUNTS[1:] if has_counts}
        means = {kind: list(map(sample.mean, of_kind)) for kind, of_kind in names.items()}
        score = None if scale is None else (sample.mean(ratings.target) - worst) / (best - worst)
        reference, candidate = narrative(sample.pair.reference).strip(), narrative(sample.pair.candidate).strip()
        if math.isnan(sum(map(sum, means.values()), score or 0.0)) or not (reference and candidate):
            continue
        if score is not None and not 0 <= score <= 1:
            found = f"{sample.mean(ratings.target):g} ({sample.pair.sample_id})"
            raise option_error(f"expected ratings from {worst:g} (worst) to {best:g} (best), found {found}", "scale")
        counts = {kind: dict(zip(ERROR_CATEGORIES, map(round_half_up, of), strict=True)) for kind, of in means.items()}
        fields = {"id": sample.pair.sample_id, "reference": reference, "candidate": candidate, "score": score}
        shots.append(Shot.model_validate({**fields, **counts}))
    return shots


def one_per_category(shots: Sequence[Shot], *, seed: int = 42) -> list[Shot]:
    """Return an example of each category: with errors of it, significant if possible, and the fewest others."""
    order = random.Random(seed).sample(list(shots), len(shots))
    errors = {shot.id: Counter(shot.significant) + Counter(shot.insignificant) for shot in order}
    letters: tuple[CategoryLetter, ...] = get_args(CategoryLetter)
    having = {letter: [shot for shot in order if errors[shot.id][letter]] for letter in letters}
    chosen: dict[CategoryLetter, Shot] = {}
    for letter in sorted(letters, key=lambda letter: len(having[letter])):
        left = [shot for shot in having[letter] if shot not in chosen.values()]
        ranks = [(not shot.significant[letter], errors[shot.id].total() - errors[shot.id][letter]) for shot in left]
        if left:
            chosen[letter] = left[ranks.index(min(ranks))]
    return [chosen[letter].model_copy(update={"category": letter}) for letter in letters if letter in chosen]
