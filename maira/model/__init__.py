"""The MAIRA-2 model: configuration, prompts, processor, output grammar and parser, checkpoint layouts."""
