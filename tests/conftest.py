"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes is the machine's affair, which may have much else to do; no test is of speed.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
