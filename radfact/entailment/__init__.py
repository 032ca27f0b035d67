"""Entailment: is a sentence true given another report, and which of its sentences say so."""

from radfact.entailment.judge import Failure, Judge, Question, Status, Verdict

__all__ = ["Failure", "Judge", "Question", "Status", "Verdict"]
