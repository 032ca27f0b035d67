"""What is no finding of the film and goes: technique, recommendations, comparisons, interpretation, headings."""

from __future__ import annotations

import re
from collections.abc import Collection

from radfact.judges.offline import vocabulary as w
from radfact.judges.offline.clause import Facts
from radfact.judges.offline.facts import Fact

_HEADING = re.compile(r"^[A-Za-z][^:.;,()]{0,60}:\s+")
_REMARK_HEADING = re.compile(
    r"^(?:technique|comparisons?|recommendations?|indications?|(?:clinical )?(?:history|information)|exam(?:ination)?"
    r"|procedure|notifications?|views?)\s*:",
    re.IGNORECASE,
)
_CATEGORY = re.compile(r"/|\b(?:changes|devices|lines|tubes|catheters|structures)\b", re.IGNORECASE)
"""A heading with one of these states no finding, whatever it names."""
_CONNECTIVE = re.compile(
    r"^(?:(?:however|in addition|additionally|furthermore|moreover|also|and|but|specifically|incidentally)\b,?\s+(?=\w)"
    r"|(?:due to|given|because of|owing to|allowing for|accounting for) (?:[\w'/-]+ ?){1,6},\s+)+",
    re.IGNORECASE,
)
_RECOMMENDATION = re.compile(
    r"\brecommend|\badvis(?:e|ed|able)\b"
    r"|\bsuggest(?:ed)? (?:an? )?(?:repeat|follow|further|lateral|ct\b|chest ct|clinical|correlat)"
    r"|\bshould be (?:obtained|considered|performed|repeated)"
    r"|\b(?:may|might|would) be (?:necessary|helpful|useful|of value)"
    r"|\bfollow[- ]?up (?:is|ct|chest|imaging|radiograph|film|study|exam)"
    r"|^correlat|\bcorrelat(?:e|ion) (?:clinically|is|with)\b|\bis (?:indicated|warranted)\b"
    r"|\bclinical(?:ly)? (?:correlat|indicated)",
    re.IGNORECASE,
)
_TECHNIQUE = re.compile(
    r"\b(?:views?|techniques?|projections?|ap|pa|upright|supine|portable|rotat(?:ed|ion)|lordotic|exposures?|penetrat\w+|"
    r"inspir\w+|examination|exam|study|studies|radiographs?|x-?rays?|films?|images?|motion|artifacts?|artefacts?|dictated|"
    r"discussed|communicated|telephoned|notified|year[- ]old|overlying soft tissues?)\b|^(?:clinical )?history\b",
    re.IGNORECASE,
)
_ON_THE_FILM = re.compile(
    r"\b(?:on|in|by|since|from|to|than) (?:the |this |these |that |a |an |today's )?(?:[\w-]+ ){0,3}"
    r"(?:views?|projections?|examinations?|exams?|study|studies|radiographs?|x-?rays?|films?|images?)\b",
    re.IGNORECASE,
)
_COMPARISON = re.compile(
    r"^(?:in |by |as )?(?:comparison|compared|comparisons?)\b|^no (?:prior|previous|comparison)"
    r"|^(?:prior|previous) (?:exam|stud|film|radiograph|image|comparison|ct\b|chest )",
    re.IGNORECASE,
)
_ANAPHORA = re.compile(
    r"^(?:this|these|those|it|they|such|findings?|which|the findings?|the appearance)\b", re.IGNORECASE
)
_LINK = re.compile(
    r"^(?:this|these|those|it|they)\b(?: (?:finding|findings|change|changes|appearance))?\b", re.IGNORECASE
)
_SIZE = re.compile(r"\b\d+(?:\.\d+)?\s*(?:mm|cm)\b", re.IGNORECASE)
_HEDGE = (
    r"(?:may|might|could|can|would|likely|possibly|probably|presumably|perhaps|most|is|are|to|which|that|and|findings?)"
)
# Where an interpretation ends before its sentence does: at another finding, the verb, or the place of what is seen.
_RESUMED = (
    r" with\b| (?:is|are|was|were) (?:again |now )?(?:seen|noted|present|identified|visualized|demonstrated)\b"
    r"| projects?\b"
    r"| (?:in|at|on|within|over|overlying|along|behind) (?:the |both )?(?:left|right|bilateral|upper|lower|mid|middle"
    r"|bases?|ape?x|apices|lungs?|hil\w+|retrocardiac|lingula|heart)\b(?! clinical| setting| context)"
)
_INTERPRETATION = re.compile(
    r"(?:,? in the (?:correct|appropriate|proper|right) (?:clinical )?(?:setting|context),?(?: this| these)?)?"
    rf",?(?: {_HEDGE})*(?: X{{2,}}(?= represent| indicat| due))?(?:"
    r" (?:represent(?:s|ing|ative of)?|reflect(?:s|ing)?|suggest(?:s|ing|ive of)?|be indicative of|indicative of)"
    r"| (?:highly |most |more )?"
    r"(?:suggestive of|(?:consistent|compatible|concordant) with|(?:concerning|suspicious|worrisome) for)"
    r"| (?:be )?(?:due to|secondary to|related to|attributable to|attributed to|caused by)| in keeping with"
    r"|(?<=may) indicate|(?<=might) indicate|(?<=could) indicate|(?<=likely) indicat(?:es?|ing)"
    r"|(?<=,) (?:probable|possible|presumed)|(?<=likely)|(?<=possibly)|(?<=probably)|(?<=presumably)|(?<=perhaps))"
    r"\b(?! (?:located|in|at|within|on|stable|unchanged|chronic|a small|small)\b)"
    rf"[^.;]*?(?=[.;]|,? but |,? although |, and (?:there|no|the) |,? with(?:out)? no |,? without |, no |{_RESUMED}|$)",
    re.IGNORECASE,
)
_DIAGNOSIS = re.compile(
    r"\b(?:aspirat\w+|infect\w+|pneumoni\w+|malignan\w+|neoplas\w+|metasta\w+|tubercul\w+|sarcoid\w+|lymphoma|carcinoma|cancer"
    r"|heart failure|chf|asthma|contusion|infarct\w*|hypertension)\b",
    re.IGNORECASE,
)
_UNSURE = re.compile(
    r"\b(?:possib\w+|probab\w+|likely|may|might|could|suspect\w*|suspicio\w+|question\w*|presum\w+|consider\w*|differential"
    r"|cannot|can not|not (?:entirely |completely )?(?:be )?excluded|concern\w*|suggest\w*)\b",
    re.IGNORECASE,
)
_MARK = re.compile(r"^(?:x{2,}|_+|[\d:/.-]+|[ap]\.?m|\W+)$", re.IGNORECASE)


