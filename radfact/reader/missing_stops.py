"""Find where a sentence begins without a stop before it, as in dictations and in model outputs without punctuation."""

from __future__ import annotations

import re
from collections.abc import Sequence

from radfact.reader.ontology import Ontology
from radfact.reader.tokens import Token
from radfact.reader.vocabulary import DETERMINERS, FINITE_VERBS, PREPOSITIONS, SUBORDINATORS, is_adjective, word_set

RUNNING_TEXT, LINE, CAPITAL = range(3)
"""Evidence that a sentence begins: none, a line, a line with a capital letter."""

_PLACES = frozenset({"side", "zone", "place"})
_MODIFIERS = _PLACES | {"severity", "change", "detail", "uncertain", "probable"}
_STATES = frozenset({"normal", "clear", "abnormal", "state"})
_FINDINGS = frozenset({"finding", "absence"})
_NOUNS = _FINDINGS | {"structure"}
_OPEN_KINDS = frozenset(
    {"joining", "locative", "copula", "negation", "link", "uncertain", "probable", "severity", "otherwise"}
)
_CONTINUATIONS = frozenset({"joining", "locative", "copula", "boundary", "link", "seeing", "negation_after"})
_LAST_NOUNS = word_set("last_nouns")
_OPEN_PLACES = word_set("open_places")
_OPENING = _NOUNS | _MODIFIERS | _STATES
_OPENING_WORDS = frozenset({"no", "negative", "there", "a", "an", "the", "this", "these"})
_TRANSITIVE = word_set("transitive")
_LISTED = ("lung_abnormality", "pleural_abnormality", "vascular_abnormality", "opacity")
_ARTICLES = frozenset({"a", "an", "the", "this", "these"})


def find_missing_stops(tokens: Sequence[Token], text: str, ontology: Ontology) -> list[int]:
    """Return the tokens that begin a sentence without a stop before them: "heart normal | lungs clear"."""
    stops: list[int] = []
    begin = 0
    for i in range(1, len(tokens)):
        is_capital = tokens[i].words[0] in ("the", "there", "no") and text[tokens[i].begin :][:2].istitle()
        if tokens[i - 1].ends_clause or tokens[i - 1].words == (":",):
            begin = i
        elif tokens[i].meanings.keys().isdisjoint(_OPENING) and tokens[i].words[0] not in _OPENING_WORDS:
            continue
        elif text[tokens[i - 1].end : tokens[i].begin].isspace() and begins_sentence(
            tokens, begin, i, CAPITAL if is_capital else RUNNING_TEXT, ontology
        ):
            stops.append(i)
            begin = i
    return stops


def begins_sentence(tokens: Sequence[Token], begin: int, i: int, evidence: int, ontology: Ontology) -> bool:
    """Return whether a sentence can begin at token `i` after the statement that begins at `begin`."""
    last, first, begin = tokens[i - 1], tokens[i], max(begin, i - 80)
    if not re.match(r"\w", last.words[-1]) or (
        _is_open(last, first) and (evidence != CAPITAL or "side" not in last.meanings)
    ):
        return False
    if evidence == CAPITAL:
        return True
    is_stated, is_complete = _is_statement(tokens[begin:i]), _is_complete(tokens, begin, i)
    if first.words[0] in ("no", "negative", "there"):
        has_verb = any("copula" in token.meanings for token in tokens[i + 1 : i + 2])
        is_predicate = has_verb or first.words[0] != "there"
        return is_predicate and (is_stated or evidence == LINE or not {"change", "seeing"}.isdisjoint(last.meanings))
    if not is_complete and (_lacks_noun(last) or tokens[max(i - 2, begin)].joins):
        return False
    if _begins_clause(tokens, i) and (is_stated or evidence == LINE):
        return True
    if evidence == RUNNING_TEXT:
        return is_stated and is_complete and _begins_finding(tokens, begin, i, ontology)
    is_continued = first.meanings.keys() & _CONTINUATIONS or first.words[0] in PREPOSITIONS | {"versus", "vs"}
    return is_stated and not is_continued and (_is_statement(tokens[i:]) or len(tokens) > i + 2)


def _is_statement(tokens: Sequence[Token]) -> bool:
    kinds = {kind for token in tokens for kind in token.meanings if kind != "structure" or "zone" not in token.meanings}
    has_subject = "structure" in kinds or any("copula" in token.meanings for token in tokens[:1])
    return not kinds.isdisjoint(_FINDINGS) or (has_subject and any(map(_is_state, tokens)))


