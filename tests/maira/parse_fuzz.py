"""Check the parser with mutated reports: `python tests/maira/parse_fuzz.py 1000000` for a million of them."""

from __future__ import annotations

import random
import re
import sys
import time
from collections import Counter

from maira.model.parser import FORMAT_TOKEN, parse_report

FORMAT = ["<obj>", "</obj>", "<box>", "</box>", "<s>", "</s>", "<unk>", "<pad>", "<image>", "<x0>", "<y99>", "<x100>"]
OTHER = [
    "<",
    ">",
    "</",
    "\n\n",
    " ",
    ". ",
    "\x00",
    "\x1c",
    "\ud800",
    "\N{REPLACEMENT CHARACTER}",
    "İ",
    "<x٣>",
    "<x1" + "0" * 50,
]

_CUT_TOKEN = re.compile(r"<(/?(o|ob|obj|b|bo|box)?|[xy][0-9]*)\Z")


def well_formed(rng: random.Random) -> str:
    """Return a grounded report of up to four sentences of unique words."""
    text = ""
    for _ in range(rng.randint(0, 4)):
        words = " ".join(f"w{rng.getrandbits(40):x}" for _ in range(rng.randint(1, 4)))
        boxes = ""
        for _ in range(rng.choice([0, 0, 1, 2])):
            (left, right), (top, bottom) = (sorted(rng.choices(range(100), k=2)) for _ in range(2))
            boxes += f"<box><x{left}><y{top}><x{right}><y{bottom}></box>"
        text += f"<obj>{words}.{boxes}</obj>"
    return text


def mutate(text: str, rng: random.Random) -> str:
    """Delete, repeat or move one to six spans of a text, or insert tokens and unusual characters."""
    for _ in range(rng.randint(1, 6)):
        start, end = sorted(rng.randint(0, len(text)) for _ in range(2))
        span = text[start:end]
        match rng.randrange(5):
            case 0:
                text = text[:start] + text[end:]
            case 1:
                text = text[:end] + span * rng.randint(1, 3) + text[end:]
            case 2:
                place = rng.randint(0, len(text))
                text = text[:place] + span + text[place:]
            case 3:
                text = text[:start] + rng.choice(FORMAT) + text[start:]
            case _:
                text = text[:start] + rng.choice(OTHER) + text[start:]
        text = text[:2000]
    return text[: rng.randint(0, len(text))] if rng.random() < 0.3 else text


def check(text: str) -> None:
    """Check that parsing loses no word of a text, and that every irregularity belongs to an existing sentence.

    Raises:
        AssertionError: with the text.
    """
    parsed = parse_report(text)
    readable = text.encode("utf-8", "replace").decode()
    words = re.findall(r"\w+", FORMAT_TOKEN.sub(" ", _CUT_TOKEN.sub("", readable)))
    parsed_words = re.findall(r"\w+", " ".join(sentence.text for sentence in parsed.sentences))
    assert Counter(words) == Counter(parsed_words), f"lost or doubled of {text!r}"
    indices = [note.index for note in parsed.irregularities if note.index is not None]
    assert all(0 <= index < len(parsed.sentences) for index in indices), f"notes of {text!r}"


def main(count: int, seed: int = 0) -> None:
    """Check mutated reports and print the time."""
    rng, start = random.Random(seed), time.perf_counter()
    for _ in range(count):
        check(mutate(well_formed(rng), rng))
    print(f"{count} mutated reports parsed in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]))
