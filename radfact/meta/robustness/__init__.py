"""ReXamine-Global: how metrics respond to reporting style."""
