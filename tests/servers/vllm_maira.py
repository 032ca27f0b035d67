"""The command `maira` in vLLM's environment of the tests."""

from __future__ import annotations

import sys

import torchvision_operators  # noqa: F401

if __name__ == "__main__":
    from maira.cli.main import main

    sys.argv[0] = "maira"
    main()
