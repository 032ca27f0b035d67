"""HTML pages and plots."""
