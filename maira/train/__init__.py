"""Training of MAIRA-2: configuration, data, parallelism, cost estimates and the training loop."""
