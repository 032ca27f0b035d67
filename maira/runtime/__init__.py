"""What long-running jobs share: process groups, locks, signals, memory limits."""
