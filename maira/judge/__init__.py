"""Language models trained as judges of reports: training data, configuration and training."""
