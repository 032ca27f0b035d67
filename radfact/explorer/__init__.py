"""A local, read-only web page of results folders: list, runs, and two runs side by side."""
