"""The repetition guard: a sentence that a model says for the third time, word for word, is a loop and no finding."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from maira.model.grammar import MAX_COPIES
from maira.model.parser import Irregularity, ParsedReport, split_sentences
from radfact.records import Sentence


def cut_repetitions(parsed: ParsedReport, max_copies: int = MAX_COPIES) -> ParsedReport:
    """The report with every sentence at most `max_copies` times, "repetition_cut" noted on the last copy kept.

    Irregularities of a sentence that is cut are those of no sentence.

    Args:
        parsed: what the model said.
        max_copies: verbatim copies of a sentence that are kept, boxes or not.
    """
    said: Counter[str] = Counter()
    last: dict[str, int] = {}
    places: list[int | None] = []  # of each sentence among those that are kept
    kept: list[Sentence] = []
    for sentence in parsed.sentences:
        said[sentence.text] += 1
        if said[sentence.text] > max_copies:
            places.append(None)
            continue
        places.append(len(kept))
        last[sentence.text] = len(kept)
        kept.append(sentence)
    if len(kept) == len(parsed.sentences):
        return parsed
    noted = [
        (None if note.index is None else places[note.index], note.kind)
        for note in parsed.irregularities
        if note.index is None or places[note.index] is not None or note.kind != "repeated_sentence"
    ]
    noted += [(last[text], "repetition_cut") for text, copies in said.items() if copies > max_copies]
    noted.sort(key=lambda note: len(kept) if note[0] is None else note[0])
    return replace(
        parsed,
        sentences=kept,
        irregularities=[Irregularity(index=index, kind=kind) for index, kind in dict.fromkeys(noted)],
        text=" ".join(sentence.text for sentence in kept),
    )


def is_loop(narrative: str, continued: str, max_copies: int = MAX_COPIES) -> bool:
    """Whether the last sentence of a narrative is whole and has been said more than `max_copies` times.

    Args:
        narrative: as far as it is written.
        continued: the same with what comes next; the full stop of "1.5" ends no sentence, which only shows there.
        max_copies: verbatim copies that are let pass.
    """
    last = _sentences(narrative)[-1]
    return bool(last) and _sentences(continued).count(last) > max_copies


def _sentences(narrative: str) -> list[str]:
    return [sentence.strip() for sentence in split_sentences(narrative.strip())]
