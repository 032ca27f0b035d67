"""So that `python -m radfact` works as the command does."""

from radfact.cli.main import main

# Processes that spawn others have them import this file again.
if __name__ == "__main__":
    main()
