"""Means by arm, differences and non-inferiority against statsmodels and values by hand."""

import math
from itertools import product

import numpy as np
import pytest
from review_files import CASES

from maira.review.effects import Estimate, Rating, estimate_effects
from maira.review.reader_study import Margin, check_noninferiority
from radfact.optional import load_module

pytest.importorskip("statsmodels")

ARMS = ("one", "two")


def crossed(readers: int = 3, samples: int = 12, effect: float = 1.0, seed: int = 0) -> list[Rating]:
    """Every reader reads every sample in both arms; the readings vary by reader, sample and draft."""
    generator = np.random.default_rng(seed)
    by_reader, by_sample = generator.normal(0, 1, readers), generator.normal(0, 1, samples)
    by_draft = generator.normal(0, 0.5, (samples, 2))
    rated = []
    for r, s, a in product(range(readers), range(samples), (0, 1)):
        value = by_reader[r] + by_sample[s] + by_draft[s, a] + effect * a + generator.normal(0, 0.5)
        rated.append(Rating(value, ARMS[a], f"r{r}", f"s{s}"))
    return rated


def test_a_paired_difference_of_one_reader_is_that_of_the_pairs() -> None:
    """With one reader the random effect is the study alone: mean and standard error are those of the paired t test."""
    rated = crossed(readers=1, samples=20)
    values = np.array([rating.value for rating in rated]).reshape(20, 2)
    paired = values[:, 1] - values[:, 0]
    interval = load_module("scipy.stats").norm.interval(0.95, paired.mean(), load_module("scipy.stats").sem(paired))
    difference = estimate_effects(rated, ARMS)[ARMS]
    assert difference.method == "mixed model (study)"
    assert (difference.n, difference.readers, difference.samples) == (40, 1, 20)
    assert difference.value == pytest.approx(paired.mean())
    assert (difference.low, difference.high) == pytest.approx(interval, abs=0.001)


def test_a_crossed_design_has_all_random_effects() -> None:
    rated = crossed()
    values = np.array([rating.value for rating in rated])
    # In a balanced design the estimates are the means.
    estimates = estimate_effects(rated, ARMS)
    means = [estimates[(arm,)].value for arm in ARMS]
    assert means == pytest.approx([values[0::2].mean(), values[1::2].mean()], abs=1e-6)
    difference = estimates[ARMS]
    assert difference.method == "mixed model (reader, study, draft, reader × arm)"
    assert (difference.low or math.nan) < 1 < (difference.high or math.nan)


def test_without_repeated_readings_studies_are_drawn() -> None:
    rated = [Rating(value, "one", "r1", f"s{place}") for place, value in enumerate((1.0, 2.0, 4.0, math.nan))]
    effect = estimate_effects(rated, ["one"])[("one",)]
    assert effect.method.startswith("bootstrap of studies: no reader and no study")
    assert effect.value == pytest.approx(7 / 3)
    assert effect.n == 3
    assert 1 <= (effect.low or math.nan) < 7 / 3


def test_arms_that_differ_equally_in_all_studies_have_no_interval() -> None:
    """An interval without width would show non-inferiority by any margin."""
    rated = [Rating(float(arm == "two"), arm, reader, sample) for arm in ARMS for reader in "ab" for sample in "uvwxyz"]
    difference = estimate_effects(rated, ARMS)[ARMS]
    assert (difference.value, difference.low, difference.method) == (1, None, "no interval: the same in all studies")


def test_equal_or_missing_values_have_no_interval() -> None:
    same = estimate_effects([Rating(0.0, arm, f"r{arm}", sample) for sample in ("s1", "s2") for arm in ARMS], ARMS)
    assert (same[ARMS].value, same[ARMS].low) == (0, None)
    missing = estimate_effects([Rating(1.0, "one", "r1", "s1"), Rating(2.0, "one", "r1", "s2")], ARMS)
    assert (missing[("two",)].value, missing[("two",)].n, missing[ARMS].value) == (None, 0, None)


@pytest.mark.parametrize(("name", "low", "high", "verdict"), CASES["non-inferiority"])
def test_the_interval_is_compared_with_the_margin(
    name: str, low: float | None, high: float | None, verdict: str | None
) -> None:
    difference = Estimate(0.0, low, high, "", 10, 2, 5)
    assert check_noninferiority(difference, Margin(name, 0.5, "before the readings")) == verdict
