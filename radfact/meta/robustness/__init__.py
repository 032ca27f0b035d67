"""Robustness of metrics to reporting style (ReXamine-Global), and of judges to rewritten sentences."""