def without_connective(sentence: str) -> str:
    """Drop "However," and its like, which only tie a sentence to the one before."""
    return _CONNECTIVE.sub("", sentence)


def without_heading(sentence: str, facts: Facts) -> str:
    """Drop "Lungs and pleura:" where what follows says the same without it; "Lungs: Clear" stays."""
    match = _HEADING.match(sentence)
    if match is None or _REMARK_HEADING.match(sentence):
        return sentence
    rest = sentence[match.end() :]
    words = {word.lower for word in w.words_of(match[0])}
    if words & (w.FINITE | w.NEGATIONS | w.PREPOSITIONS | w.DETERMINERS):
        return sentence
    named = bool(facts.named(rest)) and (_CATEGORY.search(match[0]) is not None or facts.kept_by([rest], sentence))
    return rest if named or any(word.lower in w.FINITE for word in w.words_of(rest)[1:]) else sentence


def without_interpretation(sentence: str, facts: Facts) -> str:
    """Cut "..., which may represent pneumonia" where a finding was described before it, and none is lost by it."""
    for match in _INTERPRETATION.finditer(sentence):
        before, cut = sentence[: match.start()], match[0]
        unspecific = re.search(r"\b(?:likely|possibl[ey]|probabl[ey]|presum(?:ed|ably)|perhaps)\b", cut) is not None
        described = facts.named(before) or (len(before.split()) > 3 and not _ANAPHORA.match(before))
        if not described or (unspecific and not facts.named(cut) and not _DIAGNOSIS.search(cut)):
            continue
        kept = (before + sentence[match.end() :]).strip(" ,;")
        lost = {concept for concept, _ in facts.stated(sentence) - facts.stated(kept)}
        hedged = _UNSURE.search(cut) is not None and not re.search(r",|\band\b|\bwith\b", cut.strip(" ,"))
        if lost and not (hedged and lost <= facts.named(cut)):
            continue
        if kept.split()[-1].lower() not in w.PREPOSITIONS | w.FINITE:
            return kept
    return sentence


