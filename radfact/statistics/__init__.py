"""Bootstrap, significance tests, correlation."""
