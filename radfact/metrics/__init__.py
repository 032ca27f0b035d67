"""Metrics of reports behind one protocol, made by name when they are asked for."""
