"""So that `python -m maira` and `accelerate launch -m maira` work as the command does."""

from maira.cli import main

main()
