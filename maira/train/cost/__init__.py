"""What a training run costs: FLOPs, memory, time."""
