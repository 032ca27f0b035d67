"""Agreement of metrics with expert ratings, corrections and preferences."""
