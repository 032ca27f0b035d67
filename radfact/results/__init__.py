"""The results folder: schema, writer, reader, comparison, export."""
