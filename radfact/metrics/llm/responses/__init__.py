"""Parsers of the responses of language models: strict on meaning, lenient on form.

A parser returns a value or raises `ValueError`; the message goes back to the model, which may then repair its response.
"""
