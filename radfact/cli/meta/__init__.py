"""The commands `radfact meta`."""
