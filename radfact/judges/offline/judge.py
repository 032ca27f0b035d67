"""The offline judge: entailment by rules over an ontology, deterministic and with its reasons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from radfact.errors import Failure
from radfact.judges.offline.clause_parser import CONCLUDED
from radfact.judges.offline.entailment_rules import Prover
from radfact.judges.offline.facts import Parsed, parse
from radfact.judges.offline.ontology import Ontology
from radfact.judges.offline.ontology_file import default_ontology, load_ontology
from radfact.judges.protocol import EntailmentQuery, Splitter, Verdict

VERSION = "2"
UNKNOWN_OVERLAP = 0.8
"""Share of the content words of a sentence without any known finding that one premise must hold."""
UNREAD_ALLOWED = 1
"""Unknown words of an otherwise understood hypothesis that need no counterpart."""
_NO_FINDING = "no known finding"
UNREAD_SHARE = 0.5
"""Share of sentences without any known finding from which on the judge is said to be of no use (`docs/metrics.md`)."""
MEASURED: dict[str, dict[str, float]] = {
    "the 67 published few-shot examples": {"n": 67, "accuracy": 0.985, "f1": 0.973},
    "the labelled judgements of this package": {"n": 252, "accuracy": 0.972, "f1": 0.970},
}
"""Accuracy, and F1 of the entailed class, as `radfact judge-check --judge offline` measures them on named sets."""

_NOTE = (
    "The figures of the offline judge are not comparable with RadFact-Llama3. Its accuracy: "
    + ", ".join(f"{figures['accuracy']:.1%} on {name}" for name, figures in MEASURED.items())
    + "."
)


class OfflineJudge:
    """A judge that needs no model: sentences are read into facts and compared by documented rules.

    A hypothesis is entailed when each of its facts is: the same or a more special finding is present (or the same or a
    more general one absent), and every detail of the hypothesis (side, zone, degree, change, character, position,
    size) is stated too. An unstated side or degree does not entail a stated one (paper 004, caption of listing 4).
    What is concluded ("consistent with") counts as stated, what is likely or possible does not, and what is certain is
    no case of what is possible. Sentences without any known finding must share their words with one premise.
    """

    name = "offline"

    def __init__(self, ontology: Path | str | None = None) -> None:
        """Take the packaged ontology, or the YAML file given.

        Raises:
            InputError: the ontology file is wrong, with its field.
        """
        self.ontology: Ontology = default_ontology() if ontology is None else load_ontology(ontology)
        self._ontology_file = ontology
        self._prover = Prover(self.ontology)
        self._planned = self._done = 0

    def judge(self, queries: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        """Return one verdict per query, in order."""
        self._planned += len(queries)
        verdicts: list[Verdict | Failure] = []
        for query in queries:
            verdicts.append(self.judge_one(query))
            self._done += 1
        return verdicts

    def judge_one(self, query: EntailmentQuery) -> Verdict:
        """The verdict on one question, with the rule and the terms behind it."""
        hypothesis = parse(query.hypothesis, self.ontology)
        premises = [parse(premise, self.ontology) for premise in query.premises]
        if not hypothesis.groups:
            return _by_words(hypothesis, premises)
        stated = [(frozenset((index,)), fact) for index, premise in enumerate(premises) for fact in premise.facts]
        if all(len(group) == 1 and group[0].doubt > CONCLUDED for group in hypothesis.groups):
            # "X is possible" says that it is not certain either.
            stated = [(found, fact) for found, fact in stated if fact.doubt > CONCLUDED]
        evidence: set[int] = set()
        reasons: list[str] = []
        for group in hypothesis.groups:
            found, why = self._prover.prove_group(group, stated)
            if not found:
                return Verdict("not_entailment", (), why)
            evidence |= found
            reasons.append(why)
        said = frozenset().union(*(premises[i].words for i in evidence))
        missing = (hypothesis.unread | hypothesis.required) - said
        if missing & hypothesis.required or len(missing) > UNREAD_ALLOWED:
            return Verdict("not_entailment", (), f"words without counterpart: {', '.join(sorted(missing))}")
        return Verdict("entailment", tuple(sorted(evidence)), "; ".join(dict.fromkeys(reasons)))

    def make_splitter(self) -> Splitter:
        """The offline splitter with the same ontology."""
        from radfact.judges.offline.splitter import OfflineSplitter

        return OfflineSplitter(self._ontology_file)

    def describe(self) -> dict[str, Any]:
        """Name, version, ontology hash and what the figures may be compared with."""
        return {
            "name": self.name,
            "version": VERSION,
            "ontology_version": self.ontology.version,
            "ontology_sha256": self.ontology.sha256,
            "measured": MEASURED,
            "note": _NOTE,
        }

    def usage(self) -> dict[str, int]:
        """Return the progress; all costs are zero."""
        costs = dict.fromkeys(("calls", "tokens_in", "tokens_out", "repairs", "failures", "cached"), 0)
        return {**costs, "planned": self._planned, "done": self._done}


def count_unread(reasons: Iterable[str | None]) -> int:
    """How many of this judge's reasons are of a sentence without a known finding, whose words alone were compared."""
    return sum(reason is not None and reason.startswith(_NO_FINDING) for reason in reasons)


def unread_note(unread: int, sentences: int) -> str | None:
    """What must be said of figures where much was not understood; None where most of it was.

    Args:
        unread: sentences that name no known finding.
        sentences: all of them.
    """
    if not sentences or unread / sentences < UNREAD_SHARE:
        return None
    return (
        f"{unread} of {sentences} sentences name no known finding: the offline judge reads English reports of chest "
        "X-rays, and of these its figures say little."
    )


def _by_words(hypothesis: Parsed, premises: Sequence[Parsed]) -> Verdict:
    """For a sentence without a known finding: one premise must hold nearly all of its words."""
    if not hypothesis.words:
        return Verdict("not_entailment", (), "no words to compare")
    asked = _stems(hypothesis)
    shares = [len(asked & _stems(premise)) / len(asked) for premise in premises]
    best = max(range(len(shares)), key=shares.__getitem__, default=None)
    if best is None or shares[best] < UNKNOWN_OVERLAP or _negations(hypothesis) != _negations(premises[best]):
        return Verdict("not_entailment", (), f"{_NO_FINDING}, and no premise with the same words")
    return Verdict("entailment", (best,), f"{_NO_FINDING}; {shares[best]:.0%} of its words in one premise")


def _stems(parsed: Parsed) -> frozenset[str]:
    """Words without their endings: "rotated" and "rotation" are one."""
    return frozenset(word[:5] for word in parsed.words)


def _negations(parsed: Parsed) -> bool:
    return not parsed.words.isdisjoint(("no", "not", "without", "never", "absent"))
