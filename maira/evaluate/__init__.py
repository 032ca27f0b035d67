"""Evaluation of reports: scoring, baselines, ablations and the tables that compare them."""
