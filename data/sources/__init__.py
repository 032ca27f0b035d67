"""Readers of the archives that people have: each turns a folder on disk into an `Archive`, without opening an image."""
