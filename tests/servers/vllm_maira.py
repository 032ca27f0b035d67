"""The command `maira` in the vLLM environment."""

from __future__ import annotations

import torchvision_operators  # noqa: F401

if __name__ == "__main__":
    from maira.cli.main import main

    main()
