"""Ensembles of metrics fitted to expert ratings."""
