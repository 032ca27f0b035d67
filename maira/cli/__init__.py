"""The command `maira`."""
