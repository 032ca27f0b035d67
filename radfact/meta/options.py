"""What the commands and the library of meta-evaluation share."""

RULES = "rules"
"""What changes reports if no language model does: rules of this project, with the ontology of the offline judge."""
