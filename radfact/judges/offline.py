"""The offline judge: deterministic entailment by rules over an ontology, with reasons."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from radfact.errors import Failure
from radfact.judges.protocol import EntailmentQuery, Splitter, Verdict
from radfact.languages import Language
from radfact.reader.entailment_rules import EntailmentChecker, PremiseFacts, Support
from radfact.reader.facts import ParsedSentence, common_facts, parse_sentence
from radfact.reader.ontology import Ontology
from radfact.reader.ontology_file import OntologyReader
from radfact.reader.tokens import CONCLUDED, MAX_CHARACTERS

UNKNOWN_OVERLAP = 0.8
"""Share of the content words of a sentence without a known finding that one premise must contain."""
MAX_UNREAD_WORDS = 1
"""Unknown words of an otherwise understood hypothesis that no premise must contain."""
UNREAD_SHARE = 0.5
"""Share of sentences without a known finding from which on results carry a warning (`docs/metrics.md`)."""
MEASURED: dict[str, dict[str, float]] = {
    "the 67 published few-shot examples (version 5 was tuned on them)": {"n": 67, "accuracy": 1.0, "f1": 1.0},
    "the labeled judgments of this package": {"n": 252, "accuracy": 0.976, "f1": 0.974},
}
"""Accuracy, and F1 of the entailed class, as measured by `radfact judge-check --judge offline`."""

UNREAD = "sentences without a known finding"
UNREAD_MEANING = "They state no finding of the offline judge's ontology; the judge compares their words."
_NO_FINDING = "The sentence names no known finding"
_ERRORS = {
    r"states no .*, which contradicts": "denied in {other}",
    r"states ((?!left).)*\bright\b((?!left).)*, but not (on|in) the left": "wrong side",
    r"states ((?!right).)*\bleft\b((?!right).)*, but not (on|in) the right": "wrong side",
    r"states ((?!left|right|each|both).)*, but not on the": "no side in {other}",
    r"states (.*) \(.*(mild|moderate|severe)\), which contradicts \1 \(.*(mild|moderate|severe)\)": "other severity",
    r", but (not|limits this to) the degree": "other severity",
    r", but (not|limits this to) the (size|change|detail)": r"other \2",
    r", but not (on|in|throughout|everywhere)": "other location",
    r"does not contain the words": "other words",
}
"""What is wrong with a sentence, by a pattern of the reason; `other` is the other report."""
_NOTE = (
    "The scores of the offline judge are not comparable with RadFact-Llama3. Its accuracy: "
    + ", ".join(f"{scores['accuracy']:.1%} on {name}" for name, scores in MEASURED.items())
    + "."
)


class OfflineJudge(OntologyReader):
    """A judge without a model: sentences are parsed into facts, and documented rules compare the facts.

    A hypothesis is entailed if each of its facts is: the same or a more specific finding is present (or the same or a
    more general one absent), and every detail of the hypothesis (side, zone, degree, change, character, position,
    size) is stated as well. An unstated side or degree does not entail a stated one (MAIRA-2, caption of listing 4).
    A conclusion ("consistent with") counts as stated, a likely or possible finding does not, and a certain finding
    does not entail a possible one. Sentences without a known finding must share their words with one premise
    that agrees in negation, side, zone, degree, change and number.

    A sentence that is not entailed is contradicted if a premise contradicts one of its facts
    (`EntailmentChecker.contradict`), and neutral otherwise. The evidence of a contradiction is the contradicting
    premises.
    """

    version = "7"

    def __init__(self, ontology: Path | str | None = None) -> None:
        """Load the ontology of a YAML file; by default the packaged one."""
        super().__init__(ontology)
        self._ontology_file = ontology
        self._checker = EntailmentChecker(self.ontology)
        self._planned = self._done = 0

    def judge(self, queries: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        self._planned += len(queries)
        verdicts: list[Verdict | Failure] = []
        for query in queries:
            is_readable = all(map(Language.ENGLISH.matches, (query.hypothesis, " ".join(query.premises))))
            verdicts.append(self.judge_one(query) if is_readable else Failure(Language.ENGLISH.skip_reason))
            self._done += 1
        return verdicts

    def judge_one(self, query: EntailmentQuery) -> Verdict:
        """Return the verdict on one query, with the rule and the terms behind it."""
        hypothesis = parse_sentence(query.hypothesis, self.ontology)
        premises, premise_facts = _read_premises(query.premises, self.ontology)
        evidence, why = self._check(hypothesis, premises, premise_facts)
        if evidence:
            return Verdict("entailment", tuple(sorted(evidence)), why, "entailment")
        contradicting, contradiction = self._checker.contradict(hypothesis, premises)
        if contradicting:
            return Verdict("not_entailment", tuple(sorted(contradicting)), contradiction, "contradiction")
        return Verdict("not_entailment", (), why, "neutral")

    def _check(
        self, hypothesis: ParsedSentence, premises: list[ParsedSentence], premise_facts: PremiseFacts
    ) -> Support:
        """Return the premises that entail the hypothesis, and the reason."""
        if not hypothesis.groups:
            return _compare_words(hypothesis, premises)
        # "X is possible" also states that X is not certain.
        if all(len(group) == 1 and group[0].doubt > CONCLUDED for group in hypothesis.groups):
            premise_facts = [(indices, fact) for indices, fact in premise_facts if fact.doubt > CONCLUDED]
        evidence: set[int] = set()
        reasons: list[str] = []
        for group in hypothesis.groups:
            indices, reason = self._checker.check_alternatives(group, premise_facts)
            if not indices:
                return frozenset(), reason
            evidence |= indices
            reasons.append(reason)
        missing = hypothesis.unread_words | hypothesis.required_words
        missing = missing.difference(*(premises[index].words for index in evidence))
        if missing & hypothesis.required_words or len(missing) > MAX_UNREAD_WORDS:
            return frozenset(), f"The other report does not contain the words: {', '.join(sorted(missing))}."
        return frozenset(evidence), " ".join(dict.fromkeys(reasons))

    def make_splitter(self) -> Splitter:
        from radfact.judges.offline_splitter import OfflineSplitter

        return OfflineSplitter(self._ontology_file)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "measured": MEASURED, "note": _NOTE}

    def usage(self) -> dict[str, int]:
        return {**super().usage(), "planned": self._planned, "done": self._done}


def name_error(reason: str, other: str) -> str | None:
    """Return in a few words what is wrong with a sentence by the reason of this judge; None if it is another reason."""
    matches = ((re.search(pattern, reason), error) for pattern, error in _ERRORS.items())
    return next((match.expand(error).format(other=other) for match, error in matches if match), None)


def count_unread(reasons: Iterable[str | None]) -> int:
    """Return how many reasons of this judge are of a sentence without a known finding."""
    return sum(reason is not None and reason.startswith(_NO_FINDING) for reason in reasons)


def unread_note(unread: int, sentences: int) -> str | None:
    """Return a warning if many of the sentences have no known finding."""
    if not sentences or unread / sentences < UNREAD_SHARE:
        return None
    limits = "the offline judge reads English reports of chest X-rays, and its scores of other texts mean little"
    return f"{unread} of {sentences} {UNREAD}: {limits}."


@lru_cache(maxsize=16)
def _read_premises(premises: tuple[str, ...], ontology: Ontology) -> tuple[list[ParsedSentence], PremiseFacts]:
    """Return premises, parsed, and their facts with the index of each; cached for the next hypotheses of a report."""
    sentences = [parse_sentence(premise, ontology) for premise in premises]
    facts = [(*sentence.facts, *common_facts(sentence, ontology)) for sentence in sentences]
    return sentences, [(frozenset((index,)), fact) for index, group in enumerate(facts) for fact in group]


def _compare_words(hypothesis: ParsedSentence, premises: Sequence[ParsedSentence]) -> Support:
    """Judge a sentence without a known finding: one premise must contain nearly all of its words."""
    if not hypothesis.words:
        return frozenset(), f"{_NO_FINDING}: it contains no words, or more than {MAX_CHARACTERS:,} characters."
    # The words without their endings: "rotated" and "rotation" are equal.
    stems, *others = ({word[:5] for word in sentence.words} for sentence in (hypothesis, *premises))
    shares = [
        len(stems & other) / len(stems) if _attributes_agree(hypothesis, premise) else 0.0
        for premise, other in zip(premises, others, strict=True)
    ]
    best = max(range(len(shares)), key=shares.__getitem__, default=None)
    if best is None or shares[best] < UNKNOWN_OVERLAP:
        return frozenset(), f"{_NO_FINDING}, and no sentence of the other report has the same words."
    why = f"{_NO_FINDING}; one sentence of the other report has {shares[best]:.0%} of its words."
    return frozenset((best,)), why


def _attributes_agree(hypothesis: ParsedSentence, premise: ParsedSentence) -> bool:
    """Return whether a premise has all attributes; a denial must be as broad: "no rod" entails "no left rod"."""
    strict, loose = (premise, hypothesis) if hypothesis.is_negated else (hypothesis, premise)
    return strict.is_negated == loose.is_negated and strict.attributes <= loose.attributes