def without_recommendation(sentence: str, facts: Facts) -> str:
    """Cut "..., CT is recommended" after a finding."""
    match = _RECOMMENDATION.search(sentence)
    if match is None:
        return sentence
    joints = [m.start() for m in re.finditer(r",|;|\band\b|\bfor which\b", sentence[: match.start()])]
    kept = sentence[: joints[-1]].strip(" ,;") if joints else ""
    return kept if facts.named(kept) else sentence


def is_linked(sentence: str, facts: Facts) -> bool:
    """Whether the sentence adds change, degree or size to the one before, as "This has increased." does."""
    if _LINK.match(sentence) is None or facts.named(sentence) or _RECOMMENDATION.search(sentence):
        return False
    known = any(facts.is_modifier(word.lower) for word in w.words_of(sentence)[1:])
    return (known or _SIZE.search(sentence) is not None) and not _INTERPRETATION.search(sentence)


def is_no_finding(sentence: str, facts: Facts) -> bool:
    """Whether the sentence says nothing of what is or is not on the film (paper 004, listing 1)."""
    if all(_MARK.match(word) for word in sentence.split()) or _REMARK_HEADING.match(sentence):
        return True
    found = facts.of(sentence)
    if _RECOMMENDATION.search(sentence) and all(fact.possible or fact.present for fact in found):
        return True
    if _is_speculation(sentence, found):
        return True
    if found:  # Low volumes are a remark on technique (paper 004, listing 1).
        only_volumes = all(fact.concept == "low_lung_volumes" and fact.present for fact in found)
        return only_volumes and not re.search(r"\b(?:but|although|though|clear)\b", sentence)
    return _is_bare_heading(sentence, facts) or _is_remark(sentence, facts)


def _is_speculation(sentence: str, found: Collection[Fact]) -> bool:
    """Whether the sentence only interprets, or only doubts a diagnosis."""
    if not all(fact.possible for fact in found):
        return False
    if found and _ANAPHORA.match(sentence):
        return re.search(_RESUMED, sentence) is None
    only = all(_is_diagnosis(fact.concept) for fact in found) if found else len(sentence.split()) < 7
    return only and _DIAGNOSIS.search(sentence) is not None and _UNSURE.search(sentence) is not None


def _is_bare_heading(sentence: str, facts: Facts) -> bool:
    """Whether a few words only name a part of the body: "Chest."."""
    words = [word.lower for word in w.words_of(sentence)]
    if len(words) > 4 or any(map(facts.is_change, words)):
        return False
    joining = w.CONJUNCTIONS | {"chest", "the"}
    return all(facts.is_structure(word) or facts.is_modifier(word) or word in joining for word in words)


def _is_remark(sentence: str, facts: Facts) -> bool:
    """Whether a sentence without a known finding speaks of the film, the comparison or the sentence before it."""
    words = [word.lower for word in w.words_of(sentence)]
    if _LINK.match(sentence) is not None and not w.FINITE.isdisjoint(words[1:3]):
        return True
    if "change" in words or any(map(facts.is_change, words)):
        return False
    if _COMPARISON.match(sentence):
        return True
    said = _ON_THE_FILM.sub("", sentence)
    if words[0] == "there":
        said = " ".join(said.split()[:7])  # What there is: "there is motion artifact", not how it was seen.
    return _TECHNIQUE.search(said) is not None


def _is_diagnosis(concept: str) -> bool:
    return _DIAGNOSIS.search(concept.replace("_", " ")) is not None
