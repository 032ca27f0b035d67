"""Meta-evaluation: agreement with experts, errors put in on purpose, ReXamine-Global, ensembles of judges."""
