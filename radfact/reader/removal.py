"""Remove what is not a finding: technique, recommendations, comparisons, interpretations, headings."""

from __future__ import annotations

import re
from collections.abc import Collection

from radfact.reader import vocabulary as vocab
from radfact.reader.clause import FactReader
from radfact.reader.facts import Fact
from radfact.reader.tokens import CERTAIN, CONCLUDED

RECOMMENDATION, INTERPRETATION, SPECULATION = "recommendation", "interpretation", "speculation"
COMPARISON, TECHNIQUE, NO_STATEMENT = "comparison without a finding", "technique", "no statement about the image"
LINKED = "depends on a removed sentence"
"""Reasons for a removal."""

_HEADING = re.compile(r"^[A-Za-z][^:.;,()]{0,60}:\s+")
_CATEGORY = re.compile(r"/|\b(?:changes|devices|lines|tubes|catheters|structures)\b", re.IGNORECASE)
"""Words of headings that state no finding, whatever they name."""
_CONNECTIVE = vocab.pattern("connective")
_CIRCUMSTANCE = vocab.pattern("circumstance")
_RECOMMENDATION = vocab.pattern("recommendation")
_TECHNIQUE = vocab.pattern("technique")
_ON_THE_IMAGE = vocab.pattern("on_the_image")
_COMPARISON = vocab.pattern("comparison")
_ANAPHORA = vocab.pattern("anaphora")
_LINK = vocab.pattern("back_reference")
_SIZE = re.compile(r"\b\d+(?:\.\d+)?\s*(?:mm|cm)\b", re.IGNORECASE)
# An interpretation ends at another finding, the verb, or the place of what is seen.
_RESUMED = vocab.pattern("resumed", re.NOFLAG)
_INTERPRETATION = vocab.pattern("interpretation")
_APPOSED = re.compile(r",? (?:probable|possible|presumed|likely|possibly|probably|presumably|perhaps)\b", re.IGNORECASE)
_DIAGNOSIS = vocab.pattern("diagnosis")
_UNSURE = vocab.pattern("unsure")
_MARK = re.compile(r"^(?:x{2,}|_+|[\d:/.-]+|[ap]\.?m|\W+)$", re.IGNORECASE)


def remove_connective(sentence: str) -> str:
    """Remove connectives such as "However,"."""
    return _CONNECTIVE.sub("", sentence)


def remove_circumstance(sentence: str, reader: FactReader) -> str:
    """Remove "Due to rotation," unless it names a finding other than low lung volumes."""
    match = _CIRCUMSTANCE.match(sentence)
    if match is None or reader.named_findings(match[0]) - {"low_lung_volumes"}:
        return sentence
    return remove_connective(sentence[match.end() :])


def remove_heading(sentence: str, reader: FactReader) -> str:
    """Remove "Lungs and pleura:" if the rest has the same findings without it; "Lungs: Clear" stays."""
    match = _HEADING.match(sentence)
    if match is None or vocab.REMARK_HEADING.match(sentence):
        return sentence
    rest = sentence[match.end() :]
    words = {word.lower for word in vocab.split_words(match[0])}
    if words & (vocab.FINITE_VERBS | vocab.NEGATIONS | vocab.PREPOSITIONS | vocab.DETERMINERS):
        return sentence
    is_kept = _CATEGORY.search(match[0]) is not None or reader.are_kept_by([rest], sentence)
    has_verb = any(word.lower in vocab.FINITE_VERBS for word in vocab.split_words(rest)[1:])
    return rest if has_verb or (is_kept and reader.named_findings(rest)) else sentence


def remove_interpretation(sentence: str, reader: FactReader) -> str:
    """Remove "..., which may represent pneumonia" after the finding that it interprets, if no finding is lost."""
    for match in _INTERPRETATION.finditer(sentence):
        before, cut = sentence[: match.start()], match[0]
        unspecific = re.search(r"\b(?:likely|possibl[ey]|probabl[ey]|presum(?:ed|ably)|perhaps)\b", cut) is not None
        described = reader.named_findings(before) or (len(before.split()) > 3 and not _ANAPHORA.match(before))
        if not described or (unspecific and not reader.named_findings(cut) and not _DIAGNOSIS.search(cut)):
            continue
        remainder = (before + sentence[match.end() :]).strip(" ,;")
        lost = {concept for concept, _ in reader.stated_findings(sentence) - reader.stated_findings(remainder)}
        concluded = {f.concept for f in reader.facts_in(sentence) if f.present and f.doubt == CONCLUDED}
        if not all(map(_is_diagnosis, concluded - reader.named_findings(remainder))):
            continue  # "consistent with atelectasis" states a finding of the image, as in the published examples
        hedged = _UNSURE.search(cut) is not None and not re.search(r",|\band\b|\bwith\b", cut.strip(" ,"))
        if lost and not (hedged and lost <= reader.named_findings(cut)):
            continue
        # An opacity may be a nodule, not a pneumothorax.
        if _APPOSED.match(cut) and not all(
            _is_diagnosis(doubted)
            or any(reader.ontology.common_ancestor((doubted, stated)) for stated in reader.named_findings(before))
            for doubted in reader.named_findings(cut)
        ):
            continue  # "left rib fracture, possible pneumothorax": two findings
        placed = {(fact.concept, fact.places) for fact in reader.facts_in(sentence)}
        remaining = {(fact.concept, fact.places) for fact in reader.facts_in(remainder)}
        if {concept for concept, _ in remaining - placed} & {concept for concept, places in placed if places}:
            continue  # "opacity in the left base, possible nodule at the right apex"
        if remainder.split()[-1].lower() not in vocab.PREPOSITIONS | vocab.FINITE_VERBS | vocab.SEPARATORS:
            return remainder
    return sentence


