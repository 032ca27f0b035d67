"""Split a sentence of several findings at its clauses, attachments, lists and predicates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from radfact.reader import vocabulary as vocab
from radfact.reader.clause import Clause, FactReader
from radfact.reader.lists import split_list
from radfact.reader.tokens import tokenize

_EVIDENCE = re.compile(
    r"(?:any )?(?:(?:\w+ )?(?:evidence|signs?|suggestion|findings?|indications?) (?:of|for|to suggest) )(?:any |an? )?"
)
_BEGINNING = re.compile(r".{400,}?(?= .{100})", re.DOTALL)
"""Beginning of a sentence that is longer than any of IU-Xray."""
_SIDES = {("left",): "left", ("right",): "right", ("left", "right"): "bilateral"}
_SplitFunction = Callable[[Clause], Iterator[list[str]]]
_NO_FINDING_AFTER_WITH = (
    vocab.ANAPHORIC_WORDS | vocab.DEVICE_PARTS | frozenset({"distal", "proximal", "contrast", "change", "respect"})
)


def divide_sentence(sentence: str, reader: FactReader) -> list[str]:
    """Divide a sentence into sentences of one finding each; no split loses a finding or its polarity."""
    pending, divided = [sentence], []
    while pending:
        text = pending.pop()
        parts = _divide_once(text, reader)
        if parts is None:
            divided.append(text)
        else:
            pending += [part.strip(" ,;") for part in reversed(parts)]
    return divided


def _divide_once(sentence: str, reader: FactReader) -> Sequence[str] | None:
    beginning = _BEGINNING.match(sentence)
    if beginning is not None:
        # The first clause is searched for in the beginning only, so that the time is linear in the clauses.
        parts = _first_kept(beginning[0], reader, (_split_clauses, _split_attachments))
        if parts is not None:
            return [*parts[:-1], parts[-1] + sentence[beginning.end() :]]
        return _first_kept(sentence, reader, (split_list,))
    return _first_kept(sentence, reader, (_split_clauses, _split_attachments, split_list, _split_predicates))


def _with_side(part: str, whole: str, reader: FactReader) -> str:
    """Return a part with the side that its finding has in the whole: "left effusion with adjacent LEFT atelectasis"."""
    own, before = reader.facts_in(part), reader.facts_in(whole)
    if not own or any(fact.places or not fact.present for fact in own):
        return part
    concepts = {fact.concept for fact in own}
    sides = {
        tuple(sorted({side for side, _ in fact.places if side is not None}))
        for fact in before
        if fact.concept in concepts and fact.present
    }
    side = _SIDES.get(sides.pop()) if len(sides) == 1 else None
    if side is None:
        return part
    start = next((token.begin for token in tokenize(part, reader.ontology) if "finding" in token.meanings), None)
    if start is None or not part[start].islower():
        return part
    sided = f"{part[:start]}{side} {part[start:]}"
    return sided if {fact.concept for fact in reader.facts_in(sided)} == concepts else part


def _first_kept(text: str, reader: FactReader, functions: Sequence[_SplitFunction]) -> Sequence[str] | None:
    clause = Clause(text, reader)
    if clause.separators or any(word.lower in ("with", "without") for word in clause.words):
        for split in functions:
            for parts in split(clause):
                if reader.are_kept_by(parts, text):
                    return [_with_side(part, text, reader) for part in parts]
    return None


def _split_clauses(clause: Clause) -> Iterator[list[str]]:
    for i in clause.separators:
        after = i + 1
        while clause.word(after) in vocab.SEPARATORS:
            after += 1
        if after >= len(clause.words) or i == clause.start:
            continue
        if _starts_clause(clause, i, after):
            yield [clause.span(0, i), clause.span(after, len(clause.words))]


def _starts_clause(clause: Clause, i: int, after: int) -> bool:
    word, following = clause.word(i), clause.word(after)
    if following in vocab.ANAPHORIC_WORDS | vocab.SUBORDINATORS:
        return False
    if word == ";":
        return True
    before = [v for v in clause.verbs if v < i]
    verb = next((v for v in clause.verbs if v >= after), None)
    if following == "no":
        is_complete = bool(before) or verb is None  # "No A and no B is seen" has one verb for both.
    elif following == "there" or _starts_verbless_clause(clause, after):
        is_complete = True
    elif verb is None or verb == after or following in vocab.PREPOSITIONS:
        return False
    else:
        is_complete = _is_subject(clause, i, after, verb, before)
    return is_complete and _is_statement(clause, i, bool(before))


def _starts_verbless_clause(clause: Clause, first: int) -> bool:
    """Return whether "lungs clear" or "vessels within normal limits" begins here."""
    end = next((s for s in clause.separators if s > first), len(clause.words))
    states = clause.phrase(first, end)[1:]
    comma = next((s for s in clause.separators if s > first and clause.word(s) == ","), len(clause.words))
    leading = clause.word(first) in vocab.NORMAL_STATES or "change" in clause.reader.kinds(clause.word(first))
    if leading and clause.word(first + 1) not in vocab.PREPOSITIONS and not any(v >= first for v in clause.verbs):
        return any("structure" in clause.reader.kinds(word) for word in clause.phrase(first, comma))
    ends = any(word in vocab.NORMAL_STATES for word in states[-1:]) or states[-3:] == ["within", "normal", "limits"]
    has_verb = any(first <= v < end for v in clause.verbs)
    return ends and not has_verb and bool(clause.reader.named_findings(clause.span(first, end)))


def _is_statement(clause: Clause, end: int, has_verb: bool) -> bool:
    if has_verb:
        return clause.word(end - 1) not in vocab.FINITE_VERBS | vocab.PREPOSITIONS | vocab.DETERMINERS
    states_first = clause.word(clause.start) in vocab.NEGATIONS | vocab.NORMAL_STATES
    states_last = clause.word(end - 1) in vocab.NORMAL_STATES | vocab.OBSERVATION_WORDS | {"limits"}
    return states_first or states_last or bool(clause.reader.named_findings(clause.span(0, end)))


def _is_subject(clause: Clause, i: int, after: int, verb: int, before: Sequence[int]) -> bool:
    inner = [s for s in clause.separators if after <= s < verb]
    subject = clause.phrase(after, verb)
    last = subject[inner[-1] + 1 - after :] if inner else subject
    dependent = (vocab.ANAPHORIC_WORDS | vocab.RELATIVES | vocab.SUBORDINATORS) - {"likely"}
    if not dependent.isdisjoint(subject) or not last or "with" in last:
        return False
    if all(word in vocab.DETERMINERS | vocab.DEVICE_PARTS or clause.reader.is_modifier(word) for word in last):
        return False  # "The tip" of the tube before, "the left" of the joints before.
    plural_verb = vocab.inflect_verb(clause.word(verb), False) != clause.word(verb)
    if inner and (clause.word(inner[-1]) not in vocab.CONJUNCTIONS or not plural_verb):
        return False
    if not before:
        if clause.word(clause.start) in vocab.NEGATIONS and clause.word(i) == ",":
            predicate = (word for word in clause.phrase(verb + 1, len(clause.words)) if word not in vocab.ADVERBS)
            return next(predicate, "") not in vocab.OBSERVATION_WORDS  # "No effusion, heart size is normal."
        return not inner and (subject[0] in vocab.DETERMINERS or clause.word(i) in vocab.CLAUSE_CONJUNCTIONS)
    if inner:
        # The verb before states a condition ("is normal"), not a finding ("shows a nodule").
        is_adjectival = not clause.is_transitive(before[-1]) and clause.word(before[-1] - 1) != "there"
        return is_adjectival or not vocab.is_plural(last)
    too_small = plural_verb and not vocab.is_plural(subject) and clause.word(i) in vocab.CONJUNCTIONS
    earlier = any(before[-1] < s < i for s in clause.separators)
    return not (too_small and earlier)


def _split_attachments(clause: Clause) -> Iterator[list[str]]:
    """Yield splits at "with" and "without": "lungs are clear without effusion", "edema with small effusions"."""
    for i, word in enumerate(clause.words):
        if word.lower not in ("with", "without") or i <= clause.start or i + 1 == len(clause.words):
            continue
        end = i - 1 if clause.word(i - 1) in (",", "and", "but") else i
        if end <= clause.start or not _is_statement(clause, end, any(v < end for v in clause.verbs)):
            continue
        if clause.word(i - 1) in vocab.NOT_BEFORE_WITH or any(v > i for v in clause.verbs):
            continue
        left = clause.span(0, end)
        if word.lower == "without" or clause.word(i + 1) == "no":
            rest = clause.span(i + 1, len(clause.words))
            rest = re.sub(r"^(?:any|no|an?)\s+", "", rest, flags=re.IGNORECASE)
            if clause.reader.named_findings(rest) or _EVIDENCE.match(rest.lower() + " "):
                yield [left, f"no {rest}"]
        elif _starts_finding(clause, i + 1, left):
            # A finding, or a state of a structure or its change: "stable mediastinal contours".
            phrase = clause.phrase(clause.start, end)
            has_state = any(word in vocab.NORMAL_STATES or "change" in clause.reader.kinds(word) for word in phrase)
            is_of_structure = any("structure" in clause.reader.kinds(word) for word in phrase)
            if clause.reader.named_findings(left) or (has_state and is_of_structure):
                yield [left, clause.span(i + 1, len(clause.words))]


def _starts_finding(clause: Clause, i: int, left: str) -> bool:
    stop = next((s for s in clause.separators if s > i), len(clause.words))
    noun = next((j for j in range(i + 1, stop) if clause.word(j) in vocab.PREPOSITIONS), stop)
    if not _NO_FINDING_AFTER_WITH.isdisjoint(clause.phrase(i, noun)):
        return False
    return bool(clause.reader.named_findings(clause.span(i, stop)) - clause.reader.named_findings(left))


def _split_predicates(clause: Clause) -> Iterator[list[str]]:
    """Yield splits into two predicates of one subject: "lungs are clear and well expanded"."""
    if not clause.verbs or clause.verbs[0] == clause.start:
        return
    verb = clause.verbs[0]
    for i in clause.separators:
        is_joint = i > verb + 1 and clause.word(i) not in (",", "or", "and/or")
        if not is_joint or "with" in clause.phrase(verb, i) or not _is_predicate(clause, i + 1):
            continue
        rest = clause.span(i + 1, len(clause.words))
        subject = clause.span(0, verb if clause.word(i + 1) in vocab.FINITE_VERBS else verb + 1)
        left, right = clause.span(0, i), f"{subject} {rest}"
        left_findings, right_findings = clause.reader.stated_findings(left), clause.reader.stated_findings(right)
        if left_findings and right_findings and left_findings.isdisjoint(right_findings):
            yield [left, right]


def _is_predicate(clause: Clause, i: int) -> bool:
    if clause.word(i) in vocab.FINITE_VERBS:
        return True
    following, states = range(i + 1, len(clause.words)), vocab.NORMAL_STATES | vocab.ADVERBS | {"well"}
    ends = (j for j in following if clause.word(j) in vocab.PREPOSITIONS | vocab.SEPARATORS)
    predicate = clause.phrase(i, next(ends, len(clause.words)))
    return bool(predicate) and all(word in states or clause.reader.is_qualifier(word) for word in predicate)
