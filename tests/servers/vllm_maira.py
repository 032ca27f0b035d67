"""The command `maira` in the vLLM environment."""

import torchvision_operators  # noqa: F401

if __name__ == "__main__":
    from maira.cli.main import main

    main()
