"""Training data: examples, packing, schedules, sample workers."""
