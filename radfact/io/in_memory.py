"""Pairs from Python values: pairs, objects in the published layout, or two lists of reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from radfact.errors import ErrorCode, InputError, describe
from radfact.io.pairs import parse_pairs, parse_report
from radfact.records import Pair, Pairs, Report, Sentence

PairLike = Pair | Mapping[str, Any]
"""A pair, or an object `{example_id, prediction, target}` as in the published files."""
ReportLike = Report | Sequence[Sentence | Mapping[str, Any]]
"""A narrative, or a list of sentences or of objects `{text, boxes, masks}`."""


def as_pairs(
    candidates: Iterable[PairLike] | Iterable[ReportLike], references: Iterable[ReportLike] | None = None
) -> Pairs:
    """Return valid pairs."""
    items = _list(candidates)
    if references is not None:
        targets = _list(references)
        if len(items) != len(targets):
            raise InputError(
                f"expected as many references as candidates, found {len(items)} candidates and "
                f"{len(targets)} references",
                code=ErrorCode.MISMATCH,
            )
        items = [Pair(str(i), *reports) for i, reports in enumerate(zip(items, targets, strict=True))]
    elif items and all(isinstance(item, Mapping) for item in items):
        return parse_pairs(items)
    seen: set[str] = set()
    pairs = []
    for item in items:
        if not isinstance(item, Pair):
            raise InputError(
                "expected pairs or objects {example_id, prediction, target}; only RadFact.score takes a list of "
                f"candidates and the list of their references; found {describe(item)}"
            )
        if item.sample_id in seen:
            raise InputError(f"duplicate id '{item.sample_id}'", code=ErrorCode.DUPLICATE, field="sample_id")
        seen.add(item.sample_id)
        candidate = _report(item.candidate, f"{item.sample_id}.candidate")
        reference = _report(item.reference, f"{item.sample_id}.reference")
        pairs.append(replace(item, candidate=candidate, reference=reference))
    if isinstance(candidates, Pairs):
        return replace(candidates, pairs=tuple(pairs))
    return Pairs(tuple(pairs), read=len(pairs))


def _list(values: Any) -> list[Any]:
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise InputError(f"expected a list of reports or of pairs, found {describe(values)}")
    return list(values)


def _report(value: Any, field: str) -> Report:
    """Return a report; sentences that are valid already are not checked again."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, Sentence) for item in value):
        return value
    return parse_report(value, field=field)
