"""Run configurations of training and their YAML files."""
