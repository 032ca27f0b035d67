"""Support of long-running jobs: process groups, signals, subprocesses, start-up."""
