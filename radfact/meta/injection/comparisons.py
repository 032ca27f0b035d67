"""Remove comparisons with an earlier examination from sentences."""

from __future__ import annotations

import re

_CHANGED = (
    r"stable|unchanged|new|persistent|residual|increased|increasing|decreased|decreasing|worsened|worsening|improved|"
    r"improving|progressive"
)
_ADVERB = r"(?:(?:grossly|relatively|essentially|overall|slightly|mildly|markedly|significantly|fairly) )?"
_PRIOR = (
    r"(?:the |a |an )?(?:prior|previous|earlier|last)?\s*(?:exam\w*|stud\w+|radiograph\w*|film\w*|imag\w+|prior|XXXX)?"
)
_NO_NOUN = r"(?:in|from|since|compared|and|or|with|to|at|on)"
_SINCE = rf"(?:(?:in comparison|(?:when |as )?compared) (?:to|with)|since|from) {_PRIOR}"
_WITHOUT_COMPARISON: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), by)
    for pattern, by in (
        (rf"^{_SINCE}\s*,\s*", ""),
        (rf",? {_SINCE}$", ""),
        (
            r"^(?:once )?again (?:seen|noted|identified|demonstrated|visualized|observed) (is|are) (?:the )?",
            r"There \1 ",
        ),
        (rf"\b(is|are) {_ADVERB}(?:{_CHANGED})(?: {_SINCE})?$", r"\1 present"),
        (rf"\b(?:appears|remains) {_ADVERB}(?:{_CHANGED})(?: {_SINCE})?$", "is present"),
        (rf"\b(?:appear|remain) {_ADVERB}(?:{_CHANGED})(?: {_SINCE})?$", "are present"),
        (rf",? (?:which|that) (?:is|are) present$|,?(?: and| but)? {_ADVERB}(?:{_CHANGED})(?: {_SINCE})?$", ""),
        (rf"^{_ADVERB}(?:{_CHANGED}) (?:appearance|position|positioning|configuration) of (?:the )?", ""),
        (r"\b(?:interval|again)\s+(?=\w)", ""),
        (rf"^(normal|clear) and (?:{_CHANGED}) ", r"\1 "),
        (rf"\b{_ADVERB}(?:{_CHANGED})(?:[ -]appearing)?\s+(?=[a-z]{{3,}})(?!{_NO_NOUN}\b)", ""),
    )
)
_BROKEN = re.compile(
    r"\b(?:and|or|but|with|without|of|in|at|on|the|an?|is|are|was|were|has|have|been|be|which|that|appears?|remains?|from"
    r"|since|to|than|as|more|less|(?:gross|relative|essential|slight|mild|marked|significant|fair)ly|position|appearance|likewise)$"
    r"|^(?:seen|noted|identified|is|are|and|appearance|position)\b|\b(?:with|and|or) (?:appearance|position)\b"
    r"|\b(?:and|but|with) (?:is|are) present$|\b(?:has|have) (?:\w+ly )?in\b|(?-i:, The\b)"
    r"|\b(?:prior|previous) (?:exam|stud|radiograph|film)|\bcompared\b|\bdating back\b"
    r"|, (?:appearance|position)\b",
    re.IGNORECASE,
)
"""Endings, beginnings and junctions of ungrammatical phrases, and comparisons that remain."""
_STATE = re.compile(
    r"\b(?:increased|decreased|improved|progressive)\s+(?!from|since|compared|in\b)[a-z]"
    rf"|\b(?:is|are|appears?) {_ADVERB}(?:increased|decreased)$",
    re.IGNORECASE,
)
_COMPARED = re.compile(r"\b(?:interval|since|compar\w+|prior|previous\w*|now|again)\b", re.IGNORECASE)
_MENTION = re.compile(
    rf"{_COMPARED.pattern}|\b(?:{_CHANGED}|remains?|persists?|develop\w+|similar|worse)\b", re.IGNORECASE
)


def mentions_comparison(sentence: str) -> bool:
    """Return whether a sentence contains a word for a change, a stable state or an earlier examination."""
    return _MENTION.search(sentence) is not None


def remove_comparison(sentence: str) -> str | None:
    """Return a sentence without its comparison; None if it has none, or if the rest would be ungrammatical.

    "Increased interstitial markings" is a state, not a comparison, unless the sentence mentions an earlier examination.
    """
    if _STATE.search(sentence) and not _COMPARED.search(sentence):
        return None
    text = sentence
    for pattern, replacement in _WITHOUT_COMPARISON:
        text = pattern.sub(replacement, text).strip(" ,")
    return None if not text or text == sentence or _BROKEN.search(text) else text
