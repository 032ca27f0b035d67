"""The offline judge and splitter: an ontology, a sentence parser and entailment rules; no language model."""
