"""Repetition guard: a sentence repeated verbatim for the third time is a loop of the model, not a finding."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from maira.model.grammar import MAX_COPIES
from maira.model.parser import Irregularity, ParsedReport, split_sentences
from radfact.records import Sentence


def cut_repetitions(parsed: ParsedReport, max_copies: int = MAX_COPIES) -> ParsedReport:
    """Remove all but the first `max_copies` copies of every sentence, and note "repetition_cut" on the last of them.

    Irregularities of a removed sentence are attributed to no sentence.

    Args:
        parsed: parsed report.
        max_copies: largest number of verbatim copies of a sentence, with or without boxes.
    """
    counts: Counter[str] = Counter()
    last: dict[str, int] = {}
    new_indices: list[int | None] = []
    sentences: list[Sentence] = []
    for sentence in parsed.sentences:
        counts[sentence.text] += 1
        if counts[sentence.text] > max_copies:
            new_indices.append(None)
            continue
        new_indices.append(len(sentences))
        last[sentence.text] = len(sentences)
        sentences.append(sentence)
    if len(sentences) == len(parsed.sentences):
        return parsed
    notes = [
        (None if note.index is None else new_indices[note.index], note.kind)
        for note in parsed.irregularities
        if note.index is None or new_indices[note.index] is not None or note.kind != "repeated_sentence"
    ]
    notes += [(last[text], "repetition_cut") for text, copies in counts.items() if copies > max_copies]
    notes.sort(key=lambda note: len(sentences) if note[0] is None else note[0])
    return replace(
        parsed,
        sentences=sentences,
        irregularities=[Irregularity(index=index, kind=kind) for index, kind in dict.fromkeys(notes)],
        text=" ".join(sentence.text for sentence in sentences),
    )


def is_loop(narrative: str, continued: str, max_copies: int = MAX_COPIES) -> bool:
    """Return whether the last sentence of a narrative is complete and occurs more than `max_copies` times.

    Args:
        narrative: text generated so far.
        continued: the same text with the next token, which shows that the period of "1.5" ends no sentence.
        max_copies: largest number of verbatim copies.
    """
    last = _sentences(narrative)[-1]
    return bool(last) and _sentences(continued).count(last) > max_copies


def _sentences(narrative: str) -> list[str]:
    return [sentence.strip() for sentence in split_sentences(narrative.strip())]
