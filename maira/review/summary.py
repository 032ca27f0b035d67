"""Statistics of a review: corrections, error types, clinical implications (MAIRA-2, figure 4) and agreement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import combinations
from statistics import mean, median
from typing import Any

from maira.review.changes import UNTYPED, ReviewedSentence, State
from maira.review.form import Form, Value
from maira.review.store import Store
from radfact.statistics.bootstrap import CountsFunction, summarize_counts
from radfact.statistics.clusters import Clusters
from radfact.statistics.rater_agreement import (
    Level,
    alpha_from_counts,
    coincidence_counts,
    confusion_counts,
    kappa_from_counts,
)

KINDS = ("edit", "deletion", "addition")
MEASURES: dict[str, tuple[str, Level]] = {
    "needs_correction": ("sentence needs correction", "nominal"),
    "severity": ("severity of a correction", "ordinal"),
    "worst_severity": ("worst implication of a report", "ordinal"),
    "corrections": ("corrections per report", "interval"),
}
"""Labels and levels of what readers of corrections may agree on, in addition to the fields of a form."""


def worst_names(form: Form) -> dict[int | None, str]:
    """Return names of `State.worst_severity`."""
    return {-1: "no correction", **form.severities}


def _levels(form: Form) -> dict[str, Level]:
    """Return the level of measurement of what readers may agree on: corrections and fields."""
    fields: dict[str, Level] = {field.name: field.level for field in form.fields if field.type != "text"}
    return {**{name: level for name, (_, level) in MEASURES.items()}, **fields} if form.edits else fields


def summarize(store: Store, readers: Sequence[str]) -> dict[str, Any]:
    """Return statistics of each reader and their agreement, as JSON values."""
    names = [store.registered_name(reader) for reader in readers]
    return {
        "studies": len(store.drafts),
        "readers": {name: _summarize_reader(store, name) for name in names},
        "agreement": _kappas(store, names),
    }


def _summarize_reader(store: Store, reader: str) -> dict[str, Any]:
    reviews = store.counted_reviews(reader)
    finished = [review.state for _, review in reviews if review.state.done]
    assigned = (store.drafts[number - 1] for number in store.study_list(reader))
    summarize_states = _summarize_corrections if store.form.edits else _summarize_answers
    return {
        "assigned": sum(not draft.is_training for draft in assigned),
        "finished": len(finished),
        **summarize_states(finished, store.form),
        "comments": {draft.name: review.state.comment for draft, review in reviews if review.state.comment},
    }


def _summarize_answers(finished: Sequence[State], form: Form) -> dict[str, Any]:
    """Return the number of each answer to a choice, and the distribution of numbers, by field."""
    units = [unit for state in finished for unit in state.units(form)]
    answers: dict[str, dict[str, float | None]] = {}
    for field in form.fields:
        values = [value for unit in units if (value := unit.answers.get(field.name)) is not None]
        if field.type == "number":
            answers[field.name] = _distribution([value for value in values if isinstance(value, int)])
        elif field.type == "choice":
            counts: Counter[Value] = Counter(values)
            answers[field.name] = {str(value): counts[value] for value in field.places(values)}
    return {"answers": answers}


def _summarize_corrections(finished: Sequence[State], form: Form) -> dict[str, Any]:
    corrections = [correction for state in finished for correction in state.corrections]
    drafted = [len(state.drafted) for state in finished]
    kinds = Counter(item.kind for item in corrections)
    counts = [len(state.corrections) for state in finished]
    by_count: dict[int, Counter[str]] = {count: Counter() for count in sorted(counts)}
    for count, state in zip(counts, finished, strict=True):
        by_count[count][worst_names(form)[state.worst_severity]] += 1
    return {
        "sentences": sum(drafted),
        "sentences_per_report": _distribution(drafted),
        "unchanged_sentences": sum(drafted) - kinds["edit"] - kinds["deletion"],
        "corrections": len(corrections),
        "kinds": {kind: kinds[kind] for kind in KINDS},
        "boxes_only": sum(item.kind == "edit" and not item.is_edited for item in corrections),
        "reports_without_corrections": counts.count(0),
        "reports_with_fewer_than_two": sum(count < 2 for count in counts),
        "corrections_per_corrected_report": _distribution([count for count in counts if count]),
        # Figure 4, panels A, B and C.
        "reports_by_corrections": {str(count): dict(worst) for count, worst in by_count.items()},
        "error_types": _by_kind(corrections, lambda rated: rated.error_group),
        "error_types_in_full": dict(Counter(item.error_type or UNTYPED for item in corrections)),
        "severities": _by_kind(corrections, lambda rated: form.severities[rated.severity]),
    }


def _distribution(values: Sequence[int]) -> dict[str, float | None]:
    functions: dict[str, Callable[[Sequence[int]], float]] = {"median": median, "mean": mean, "min": min, "max": max}
    return {name: function(values) if values else None for name, function in functions.items()}


def _by_kind(
    corrections: Sequence[ReviewedSentence], name_of: Callable[[ReviewedSentence], str]
) -> dict[str, dict[str, int]]:
    """Return name -> kind of correction -> number, the most frequent first, untyped last."""
    pairs = Counter((name_of(item), item.kind) for item in corrections)
    totals = Counter(name_of(item) for item in corrections)
    names = sorted(totals, key=lambda name: (name == UNTYPED, -totals[name], name))
    return {name: {kind: pairs[name, kind] for kind in KINDS} for name in names}


_Rated = tuple[str, Sequence[float]]
"""A sample and the ratings of an item in it."""


def _kappas(store: Store, readers: Sequence[str]) -> list[dict[str, Any]]:
    """Return the agreement of each pair of readers on the studies that both finished."""
    reviews = {name: store.counted_reviews(name) for name in readers}
    levels = _levels(store.form)
    results = []
    for pair in combinations(reviews, 2):
        both = [
            (draft.sample_id, (first.state, second.state))
            for (draft, first), (_, second) in zip(*(reviews[name] for name in pair), strict=True)
            if first.state.done and second.state.done
        ]
        rated = _collect_ratings(store.form, both)
        groups: dict[str, list[_Rated]] = {}
        for name in sorted({item.error_group for _, states in both for state in states for item in state.corrections}):
            for sample, states in both:
                present = [float(any(item.error_group == name for item in state.corrections)) for state in states]
                groups.setdefault(name, []).append((sample, present))
        measures = {name: _kappa(rated[name], level) for name, level in levels.items() if name != "corrections"}
        error_types = {name: _kappa(items) for name, items in groups.items()}
        results.append({"readers": list(pair), "studies": len(both), **measures, "error_types": error_types})
    return results


def krippendorff_alphas(store: Store, readers: Sequence[str]) -> list[dict[str, Any]]:
    """Return Krippendorff's alpha of all readers on the studies that they finished, over all arms and for each arm."""
    if len(readers) < 2:
        return []
    reviews = [store.counted_reviews(name) for name in readers]
    arms = list(dict.fromkeys(draft.arm for draft in store.drafts))
    results = []
    for arm in [None, *(arms if len(arms) > 1 else ())]:
        studies = [
            (same[0][0].sample_id, [review.state for _, review in same if review.state.done])
            for same in zip(*reviews, strict=True)
            if arm in (None, same[0][0].arm)
        ]
        rated = _collect_ratings(store.form, studies)
        for name, level in _levels(store.form).items():
            alpha = _coefficient("alpha", rated[name], coincidence_counts, partial(alpha_from_counts, level=level))
            results.append({"arm": arm, "measure": name, "level": level, **alpha})
    return results


