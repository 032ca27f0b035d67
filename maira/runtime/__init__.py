"""Support of long-running jobs: process groups, locks, signals, subprocesses, start-up."""
