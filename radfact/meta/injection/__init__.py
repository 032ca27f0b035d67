"""Reports with errors injected by rules or by a language model."""
