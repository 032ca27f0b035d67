"""So that `python -m maira` and `accelerate launch -m maira` work as the command does."""

from maira.cli.main import main

# Processes that spawn others have them import this file again.
if __name__ == "__main__":
    main()
