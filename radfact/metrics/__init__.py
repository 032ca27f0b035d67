"""Metrics of reports with one protocol, loaded by name."""
