"""The inputs of a study beside its frontal image, by the names under which they can be left out (paper 004, D.6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from data.study import Study
from radfact.errors import InputError

Input = Literal["prior", "lateral", "technique", "comparison", "indication"]
INPUTS: tuple[Input, ...] = get_args(Input)

_FIELDS: dict[Input, tuple[str, ...]] = {
    "prior": ("prior_frontal", "prior_report"),
    "lateral": ("lateral",),
    "technique": ("technique",),
    "comparison": ("comparison",),
    "indication": ("indication",),
}
"""Fields of a Study, the one that says whether the input is there first: without its image a prior cannot be shown."""


def parse_inputs(text: str) -> tuple[Input, ...]:
    """Inputs as a user writes them, "prior+comparison", in the order of `INPUTS` and each once.

    Raises:
        InputError: one has no such name.
    """
    given = [name.strip() for name in text.split("+")]
    if unknown := [name for name in given if name not in INPUTS]:
        raise InputError(f"no input is called '{unknown[0]}'; known are {', '.join(INPUTS)}, joined by +")
    return tuple(name for name in INPUTS if name in given)


def drop_inputs(study: Study, names: Sequence[Input]) -> Study:
    """The study as if it did not have these inputs; `prior` is the prior image and the prior report."""
    return study.model_copy(update=dict.fromkeys(field for name in names for field in _FIELDS[name]))


def has_inputs(study: Study, names: Sequence[Input]) -> bool:
    """Whether a study has all of these inputs; a prior is there if its image is."""
    return all(getattr(study, _FIELDS[name][0]) is not None for name in names)