def _is_state(token: Token) -> bool:
    kinds = token.meanings.keys()
    return "severity" not in kinds and not kinds.isdisjoint((*_STATES, "change"))


def _is_open(token: Token, following: Token) -> bool:
    word, kinds = token.words[-1], token.meanings.keys()
    if "side" in kinds:
        return not following.meanings.keys().isdisjoint(("zone", "place", *_NOUNS, "detail"))
    if token.joins or word in FINITE_VERBS or word in DETERMINERS or word in PREPOSITIONS or word in _OPEN_PLACES:
        return True
    is_noun = not kinds.isdisjoint((*_NOUNS, "seeing", "normal", "clear", "change"))
    return not is_noun and not kinds.isdisjoint(_OPEN_KINDS)


def _lacks_noun(token: Token) -> bool:
    is_noun = "finding" in token.meanings or token.words[-1] in ("lung", "heart", "rib")
    is_detail = "detail" in token.meanings and len(token.words) == 1
    return not is_noun and (is_detail or is_adjective(token.words[-1]))


def _is_complete(tokens: Sequence[Token], begin: int, end: int) -> bool:
    """Return whether a statement can end before token `end`: after a finding, a predicate, the noun of a place."""
    token, before = tokens[end - 1], tokens[max(end - 2, begin)]
    kinds = token.meanings.keys()
    if kinds & (_FINDINGS | {"negation_after"}) or ("seeing" in kinds and before.words != (",",)):
        return True
    if kinds & (_STATES | {"change"}):
        has_subject = any(not _NOUNS.isdisjoint(other.meanings) for other in tokens[begin : end - 1])
        is_predicate = not {"copula", "structure", "finding", "severity", "change"}.isdisjoint(before.meanings)
        return has_subject and is_predicate and before.words[0] not in _TRANSITIVE
    is_noun = not kinds.isdisjoint((*_PLACES, "structure")) or token.words[-1] in _LAST_NOUNS
    return is_noun and not _lacks_noun(token) and not token.words[-1].endswith("ly")


def _begins_clause(tokens: Sequence[Token], i: int) -> bool:
    j = _skip_modifiers(tokens, i)
    subject = tokens[j:]
    if not subject or "structure" not in subject[0].meanings or _FINDINGS & subject[0].meanings.keys():
        return False
    for token in subject[1:]:
        kinds = token.meanings.keys()
        if kinds & _STATES or (kinds & {"copula", "change"} and "zone" not in subject[0].meanings):
            return True
        if "finding" in kinds or not (token.words[0] in ("and", "or", "the") or "structure" in kinds):
            return False
    return False


def _begins_finding(tokens: Sequence[Token], begin: int, i: int, ontology: Ontology) -> bool:
    j = _skip_modifiers(tokens, i)
    if j == len(tokens) or tokens[i].words[0] in SUBORDINATORS:
        return False
    meanings = tokens[j].meanings
    if "structure" in meanings and _FINDINGS.isdisjoint(meanings):
        return any(map(_is_state, tokens[i:j]))
    is_negated = any("negation" in token.meanings for token in tokens[begin:i])
    if is_negated and any("or" in token.words for token in tokens[j + 1 : j + 4]):
        return False
    if j > i:
        return not _FINDINGS.isdisjoint(meanings) and not (is_negated and tokens[i:j][0].words == ("large",))
    # "No consolidation effusion" is a list, "no lead fracture" one finding, and "no effusion cardiomegaly" neither.
    is_listed = any(ontology.is_a(meanings.get("finding", ""), general) for general in _LISTED)
    is_part = ontology.is_a(tokens[i - 1].meanings.get("finding", ""), "device")
    return is_negated and "finding" in meanings and not (is_listed or is_part)


def _skip_modifiers(tokens: Sequence[Token], i: int) -> int:
    for j in range(i, len(tokens)):
        kinds, word = tokens[j].meanings.keys(), tokens[j].words[-1]
        is_modifier = kinds & (_MODIFIERS | _STATES) and not (
            kinds & (_NOUNS | {"link"}) or (word.endswith("ing") and "state" in kinds)
        )
        if word in ("versus", "vs") or not (is_modifier or (j == i and word in _ARTICLES)):
            return j
    return len(tokens)
