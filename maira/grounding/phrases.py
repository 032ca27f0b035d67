"""Phrases to locate: from a file of the user's, or from the manifest itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.study import Study
from radfact.errors import InputError, brief, suggest_name
from radfact.io.csv_tables import read_csv
from radfact.io.jsonl import read_jsonl
from radfact.records import Sentence, validated

_TEXTS = ("phrase", "text")
"""Names of the column with the words: that of tables, and that of the project's sentences."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """One finding to locate on a study's frontal image.

    Attributes:
        index: among the phrases of its study, from 0.
        sentence: its words, with the reference's boxes on the ORIGINAL image where they are known.
    """

    sample_id: str
    index: int
    sentence: Sentence


def manifest_phrases(studies: Iterable[Study]) -> list[Phrase]:
    """The phrases that a manifest has itself, in its order."""
    return _numbered((study.sample_id, sentence) for study in studies for sentence in study.phrases or ())


def read_phrases(path: Path, known: Collection[str]) -> list[Phrase]:
    """Phrases of a file, in its order.

    `.csv`: a table with the columns `sample_id,phrase`. `.jsonl`: JSON Lines with `sample_id`, `phrase` and,
    where the reference is known, `boxes` in shares of the original image, as sentences of the project have them. The
    words may be called `text` in both.

    Args:
        path: the file.
        known: sample ids that phrases can be about.

    Raises:
        InputError: the file has another ending, cannot be read or has no phrase, a line is no phrase, or a `sample_id`
            is not known.
    """
    read = {".csv": _csv_rows, ".jsonl": read_jsonl}.get(path.suffix.lower())
    if read is None:
        raise InputError("a file of phrases is a table or JSON Lines; name it .csv or .jsonl", file=path)
    found: list[tuple[str, Sentence]] = []
    for line, row in read(path):
        sample_id = row.get("sample_id")
        if not isinstance(sample_id, str) or sample_id not in known:
            raise InputError(_unknown(sample_id, known), file=path, line=line, field="sample_id")
        found.append((sample_id, _sentence(row, path, line)))
    if not found:
        raise InputError("has no phrases", file=path)
    return _numbered(found)


def _csv_rows(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    columns, rows = read_csv(path)
    if "sample_id" not in columns or len(columns) != 2 or not set(columns) & set(_TEXTS):
        raise InputError(
            f"expected the columns sample_id,phrase; found {', '.join(columns) or 'none'} "
            "(reference boxes are read from JSON Lines)",
            file=path,
            line=1,
        )
    return rows


def _sentence(row: Mapping[str, Any], path: Path, line: int) -> Sentence:
    names = [name for name in _TEXTS if name in row]
    if len(names) != 1:
        wrong = "one of 'phrase' and 'text' is enough" if names else "the words to locate are missing"
        raise InputError(wrong, file=path, line=line, field="phrase")
    text = row[names[0]]
    if not isinstance(text, str) or not text.strip():
        raise InputError(
            f"expected a phrase that is not blank, found {brief(text)}", file=path, line=line, field=names[0]
        )
    fields = {key: value for key, value in row.items() if key not in ("sample_id", *_TEXTS)}
    return validated(Sentence, {"text": text, **fields}, file=path, line=line)


def _unknown(sample_id: Any, known: Collection[str]) -> str:
    if sample_id is None:
        return "the study's sample_id is missing"
    return f"the manifest has no sample {sample_id!r}; {suggest_name(str(sample_id), known, 'none has a name like it')}"


def _numbered(found: Iterable[tuple[str, Sentence]]) -> list[Phrase]:
    counted: Counter[str] = Counter()
    phrases = []
    for sample_id, sentence in found:
        phrases.append(Phrase(sample_id, counted[sample_id], sentence))
        counted[sample_id] += 1
    return phrases