def remove_recommendation(sentence: str, reader: FactReader) -> str:
    """Remove "..., CT is recommended" after a finding."""
    match = _RECOMMENDATION.search(sentence)
    if match is None:
        return sentence
    joints = [m.start() for m in re.finditer(r",|;|\band\b|\bfor which\b", sentence[: match.start()])]
    remainder = sentence[: joints[-1]].strip(" ,;") if joints else ""
    return remainder if reader.named_findings(remainder) else sentence


def is_linked(sentence: str, reader: FactReader) -> bool:
    """Return whether the sentence adds change, degree or size to the one before, as "This has increased." does."""
    if _LINK.match(sentence) is None or reader.named_findings(sentence) or _RECOMMENDATION.search(sentence):
        return False
    known = any(reader.is_modifier(word.lower) for word in vocab.split_words(sentence)[1:])
    return (known or _SIZE.search(sentence) is not None) and not _INTERPRETATION.search(sentence)


def find_removal_reason(sentence: str, reader: FactReader) -> str | None:
    """Return why a sentence that states nothing about the image is removed (MAIRA-2, listing 1); else None."""
    if heading := vocab.REMARK_HEADING.match(sentence):
        word = heading[0].rstrip(": ").lower()
        return RECOMMENDATION if word.startswith("recommend") else COMPARISON if "compar" in word else TECHNIQUE
    facts = reader.facts_in(sentence)
    is_advice, is_question = _RECOMMENDATION.search(sentence) is not None, sentence.endswith("?")
    is_speculation = _is_speculation(sentence, facts)
    is_empty = (
        is_speculation
        or all(_MARK.match(word) for word in sentence.split())
        or (is_question and all(fact.doubt > CERTAIN for fact in facts))
        or (is_advice and all(fact.doubt > CERTAIN or fact.present for fact in facts))
    )
    if not is_empty and facts:  # Low volumes are a remark on technique.
        only_volumes = all(fact.concept == "low_lung_volumes" and fact.present for fact in facts)
        is_empty = only_volumes and not re.search(r"\b(?:but|although|though|clear|obscur\w+)\b", sentence)
    if not is_empty and (facts or not _is_remark(sentence, reader)):
        return None
    if is_advice:
        return RECOMMENDATION
    is_interpreted = _ANAPHORA.match(sentence) is not None and _UNSURE.search(sentence) is not None
    if is_question or is_speculation or is_interpreted:
        return SPECULATION
    if _COMPARISON.match(sentence):
        return COMPARISON
    return TECHNIQUE if facts or _TECHNIQUE.search(sentence) else NO_STATEMENT


def _is_speculation(sentence: str, facts: Collection[Fact]) -> bool:
    if not all(fact.doubt > CERTAIN for fact in facts):
        return False
    if facts and _ANAPHORA.match(sentence):
        return _RESUMED.search(sentence) is None
    only = all(_is_diagnosis(fact.concept) for fact in facts) if facts else len(sentence.split()) < 7
    return only and _DIAGNOSIS.search(sentence) is not None and _UNSURE.search(sentence) is not None


def _is_remark(sentence: str, reader: FactReader) -> bool:
    """Return whether a sentence without a known finding is about the image or the comparison, or only names a part."""
    words = [word.lower for word in vocab.split_words(sentence)]
    is_normal = not vocab.NORMAL_STATES.isdisjoint(words)
    is_changed = any("change" in reader.kinds(word) for word in words)
    joining = vocab.CONJUNCTIONS | {"chest", "the"}
    is_short = len(words) <= 4 and not is_normal and not is_changed
    if is_short and all(
        "structure" in reader.kinds(word) or reader.is_modifier(word) or word in joining for word in words
    ):
        return True
    if _LINK.match(sentence) is not None and not vocab.FINITE_VERBS.isdisjoint(words[1:3]):
        return True
    if reader.names_only_unasserted(sentence):
        return True
    if is_changed or "change" in words:
        return False
    if _COMPARISON.match(sentence):
        return True
    if is_normal or "negative" in words:
        return False  # "Unremarkable examination of the chest."
    statement = _ON_THE_IMAGE.sub("", sentence)
    if words[0] == "there":
        # Only what there is ("there is motion artifact"), not how it was seen.
        statement = " ".join(statement.split()[:7])
    return _TECHNIQUE.search(statement) is not None


def _is_diagnosis(concept: str) -> bool:
    return _DIAGNOSIS.search(concept.replace("_", " ")) is not None
