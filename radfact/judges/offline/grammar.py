"""A sentence of several findings divided along its coordination: clauses, attachments, predicates, lists."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from radfact.judges.offline import vocabulary as w
from radfact.judges.offline.clause import Clause, Facts
from radfact.judges.offline.lists import lists

_EVIDENCE = re.compile(
    r"(?:any )?(?:(?:\w+ )?(?:evidence|signs?|suggestion|findings?|indications?) (?:of|for|to suggest) )(?:any |an? )?"
)
_NO_FINDING_AFTER_WITH = (
    w.LINKS | w.PARTS_OF_DEVICES | frozenset({"distal", "proximal", "contrast", "change", "respect"})
)


def divide(sentence: str, facts: Facts) -> list[str]:
    """Divide a sentence into sentences of one finding each, or leave it whole.

    Grammar proposes where to divide; the ontology has to find every finding of the sentence again in the parts, with
    its polarity, or the division is not made. Words that a list shares ("no", "there is", the predicate) are repeated
    with each member, and the verb agrees with it; nothing else is added.

    Args:
        sentence: one sentence, without its full stop.
        facts: what the ontology reads.

    Returns:
        The parts in reading order, without capital or full stop.
    """
    clause = Clause(sentence, facts)
    if clause.separators or not clause.lowers.isdisjoint(("with", "without")):
        for way in (_clauses, _attachments, lists, _predicates):
            for parts in way(clause):
                if facts.kept_by(parts, sentence):
                    return [piece for part in parts for piece in divide(part.strip(" ,;"), facts)]
    return [sentence]


def _clauses(c: Clause) -> Iterator[list[str]]:
    """Two clauses, each with a verb or a negation of its own."""
    for i in c.separators:
        after = i + 1
        while c.lower(after) in w.SEPARATORS:
            after += 1
        if after >= len(c.words) or i == c.start:
            continue
        if _clause_begins(c, i, after):
            yield [c.span(0, i), c.span(after, len(c.words))]


def _clause_begins(c: Clause, i: int, after: int) -> bool:
    word, following = c.lower(i), c.lower(after)
    if following in w.LINKS | w.SUBORDINATORS:
        return False
    if word == ";":
        return True
    before = [v for v in c.verbs if v < i]
    if following == "no":
        return _is_statement(c, i, bool(before)) and not _shared_verb_follows(c, after)
    if following == "there":
        return _is_statement(c, i, bool(before))
    if _is_state_without_verb(c, after) and _is_statement(c, i, bool(before)):
        return True
    verb = next((v for v in c.verbs if v >= after), None)
    if verb is None or verb == after or following in w.PREPOSITIONS:
        return False
    return _is_statement(c, i, bool(before)) and _is_subject(c, i, after, verb, before)


def _is_state_without_verb(c: Clause, first: int) -> bool:
    """Whether "lungs clear" or "vessels within normal limits" begins here."""
    end = next((s for s in c.separators if s > first), len(c.words))
    states = c.phrase(first, end)[1:]
    comma = next((s for s in c.separators if s > first and c.lower(s) == ","), len(c.words))
    leading = c.lower(first) in w.STATES or c.facts.is_change(c.lower(first))
    if leading and c.lower(first + 1) not in w.PREPOSITIONS and not any(v >= first for v in c.verbs):
        return any(c.facts.is_structure(word) for word in c.phrase(first, comma))
    ends = any(word in w.STATES for word in states[-1:]) or states[-3:] == ["within", "normal", "limits"]
    return ends and not any(first <= v < end for v in c.verbs) and bool(c.facts.named(c.span(first, end)))


def _is_statement(c: Clause, end: int, has_verb: bool) -> bool:
    """Whether the words before `end` say something by themselves."""
    if has_verb:
        return c.lower(end - 1) not in w.FINITE | w.PREPOSITIONS | w.DETERMINERS
    first = c.lower(c.start)
    last = c.lower(end - 1)
    if first in w.NEGATIONS or first in w.STATES or last in w.STATES | w.OBSERVED | {"limits"}:
        return True
    return bool(c.facts.named(c.span(0, end)))


def _shared_verb_follows(c: Clause, after: int) -> bool:
    """Whether "no A and no B is seen" goes on with a verb for both."""
    return any(v > after for v in c.verbs) and not any(v < after for v in c.verbs)


def _is_subject(c: Clause, i: int, after: int, verb: int, before: Sequence[int]) -> bool:
    """Whether the words from `after` to `verb` are the whole subject of a clause that begins there."""
    inner = [s for s in c.separators if after <= s < verb]
    subject = c.phrase(after, verb)
    last = subject[inner[-1] + 1 - after :] if inner else subject
    if set(subject) & (w.LINKS | w.RELATIVES | w.SUBORDINATORS) - {"likely"} or last[:1] == [] or "with" in last:
        return False
    if all(word in w.DETERMINERS | w.PARTS_OF_DEVICES or c.facts.is_modifier(word) for word in last):
        return False  # "The tip" of the tube before, "the left" of the joints before.
    plural_verb = w.agreeing(c.lower(verb), False) != c.lower(verb)
    if inner and (c.lower(inner[-1]) not in w.CONJUNCTIONS or not plural_verb):
        return False
    if not before:
        if c.lower(c.start) in w.NEGATIONS and c.lower(i) == ",":
            return not _is_observed(c, verb)  # "No effusion, heart size is normal."
        return not inner and (subject[0] in w.DETERMINERS or c.lower(i) in w.TURNS)
    if inner:
        return not w.is_plural(last) or _is_adjectival(c, before[-1])
    too_small = plural_verb and not w.is_plural(subject) and c.lower(i) in w.CONJUNCTIONS
    earlier = any(before[-1] < s < i for s in c.separators)
    return not (too_small and earlier)


def _is_observed(c: Clause, verb: int) -> bool:
    """Whether the verb only says that something is seen."""
    after = verb + 1
    while c.lower(after) in w.ADVERBS:
        after += 1
    return c.lower(after) in w.OBSERVED


def _is_adjectival(c: Clause, verb: int) -> bool:
    """Whether the verb says a state ("is normal"), not what there is ("shows a nodule")."""
    return not c.is_transitive(verb) and c.lower(verb - 1) != "there"


def _attachments(c: Clause) -> Iterator[list[str]]:
    """A statement and what goes with it: "lungs are clear without effusion", "edema with small effusions"."""
    for i, word in enumerate(c.words):
        if word.lower not in ("with", "without") or i <= c.start or i + 1 == len(c.words):
            continue
        end = i - 1 if c.lower(i - 1) in (",", "and", "but") else i
        if end <= c.start or not _is_statement(c, end, any(v < end for v in c.verbs)):
            continue
        if c.lower(i - 1) in w.NOT_ATTACHED or any(v > i for v in c.verbs):
            continue
        left = c.span(0, end)
        if word.lower == "without" or c.lower(i + 1) == "no":
            rest = c.span(i + 1, len(c.words))
            rest = re.sub(r"^(?:any|no|an?)\s+", "", rest, flags=re.IGNORECASE)
            if c.facts.named(rest) or _EVIDENCE.match(rest.lower() + " "):
                yield [left, f"no {rest}"]
        elif _finding_follows(c, i + 1, left) and (c.facts.named(left) or _is_structure_in_state(c, end)):
            yield [left, c.span(i + 1, len(c.words))]


def _is_structure_in_state(c: Clause, end: int) -> bool:
    """Whether "stable mediastinal contours" ends before `end`: a state, or its change, of a structure."""
    phrase = c.phrase(c.start, end)
    says = any(word in w.STATES or c.facts.is_change(word) for word in phrase)
    return says and any(c.facts.is_structure(word) for word in phrase)


def _finding_follows(c: Clause, i: int, left: str) -> bool:
    """Whether a finding that `left` does not name yet begins at `i`."""
    stop = next((s for s in c.separators if s > i), len(c.words))
    noun = next((j for j in range(i + 1, stop) if c.lower(j) in w.PREPOSITIONS), stop)
    if not _NO_FINDING_AFTER_WITH.isdisjoint(c.phrase(i, noun)):
        return False
    return bool(c.facts.named(c.span(i, stop)) - c.facts.named(left))


def _predicates(c: Clause) -> Iterator[list[str]]:
    """Two predicates of one subject, where each states a finding: "lungs are clear and well expanded"."""
    if not c.verbs or c.verbs[0] == c.start:
        return
    verb = c.verbs[0]
    for i in c.separators:
        if (
            i <= verb + 1
            or c.lower(i) in (",", "or", "and/or")
            or "with" in c.phrase(verb, i)
            or not _is_predicate(c, i + 1)
        ):
            continue
        rest = c.span(i + 1, len(c.words))
        subject = c.span(0, verb if c.lower(i + 1) in w.FINITE else verb + 1)
        left, right = c.span(0, i), f"{subject} {rest}"
        one, other = c.facts.stated(left), c.facts.stated(right)
        if one and other and one.isdisjoint(other):
            yield [left, right]


def _is_predicate(c: Clause, i: int) -> bool:
    """Whether the words from `i` say a state of the subject, or begin with a verb of their own."""
    if c.lower(i) in w.FINITE:
        return True
    end = next((j for j in range(i + 1, len(c.words)) if c.lower(j) in w.PREPOSITIONS | w.SEPARATORS), len(c.words))
    return i < end and all(
        word in w.STATES | w.ADVERBS | {"well"}
        or w.is_adjective(word)
        or word.endswith("ly")
        or c.facts.is_modifier(word)
        for word in c.phrase(i, end)
    )