def _collect_ratings(form: Form, studies: Iterable[tuple[str, Sequence[State]]]) -> dict[str, list[_Rated]]:
    """Return the items of each measure, from the samples with the states of the readers who finished them."""
    rated: dict[str, list[_Rated]] = {name: [] for name in _levels(form)}
    answers: dict[str, list[tuple[str, list[Value]]]] = {name: [] for name in rated.keys() & form.by_name.keys()}
    for sample, states in studies:
        units: list[Sequence[ReviewedSentence | State]] = [states]
        if not form.is_whole:
            units = list(zip(*(state.drafted for state in states), strict=True))
        for same in units:
            rating = [unit for unit in same if not form.edits or getattr(unit, "is_correction", False)]
            for name, items in answers.items():
                items.append((sample, [item.answers.get(name) for item in rating]))
            if form.edits:
                rated["needs_correction"].append((sample, [float(sentence in rating) for sentence in same]))
        if form.edits:
            worst = [float(severity) for state in states if (severity := state.worst_severity) is not None]
            rated["worst_severity"].append((sample, worst))
            rated["corrections"].append((sample, [float(len(state.corrections)) for state in states]))
    for name, items in answers.items():
        places = form.by_name[name].places(value for _, values in items for value in values)
        rated[name] = [(sample, [places[value] for value in values if value is not None]) for sample, values in items]
    return rated


def _kappa(items: Iterable[_Rated], level: Level = "nominal") -> dict[str, Any]:
    return _coefficient("kappa", items, confusion_counts, partial(kappa_from_counts, is_nominal=level == "nominal"))


def _coefficient(
    name: str,
    items: Iterable[_Rated],
    count: Callable[..., Any],
    coefficient: Callable[[Sequence[float]], CountsFunction],
) -> dict[str, Any]:
    rated = [(sample, ratings) for sample, ratings in items if len(ratings) > 1]
    categories = sorted({rating for _, ratings in rated for rating in ratings})
    counts = count([ratings for _, ratings in rated], categories)
    clusters = Clusters("sample_id", samples := [sample for sample, _ in rated], samples)
    summary = summarize_counts(counts, {name: coefficient(categories)}, clusters=clusters)[name]
    return {name: summary.point, "low": summary.low, "high": summary.high, "n": len(rated)}
