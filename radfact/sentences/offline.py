"""Narrative findings to single-finding sentences, offline (paper 004, appendix B.5.1, done by rules)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from radfact.entailment.facts import Fact, SentenceReader, parse
from radfact.entailment.ontology import default_ontology

_ABBREVIATIONS = ("dr", "mr", "mrs", "ms", "approx", "vs", "e.g", "i.e", "cf", "fig", "st", "no", "resp", "incl")
_BULLET = re.compile(r"(?:^|(?<=[.!?:;\n]))\s*(?:\(?\d{1,2}[.)](?=\s)|[-*•](?=\s))\s*")
_SENTENCE_END = re.compile(r"[.!?]+[\"')\]]*(?=\s+\S)")
_MISSING_STOP = re.compile(r"(?<=[a-z)]) (?=(?:The|There|No) [a-z])")
_HEADING = re.compile(r"^[A-Z][^:.;,]{0,70}:\s+")
_RECOMMENDATION = re.compile(
    r"\brecommend|\bsuggest(?:ed|s)? (?:a |an |repeat |follow|further|ct\b|clinical|correlat)|\badvis(?:e|ed|able)\b"
    r"|\bshould be (?:obtained|considered|performed|repeated)"
    r"|\bfollow[- ]?up (?:is|ct|chest|imaging|radiograph|film|study|exam)"
    r"|\bcorrelat(?:e|ion)\b|\bis (?:indicated|warranted)\b|\bclinical(?:ly)? (?:correlat|indicated)",
    re.IGNORECASE,
)
_TECHNIQUE = re.compile(
    r"\b(?:views?|techniques?|projections?|ap|pa|upright|supine|portable|rotat(?:ed|ion)|lordotic|exposures?|penetrat\w+|"
    r"inspir\w+|examination|exam|study|studies|radiographs?|x-?rays?|films?|images?|motion|artifacts?|artefacts?|dictated|"
    r"discussed|communicated|telephoned)\b",
    re.IGNORECASE,
)
_COMPARISON = re.compile(
    r"^(?:in |by )?(?:comparison|compared|comparisons?)\b|^no (?:prior|previous)|^(?:prior|previous)\b", re.IGNORECASE
)
_ANAPHORA = re.compile(
    r"^(?:this|these|those|it|they|such|findings?|which|the findings?|the appearance)\b", re.IGNORECASE
)
_INTERPRETATION = re.compile(
    r"(?:,? (?:and |which |that |findings? ))?"
    r"(?:,? *\b(?:is |are |may |might |could |likely |possibly |probably |most |would |to )*"
    r"(?:represent(?:s|ing|ative of)?|reflect(?:s|ing)?|indicat(?:es?|ing|ive of)|suggest(?:s|ing|ive of)?"
    r"|(?:consistent|compatible) with|(?:concerning|suspicious|worrisome) for|due to|secondary to|related to"
    r"|attributable to|in keeping with|be (?:due|secondary|related) to)\b)"
    r"[^.;]*?(?=[.;]|, but |, and there |$)",
    re.IGNORECASE,
)
_SEPARATOR = re.compile(
    r"\s*;\s*|,?\s+(?:and|or|nor|but|with|without|as well as|although|while|whereas|however)\s+|\s*,\s+", re.IGNORECASE
)
_NEGATIVE_LEAD = re.compile(
    r"^(?:(?:there (?:is|are|was|were) )?(?:no|without)(?: definite| radiographic| convincing)?"
    r"(?: (?:evidence|sign|signs) (?:of|for))?|negative for"
    r"|[\w ]{0,40}? (?:shows?|demonstrates?) no|[\w ]{0,40}? (?:is|are) (?:free|clear) of)\s+",
    re.IGNORECASE,
)
_COPULA = re.compile(r"^.*?\b(?:is|are|was|were|appears?|remains?)\b", re.IGNORECASE)
_SINGULAR = {"are": "is", "were": "was", "have": "has", "appear": "appears", "remain": "remains"}
_PLURAL_VERB = re.compile(r"\b(?:are|were|have|appear|remain)\b")


def split_narrative(text: str) -> list[str]:
    """Split a narrative into sentences of one finding each.

    Sentences of several findings are split; technique, recommendations, bare comparisons and interpretation of what
    was described already are removed; change is kept. A sentence is only split where its parts state exactly the
    facts of the whole, and interpretation is only cut where no certain finding goes with it: else it stays as it is.

    Args:
        text: the findings section of a report.

    Returns:
        Sentences in reading order, each ending in a full stop.
    """
    sentences = []
    for sentence in _sentences(text):
        kept = _without_interpretation(_without_heading(sentence))
        if _is_no_finding(kept):
            continue
        sentences += [_finished(part) for part in _split(kept.rstrip(" .;,"))]
    return sentences


def _sentences(text: str) -> Iterator[str]:
    text = _BULLET.sub("\n", text.replace("\r", "\n"))
    for paragraph in re.split(r"\n\s*", text):
        start = 0
        for match in _SENTENCE_END.finditer(paragraph):
            before = paragraph[start : match.start()].rsplit(None, 1)
            last = before[-1].lower().strip("(\"'") if before else ""
            # "No." ends a sentence unless a number follows.
            number_follows = paragraph[match.end() :].lstrip()[:1].isdigit()
            if last in _ABBREVIATIONS and (last != "no" or number_follows):
                continue
            yield from _words(paragraph[start : match.end()])
            start = match.end()
        yield from _words(paragraph[start:])


def _words(sentence: str) -> Iterator[str]:
    sentence = " ".join(sentence.split())
    parts = _MISSING_STOP.split(sentence)
    if frozenset().union(*map(_facts, parts)) != _facts(sentence):
        parts = [sentence]
    yield from (part.strip(" .;,") for part in parts if any(c.isalnum() for c in part))


def _facts(text: str) -> frozenset[Fact]:
    return frozenset(parse(text, default_ontology()).facts)


def _claims(text: str) -> frozenset[Fact]:
    """Facts about findings; a structure merely named claims nothing."""
    return frozenset(fact for fact in _facts(text) if fact.concept in default_ontology().findings)


def _certain(text: str) -> frozenset[tuple[str, bool]]:
    return frozenset((fact.concept, fact.present) for fact in _claims(text) if not fact.possible)


def _without_heading(sentence: str) -> str:
    """Drop "Lungs and pleura:" where what follows it says the same without it."""
    match = _HEADING.match(sentence)
    if match is None:
        return sentence
    rest = sentence[match.end() :]
    named = {fact.concept for fact in _claims(match[0])}
    whole, claims = _facts(sentence), _claims(rest)
    lost = {fact.concept for fact in whole - claims} - named
    return rest if claims and claims <= whole and not any(c in default_ontology().findings for c in lost) else sentence


def _without_interpretation(sentence: str) -> str:
    """Cut "..., which may represent pneumonia" where a finding was described before it."""
    match = _INTERPRETATION.search(sentence)
    if match is None or not _claims(sentence[: match.start()]):
        return sentence
    kept = (sentence[: match.start()] + sentence[match.end() :]).strip(" ,")
    return kept if _certain(kept) >= _certain(sentence) else sentence


def _is_no_finding(sentence: str) -> bool:
    claims = _claims(sentence)
    if _RECOMMENDATION.search(sentence) and all(fact.possible or fact.present for fact in claims):
        return True
    if _ANAPHORA.match(sentence) and claims and all(fact.possible for fact in claims):
        return True
    # Low volumes are a remark on technique (paper 004, listing 1).
    if claims and all(fact.concept == "low_lung_volumes" and fact.present for fact in claims):
        return True
    if claims:
        return False
    reader = SentenceReader(sentence, default_ontology())
    if all(item.has("structure", "side", "zone", "joining") for item in reader.items):
        return True  # A heading, such as "Chest."
    return bool(_COMPARISON.match(sentence) or _TECHNIQUE.search(sentence))


def _split(sentence: str) -> list[str]:
    whole = _claims(sentence)
    if len(whole) < 2 or any(len(group) > 1 for group in parse(sentence, default_ontology()).groups):
        return [sentence]
    reader = SentenceReader(sentence, default_ontology())
    spans = [
        (item.begin, item.end)
        for item in reader.items
        if item.kinds.keys() & {"finding", "structure", "normal", "zone"}
    ]
    for separator in _SEPARATOR.finditer(sentence):
        if any(begin < separator.start() and separator.end() < end for begin, end in spans):
            continue
        left, word, right = sentence[: separator.start()], separator[0].strip(" ,").lower(), sentence[separator.end() :]
        for one, other in _variants(left, word, right):
            first, second = _claims(one), _claims(other)
            if first and second and first != whole and second != whole and first | second == whole:
                return [*_split(one), *_split(other)]
    return [sentence]


def _variants(left: str, word: str, right: str) -> Iterator[tuple[str, str]]:
    """Ways to make two sentences of two halves: as they stand, with the shared ending, with the shared beginning."""
    if word == "without":
        yield left, f"No {right}"
        return
    yield left, right
    tail = _tail(right)
    lead = _NEGATIVE_LEAD.match(left)
    ended = _agreeing(left, tail) if tail else None
    if ended is not None:
        last = _agreeing(right[: len(right) - len(tail)], tail)
        if lead is not None:
            yield ended, lead[0] + _without_determiner(last)
        yield ended, last
    if lead is not None:
        yield left, lead[0] + _without_determiner(right)
    if copula := _COPULA.match(left):
        yield left, f"{copula[0]} {right}"


def _tail(text: str) -> str:
    """What follows the last finding or structure of `text`: its verb, place and change."""
    reader = SentenceReader(text, default_ontology())
    if not reader.units:
        return ""
    return text[reader.items[reader.units[-1].anchor].end :].strip()


def _agreeing(left: str, tail: str) -> str:
    """`left` with the ending of the whole list, its verb in the singular where `left` is."""
    last = re.sub(r"\W", "", left.split()[-1]).lower() if left.split() else ""
    plural = last.endswith("s") and not last.endswith(("ss", "us", "is"))
    if not plural:
        tail = _PLURAL_VERB.sub(lambda match: _SINGULAR[match[0]], tail, count=1)
    return f"{left.strip()} {tail}"


def _without_determiner(text: str) -> str:
    return re.sub(r"^(?:no|a|an|any)\s+", "", text.strip(), flags=re.IGNORECASE)


def _finished(sentence: str) -> str:
    sentence = " ".join(sentence.split()).strip(" .;,")
    sentence = re.sub(r"^(?:and|but|with)\s+", "", sentence, flags=re.IGNORECASE)
    return f"{sentence[:1].upper()}{sentence[1:]}."
