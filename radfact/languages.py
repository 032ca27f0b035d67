"""Languages that metrics and the offline judge support, distinguished by script, and characters for comparison."""

from __future__ import annotations

import re
import unicodedata
from enum import StrEnum
from functools import cache

MIN_SHARE = 0.5
"""Minimum share of the letters of a text that must belong to a script of the language."""

_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


class Language(StrEnum):
    """Language of the reports that a metric supports; only the script is checked, so that Spanish matches English."""

    ANY = "any"
    SPACED = "any with spaces between words"
    ENGLISH = "English"

    def matches(self, text: str) -> bool:
        """Return whether the script of a text is supported. A text without letters matches."""
        if self is Language.ANY or text.isascii():
            return True
        letters = [character for character in normalize_characters(text) if character.isalpha()]
        return not letters or sum(_is_supported(letter, self) for letter in letters) >= MIN_SHARE * len(letters)

    @property
    def skip_reason(self) -> str:
        """Reason why a report in another script is not scored."""
        expected = "Latin script" if self is Language.ENGLISH else "spaces between words"
        return f"a report is in another script (expected {expected})"


@cache
def _is_supported(letter: str, language: Language) -> bool:
    name = unicodedata.name(letter, "")
    return name.startswith("LATIN") if language is Language.ENGLISH else not name.startswith(_UNSPACED)


_LIGATURES = (range(0xFB00, 0xFB50), range(0xFF01, 0xFFEF), range(0x1D400, 0x1D800), range(0x2160, 0x2180))
"""Ligatures, wide letters, mathematical letters and Roman numerals; a superscript or a fraction is another number."""
_CHARACTERS: dict[int, str] = {
    **{code: unicodedata.normalize("NFKC", chr(code)) for codes in _LIGATURES for code in codes},
    **dict.fromkeys((0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000), " "),
    **dict.fromkeys((0x0B, 0x0C, 0x85, 0x2028, 0x2029), "\n"),
    **dict.fromkeys((*range(0x2010, 0x2014), 0x2043, 0x2212, 0xFE63), "-"),
    **dict.fromkeys(map(ord, "‘’‚‛′ʼ´"), "'"),
    **dict.fromkeys(map(ord, "“”„‟″«»"), '"'),
    **dict.fromkeys((0x34F, 0x61C, 0x180E, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070)), ""),
    **dict.fromkeys((*range(0xFE00, 0xFE10), 0xFEFF), ""),
    0x2026: "...",
}
_SOFT_HYPHEN = re.compile("\u00ad(?:[ \t]*\r?\n[ \t]*)?")
_HYPHEN_AT_LINE_END = re.compile(r"(?<=\w)-[ \t]*\r?\n[ \t]*(?=\w)")
_LAST_WORD, _FIRST_WORD = re.compile(r"\w+\Z"), re.compile(r"\w+")
_MAX_WORD = 20
_COMPOUND = re.compile(
    "left|right|upper|lower|mid|well|ill|low|high|air|fluid|follow|long|short|large|small|thin|thick|soft|half|ground|"
    "tree|end|two|three|new|old|post|non|side|cross|check|"
    "sided|like|shaped|defined|related|based|appearing|up|ray|rays|zone|glass|bud",
    re.IGNORECASE,
)
"""Words that begin or end a word with a hyphen, as in "left-sided"."""


def normalize_characters(text: str) -> str:
    """Return a text in characters that compare equal where they look alike, as copies from PDF files need it.

    Soft hyphens, zero-width characters and hyphens of words divided at the end of a line are removed; ligatures,
    spaces, hyphens, quotation marks and combining accents become the plain ones.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFC", _SOFT_HYPHEN.sub("", text).translate(_CHARACTERS))
    return _HYPHEN_AT_LINE_END.sub(_join_line_ends, text) if "-" in text and "\n" in text else text


def _join_line_ends(match: re.Match[str]) -> str:
    """Return what remains of a hyphen at the end of a line: nothing of a divided word."""
    text = match.string
    before = _LAST_WORD.findall(text[max(match.start() - _MAX_WORD, 0) : match.start()])[0]
    after = _FIRST_WORD.findall(text[match.end() : match.end() + _MAX_WORD])[0]
    if before[-1].isdigit() or (len(before) == 1 and after[0].isalpha()):
        return "-"  # "10-15 mm", "X-ray"
    if after[0].isdigit() or before[-1].isupper() != after[0].isupper():
        return match[0]
    return "-" if _COMPOUND.fullmatch(before) or _COMPOUND.fullmatch(after) else ""
