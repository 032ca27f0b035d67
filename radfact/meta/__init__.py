"""Is a metric any good: agreement with experts, errors put in on purpose, ReXamine-Global, ensembles of judges."""
