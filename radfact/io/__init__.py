"""Readers and writers of report pairs, COCO, CSV and JSON Lines."""
