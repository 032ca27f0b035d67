"""`--price IN,OUT`: what answers cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from radfact.errors import InputError


@dataclass(frozen=True, slots=True)
class Price:
    """Price of a million tokens in and out, in whatever currency."""

    tokens_in: float
    tokens_out: float

    def of(self, usage: Mapping[str, int]) -> float:
        """What the answers of an usage cost."""
        spent = usage.get("tokens_in", 0) * self.tokens_in + usage.get("tokens_out", 0) * self.tokens_out
        return spent / 1e6


def read_price(text: str | None) -> Price | None:
    """`--price IN,OUT`.

    Raises:
        InputError: it is not two numbers.
    """
    if text is None:
        return None
    try:
        price = Price(*(float(part) for part in text.split(",")))
    except (TypeError, ValueError):
        price = Price(-1, -1)
    if not all(math.isfinite(one) and one >= 0 for one in (price.tokens_in, price.tokens_out)):
        raise InputError(f"--price: expected IN,OUT, the price of a million tokens each, found '{text}'")
    return price
