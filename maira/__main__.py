"""Entry point of `python -m maira`, `torchrun -m maira` and `accelerate launch -m maira`."""

from maira.cli.main import main

# Spawned processes import this file too.
if __name__ == "__main__":
    main()
