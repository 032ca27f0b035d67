import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maira.train.anomalies import WARMUP, WINDOW, AnomalyDetector
from maira.train.config.run_config import AnomalyConfig
from maira.train.data.schedule import SkippedSample

norms = st.floats(0.1, 10, allow_nan=False)


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)])
def test_non_finite_losses_and_norms_are_anomalies(loss: float, norm: float) -> None:
    assert AnomalyDetector(AnomalyConfig()).check(loss, norm) == "not_finite"


@given(st.lists(norms, min_size=WARMUP, max_size=2 * WINDOW), st.floats(1.5, 5))
def test_a_spike_is_a_norm_above_a_multiple_of_the_recent_mean(past: list[float], times: float) -> None:
    detector = AnomalyDetector(AnomalyConfig(spike=100))
    assert detector.check(1.0, 1.0) is None
    assert detector.check(1.0, 1e9) is None  # the first steps are never spikes
    detector = AnomalyDetector(AnomalyConfig(spike=100))
    for norm in past:
        assert detector.check(1.0, norm) is None
    mean = sum(past[-WINDOW:]) / len(past[-WINDOW:])
    for factor, expected in ((1.01, "spike"), (0.99, None)):
        resumed = AnomalyDetector(AnomalyConfig(spike=times))
        resumed.load_state_dict(detector.state_dict())
        assert resumed.check(1.0, mean * times * factor) == expected
        if expected:  # an anomaly does not enter the mean
            assert resumed.mean_norm == pytest.approx(mean)


def test_a_run_ends_when_too_many_steps_are_skipped_in_a_row() -> None:
    detector = AnomalyDetector(AnomalyConfig(not_finite="skip", most_skipped=2))
    actions = []
    for loss in (math.nan, math.nan, 1.0, math.nan, math.nan, math.nan):
        if kind := detector.check(loss, 1.0):
            actions.append(detector.record_step(kind, 1, loss, 1.0, [])["action"])
    assert actions == ["skip"] * 4 + ["stop"]


def test_too_many_distinct_unreadable_samples_end_a_run() -> None:
    config = AnomalyConfig(unreadable="skip", most_unreadable=2)
    detector, actions = AnomalyDetector(config), []
    for name in ("a", "b", "a", "b", "c"):
        actions.append(detector.record_skipped(1, [SkippedSample(name, 3, "cut")], "training", of=4)["action"])
        saved = detector.state_dict()
        detector = AnomalyDetector(config)
        detector.load_state_dict(saved)
    assert actions == ["skip"] * 4 + ["stop"]
