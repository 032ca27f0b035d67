"""Languages that metrics and the offline judge support, distinguished by script."""

from __future__ import annotations

import unicodedata
from enum import StrEnum
from functools import cache

MIN_SHARE = 0.5
"""Minimum share of the letters of a text that must belong to a script of the language."""

_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


class Language(StrEnum):
    """Language of the reports that a metric supports.

    Only the script is checked: Spanish text matches English.
    """

    ANY = "any"
    SPACED = "any with spaces between words"
    ENGLISH = "English"

    def matches(self, text: str) -> bool:
        """Return whether the script of a text is supported. A text without letters matches."""
        if self is Language.ANY or text.isascii():
            return True
        letters = [character for character in text if character.isalpha()]
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
