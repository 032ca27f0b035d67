"""Annotation of grounded reports (MAIRA-2, appendix G): export tasks, read results, apply the protocol."""
