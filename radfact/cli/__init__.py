"""The command `radfact`."""
