"""Messages of libraries for their authors."""

from __future__ import annotations

import logging

import pytest

from maira.runtime.library_messages import leave_out_messages


@pytest.mark.parametrize(("name", "text"), [("torch.utils.cpp_extension", "No CUDA runtime is found, using X")])
def test_they_are_left_out_and_others_are_not(name: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    leave_out_messages()
    logger = logging.getLogger(name)
    logger.warning(text)
    logger.warning("something else")
    assert caplog.messages == ["something else"]
