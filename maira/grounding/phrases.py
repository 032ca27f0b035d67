"""Phrases to locate, from a file or from the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maira.data.study import Study
from radfact.errors import ErrorCode, InputError, describe, list_columns, suggest_name
from radfact.io.csv_tables import read_csv
from radfact.io.jsonl import read_jsonl
from radfact.records import Sentence, validate_model

_TEXT_COLUMNS = ("phrase", "text")


@dataclass(frozen=True, slots=True)
class Phrase:
    """A finding to locate on a study's frontal image.

    Attributes:
        sample_id: sample of the study.
        index: index among the phrases of the study.
        sentence: text of the phrase, with the reference boxes on the ORIGINAL image if they are known.
    """

    sample_id: str
    index: int
    sentence: Sentence


def manifest_phrases(studies: Iterable[Study]) -> list[Phrase]:
    """Return the phrases of the studies, in their order."""
    return _number((study.sample_id, sentence) for study in studies for sentence in study.phrases or ())


def read_phrases(path: Path, sample_ids: Collection[str]) -> list[Phrase]:
    """Read phrases from a file, in its order.

    A `.csv` has the columns `sample_id,phrase`. A `.jsonl` has rows with `sample_id`, `phrase` and, if the reference is
    known, `boxes` in shares of the original image, as in a sentence. `text` is accepted in place of `phrase`.

    Args:
        path: file to read.
        sample_ids: known sample ids.

    Raises:
        InputError: the file has another suffix, cannot be read or is empty, a row is invalid or a duplicate, or a
            `sample_id` is unknown.
    """
    read = {".csv": _read_csv_rows, ".jsonl": read_jsonl}.get(path.suffix.lower())
    if read is None:
        raise InputError("expected a file of phrases in .csv or .jsonl", code=ErrorCode.INVALID_FORMAT, file=path)
    sentences: list[tuple[str, Sentence]] = []
    lines: dict[tuple[str, str], int] = {}
    for line, row in read(path):
        sample_id = row.get("sample_id")
        if sample_id is None:
            raise InputError("missing field", code=ErrorCode.MISSING_FIELD, file=path, line=line, field="sample_id")
        if not isinstance(sample_id, str) or sample_id not in sample_ids:
            hint = suggest_name(str(sample_id), sample_ids, "no sample has a similar name")
            raise InputError(
                f"the manifest has no sample {sample_id!r}; {hint}",
                code=ErrorCode.UNKNOWN_NAME,
                file=path,
                line=line,
                field="sample_id",
            )
        sentence = _read_sentence(row, path, line)
        if (first := lines.setdefault((sample_id, sentence.text), line)) != line:
            message = f"duplicate phrase of sample '{sample_id}', also in line {first}"
            raise InputError(message, code=ErrorCode.DUPLICATE, file=path, line=line, field="phrase")
        sentences.append((sample_id, sentence))
    if not sentences:
        raise InputError("has no phrases", code=ErrorCode.EMPTY_INPUT, file=path)
    return _number(sentences)


def _read_csv_rows(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    columns, rows = read_csv(path)
    if "sample_id" not in columns or len(columns) != 2 or not set(columns) & set(_TEXT_COLUMNS):
        raise InputError(
            f"expected the columns sample_id,phrase; found {list_columns(columns)} "
            "(reference boxes are read from JSON Lines)",
            code=ErrorCode.INVALID_FORMAT,
            file=path,
            line=1,
        )
    return rows


def _read_sentence(row: Mapping[str, Any], path: Path, line: int) -> Sentence:
    names = [name for name in _TEXT_COLUMNS if name in row]
    if len(names) != 1:
        message = "expected one of phrase and text, found both" if names else "missing field"
        code = ErrorCode.DUPLICATE if names else ErrorCode.MISSING_FIELD
        raise InputError(message, code=code, file=path, line=line, field="phrase")
    text = row[names[0]]
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"expected a phrase, found {describe(text)}", file=path, line=line, field=names[0])
    fields = {key: value for key, value in row.items() if key not in ("sample_id", *_TEXT_COLUMNS)}
    return validate_model(Sentence, {"text": text, **fields}, file=path, line=line)


def _number(sentences: Iterable[tuple[str, Sentence]]) -> list[Phrase]:
    counts: Counter[str] = Counter()
    phrases = []
    for sample_id, sentence in sentences:
        phrases.append(Phrase(sample_id, counts[sample_id], sentence))
        counts[sample_id] += 1
    return phrases
