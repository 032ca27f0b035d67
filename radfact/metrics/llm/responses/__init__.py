"""Parsers of responses, strict on meaning, lenient on form; the model may repair what a `ValueError` names."""
