"""Boxes without reports: box completion, phrase grounding, and their scores."""
