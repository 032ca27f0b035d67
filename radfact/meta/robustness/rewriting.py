"""Rewrite report sentences by regular expressions, with a known effect on entailment.

The rules of `radfact.meta.injection` are not suitable: they check each edit with the ontology of the offline judge, so
they would never produce a sentence that this judge misreads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from radfact.reader.vocabulary import FINITE_VERBS, is_plural, split_words

EQUIVALENT_STATEMENTS: tuple[tuple[str, ...], ...] = (
    (
        "The lungs are clear.",
        "Lungs are clear bilaterally.",
        "The lungs are normal.",
        "The lungs are unremarkable.",
        "The lungs are within normal limits.",
    ),
    (
        "The heart is normal in size.",
        "Heart size is normal.",
        "The heart size is within normal limits.",
        "The cardiac silhouette is normal in size.",
        "The heart is not enlarged.",
        "No cardiomegaly.",
    ),
    (
        "No pleural effusion.",
        "There is no pleural effusion.",
        "There is no evidence of pleural effusion.",
        "No pleural effusion is seen.",
        "There are no pleural effusions.",
    ),
    (
        "No pneumothorax.",
        "There is no pneumothorax.",
        "There is no evidence of pneumothorax.",
        "No pneumothorax is seen.",
        "Negative for pneumothorax.",
    ),
    (
        "No focal consolidation.",
        "There is no focal consolidation.",
        "There is no evidence of focal consolidation.",
        "No focal airspace consolidation is seen.",
    ),
    (
        "The mediastinal contours are normal.",
        "The mediastinal contours are unremarkable.",
        "Mediastinal contour is within normal limits.",
        "The mediastinum is normal.",
    ),
    (
        "Pulmonary vascularity is normal.",
        "The pulmonary vasculature is normal.",
        "The pulmonary vascularity is within normal limits.",
        "The pulmonary vessels are unremarkable.",
    ),
    (
        "No acute osseous abnormality.",
        "There is no acute osseous abnormality.",
        "No acute bony abnormality.",
        "No acute bony abnormality is seen.",
    ),
    (
        "The hila are normal.",
        "The hila are unremarkable.",
        "The hilar contours are normal.",
        "The hilar contours are within normal limits.",
    ),
)
"""Groups of normal statements. The statements of a group entail each other."""
NEUTRAL_STATEMENTS = (
    "The patient's arms are raised above the head.",
    "The chin of the patient does not obscure the apices.",
    "A side marker is visible in the corner of the image.",
)
"""Statements that mention no finding and cannot change the verdict on another sentence."""

_SIDE = re.compile(r"\b(?:left|right)(?:ward)?\b|\b[LR][UL]L\b", re.IGNORECASE)
_BOTH_SIDES = re.compile(
    r"\b(?:bilateral\w*|both|either|each|bi(?:basilar|basal|apical|hilar)|diffuse\w*|throughout|symmetric\w*)\b", re.I
)
_VERB_LEFT = re.compile(r"\b(?:been|was|were|be|is|are) left\b|\bleft (?:in place|in situ|behind|alone)\b", re.I)
_DENIAL = re.compile(
    r"\b(?:no|not|non|none|without|never|absen\w+|negative|free|normal\w*|clear\w*|unremarkable|intact|resol\w+|remov\w+"
    r"|cannot|neither|nor|rather|unlikely|wnl|limits|lack\w*|den(?:y|ies)|exclude\w*)\b",
    re.I,
)
_HEDGE = re.compile(
    r"\b(?:may|might|could|can|cannot|possib\w+|probabl\w+|likely|unlikely|suspect\w*|suspicio\w+|question\w*|suggest\w*"
    r"|presum\w+|consider\w*|differential|versus|vs|perhaps|equivocal|represent\w*|reflect\w*|consistent|compatible"
    r"|concern\w*|evaluat\w*|recommend\w*|correlat\w*|should|would|if)\b|\?",
    re.I,
)
_EXCEPTION = re.compile(
    r"\b(?:except|other|otherwise|only|but|although|though|however|aside|apart|besides|longer|which|that|than|least|most"
    r"|while|whereas|because|since|due)\b|;",
    re.I,
)
_SEVERAL = re.compile(r"[,:]|\b(?:with|and|or)\b", re.I)
_NORMAL = re.compile(r"\b(?:normal\w*|clear|unremarkable|intact|wnl)\b", re.I)
_CHANGE = re.compile(
    r"\b(?:change\w*|unchanged|stable|stabl\w*|new\w*|interval|increas\w+|decreas\w+|worse\w*|improv\w+|resol\w+"
    r"|previous\w*|prior|again|persist\w+|remain\w*|compar\w+|since|progress\w*|develop\w*|residual|redemonstrat\w*)\b",
    re.I,
)
_NUMBER = re.compile(
    r"(?<![\w./:-])(?P<digits>\d+(?:\.\d+)?)(?P<ordinal>st|nd|rd|th)?(?=[\s,.]|mm\b|cm\b|$)(?!\.\d)"
    r"|\b(?P<level>[TLC])(?P<n>\d{1,2})\b"
)
_ORDINALS = ("second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh")
_CARDINALS = ("two", "three", "four", "five", "six", "seven", "eight", "nine")
_NUMBER_WORD = re.compile(rf"\b(?:{'|'.join((*_ORDINALS, *_CARDINALS))})\b", re.I)
_BOUND = re.compile(
    r"\b(?:than|least|most|up|to|through|thru|between|or|day|days|week|weeks|months?|years?|old|ago|hours?|views?|less|dr"
    r"|approximately|about|multiple|several)\b|\d\s*-|-\s*\d",
    re.I,
)
_EXISTS = re.compile(r"^there (?:is|are) (?:again |also )?(?:an? |the |some )?(?P<finding>.+)$", re.I)
_SEEN = re.compile(
    r"^(?:an? |the |some )?(?P<finding>.+?) (?:is|are) (?:again |also )?(?:seen|noted|present|identified|visualized)"
    r"(?P<place> (?:in|at|on|within|over|overlying) .+)?$",
    re.I,
)
_NEGATION = re.compile(r"^(?P<before>there (?:is|are) )?no (?=\w)|(?P<verb> (?:is|are)) not(?= )", re.I)
_DENIALS_ON_PRIOR = (
    "{} not seen on the prior examination.",
    "{} not present on the previous radiograph.",
    "{} not visible on prior exams.",
)
_LIMITED_VISIBILITY = (
    "{} not well seen on the lateral view.",
    "{} not clearly visualized on the lateral view.",
    "{} not well visualized on the frontal view.",
)


def states_both_sides(sentence: str) -> bool:
    """Return whether a sentence is about both sides."""
    return _BOTH_SIDES.search(sentence) is not None or len(find_sides(sentence)) > 1


def find_sides(sentence: str) -> frozenset[str]:
    """Return the sides that a sentence names, as `l` and `r`."""
    return frozenset(match[0][0].lower() for match in _SIDE.finditer(sentence))


def is_denial(sentence: str) -> bool:
    """Return whether a sentence denies a finding or states that something is normal."""
    return _DENIAL.search(sentence) is not None


def states_normal(sentence: str) -> bool:
    """Return whether a sentence states that something is normal."""
    return _NORMAL.search(sentence) is not None


def swap_sides(sentence: str) -> str | None:
    """Swap left and right; None for denials, sentences about both sides, and "left" as a verb."""
    sides = find_sides(sentence)
    if len(sides) != 1 or states_both_sides(sentence) or _VERB_LEFT.search(sentence) or is_denial(sentence):
        return None

    def other(match: re.Match[str]) -> str:
        word = match[0]
        if word.isupper() and len(word) == 3:
            return ("R" if word[0] == "L" else "L") + word[1:]
        side = "right" if word[0].lower() == "l" else "left"
        side += word[len("left") if word[0].lower() == "l" else len("right") :].lower()
        return side.capitalize() if word[0].isupper() else side

    return _SIDE.sub(other, sentence)


def find_numbers(text: str) -> frozenset[float]:
    """Return all numbers in a text, including number words."""
    digits = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)}
    words = {float(_number_of(match[0])) for match in _NUMBER_WORD.finditer(text)}
    return frozenset(digits | words)


def change_number(sentence: str) -> str | None:
    """Change the first number: ordinals, vertebral levels and number words by 3, other numbers n to 2n + 3.

    Returns None for denials, uncertain statements, ranges, dates, ages and bounds ("larger than 5 mm"), or if the
    sentence already contains the new number.
    """
    if is_denial(sentence) or _BOUND.search(sentence) or _HEDGE.search(sentence):
        return None
    match = _NUMBER.search(sentence) or _NUMBER_WORD.search(sentence)
    if match is None:
        return None
    if match.re is _NUMBER_WORD:
        names = _ORDINALS if match[0].lower() in _ORDINALS else _CARDINALS
        place = names.index(match[0].lower())
        text = names[place + 3 if place + 3 < len(names) else place - 3]
        text = text.capitalize() if match[0][0].isupper() else text
    elif match["level"]:
        text = f"{match['level']}{_shift(int(match['n']))}"
    elif match["ordinal"]:
        number = _shift(int(match["digits"]))
        text = f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number, 'th') }"
    else:
        text = f"{2 * float(match['digits']) + 3:g}"
    changed = sentence[: match.start()] + text + sentence[match.end() :]
    return None if find_numbers(text) & find_numbers(sentence) else changed


def _shift(number: int) -> int:
    return number + 3 if number <= 9 else number - 3


def _number_of(word: str) -> int:
    names = _ORDINALS if word.lower() in _ORDINALS else _CARDINALS
    return names.index(word.lower()) + 2


def negate(sentence: str) -> str | None:
    """Add a negation to a sentence, or remove its only one.

    Returns None for uncertain statements, exceptions and several statements, and for fragments with a change or a
    normal state, since "no stable X" and "no normal X" are not negations.
    """
    text = sentence.rstrip(". ")
    if _HEDGE.search(text) or _EXCEPTION.search(text):
        return None
    negations = re.findall(
        r"\b(?:no|not|without|neither|nor|none|never|non|cannot|absen\w+|negative|free)\b", text, re.I
    )
    if len(negations) > 1:
        return None
    if negations:
        removed = _NEGATION.sub(lambda match: match["before"] or match["verb"] or "", text, count=1)
        return None if removed == text else _sentence(removed)
    if _SEVERAL.search(text):
        return None
    if match := re.match(r"there (?:is|are) ", text, re.I):
        rest = re.sub(r"^(?:again |also )?(?:an? |the |some )?", "", text[match.end() :], flags=re.I)
        return _sentence(f"{match[0]}no {rest}")
    verbs = [word for word in split_words(text) if word.lower in FINITE_VERBS]
    if not verbs:
        return None if _CHANGE.search(text) or is_denial(text) else _sentence(f"no {text[:1].lower()}{text[1:]}")
    verb = verbs[0]
    if len(verbs) > 1 or verb.lower not in ("is", "are"):
        return None
    return _sentence(f"{text[: verb.end]} not{text[verb.end :]}")


def extract_finding(sentence: str) -> str | None:
    """Return the finding of a sentence such as "There is a small left effusion"; None if it states anything else."""
    text = sentence.rstrip(". ")
    if any(pattern.search(text) for pattern in (_DENIAL, _HEDGE, _EXCEPTION, _CHANGE, _SEVERAL)):
        return None
    if match := _EXISTS.match(text):
        phrase = match["finding"]
    elif match := _SEEN.match(text):
        phrase = match["finding"] + (match["place"] or "")
    else:
        phrase = re.sub(r"^(?:an?|the|some) ", "", text, flags=re.I)
    words = [word.lower for word in split_words(phrase)]
    if len(words) < 2 or not FINITE_VERBS.isdisjoint(words):
        return None
    return phrase if phrase[:2].isupper() else phrase[:1].lower() + phrase[1:]


def deny_on_prior(phrase: str, template: int) -> str:
    """Return the statement that a finding was absent on the prior examination.

    Args:
        phrase: noun phrase of the finding.
        template: index of the template, modulo their number.
    """
    return _fill_template(_DENIALS_ON_PRIOR, template, phrase, ("was", "were"))


def limit_visibility(phrase: str, template: int) -> str:
    """Return the statement that a finding is hard to see on one view.

    Args:
        phrase: noun phrase of the finding.
        template: index of the template, modulo their number.
    """
    return _fill_template(_LIMITED_VISIBILITY, template, phrase, ("is", "are"))


def content_words(text: str) -> frozenset[str]:
    """Return the first five letters of all words of at least four letters, as stems."""
    return frozenset(word[:5] for word in re.findall(r"[a-z]{4,}", text.lower()))


def _fill_template(templates: Sequence[str], index: int, phrase: str, verbs: tuple[str, str]) -> str:
    """Return a template with a finding and its verb, given as singular and plural."""
    singular, plural = verbs
    verb = plural if is_plural(phrase.lower().split()) else singular
    return _sentence(templates[index % len(templates)].format(f"{phrase} {verb}"))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
