"""Settings of all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The time of an example depends on what else the machine does; no property is about speed.
settings.register_profile("full", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=20)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "full"))

# Weights in the cache of whoever runs the tests must not decide which metrics are available.
os.environ["RADFACT_WEIGHTS"] = str(Path(__file__).parent / "no-weights")

_SERVERS = Path(__file__).parent / "servers"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of real model servers by their folder."""
    for item in items:
        if item.path.is_relative_to(_SERVERS):
            item.add_marker(pytest.mark.server)
