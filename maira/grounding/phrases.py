"""Phrases to locate, from a file or from the manifest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from pydantic import AliasChoices, Field

from maira.data.study import Study
from radfact.errors import ErrorCode, InputError, list_columns, suggest_name
from radfact.io.csv_tables import read_csv
from radfact.io.jsonl import read_jsonl
from radfact.records import Sentence, Text, validate_model


@dataclass(frozen=True, slots=True)
class Phrase:
    """A finding to locate, by its index among the phrases of a study, with reference boxes on the ORIGINAL image."""

    sample_id: str
    index: int
    sentence: Sentence


class _PhraseRow(Sentence):
    sample_id: str
    text: Text = Field(validation_alias=AliasChoices("phrase", "text"))


def manifest_phrases(studies: Iterable[Study]) -> list[Phrase]:
    return _number((study.sample_id, sentence) for study in studies for sentence in study.phrases or ())


def read_phrases(path: Path, sample_ids: Collection[str]) -> list[Phrase]:
    """Read the phrases of known samples from a file, in its order."""
    # A `.csv` has the columns `sample_id,phrase`. A `.jsonl` has rows with `sample_id`, `phrase` and, if the reference
    # is known, `boxes` in shares of the original image, as in a sentence. `text` is accepted in place of `phrase`.
    read = {".csv": _read_csv_rows, ".jsonl": read_jsonl}.get(path.suffix.lower())
    if read is None:
        raise InputError("expected a file of phrases in .csv or .jsonl", code=ErrorCode.INVALID_FORMAT, file=path)
    sentences: list[tuple[str, Sentence]] = []
    lines: dict[tuple[str, str], int] = {}
    for line, row in read(path):
        if "phrase" in row and "text" in row:
            message = "expected one of phrase and text, found both"
            raise InputError(message, code=ErrorCode.DUPLICATE, file=path, line=line, field="phrase")
        phrase = validate_model(_PhraseRow, row, file=path, line=line)
        sample_id, sentence = phrase.sample_id, Sentence(**phrase.model_dump(exclude={"sample_id"}))
        if sample_id not in sample_ids:
            hint = suggest_name(sample_id, sample_ids, "no sample has a similar name")
            message = f"the manifest has no sample {sample_id!r}; {hint}"
            raise InputError(message, code=ErrorCode.UNKNOWN_NAME, file=path, line=line, field="sample_id")
        if (first := lines.setdefault((sample_id, sentence.text), line)) != line:
            message = f"duplicate phrase of sample '{sample_id}', also in line {first}"
            raise InputError(message, code=ErrorCode.DUPLICATE, file=path, line=line, field="phrase")
        sentences.append((sample_id, sentence))
    if not sentences:
        raise InputError("has no phrases", code=ErrorCode.EMPTY_INPUT, file=path)
    return _number(sentences)


def _read_csv_rows(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    columns, rows = read_csv(path)
    if set(columns) not in ({"sample_id", "phrase"}, {"sample_id", "text"}) or len(columns) != 2:
        found = f"found {list_columns(columns)} (reference boxes are read from JSON Lines)"
        message = f"expected the columns sample_id,phrase; {found}"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path, line=1)
    return rows


def _number(sentences: Iterable[tuple[str, Sentence]]) -> list[Phrase]:
    indices: defaultdict[str, count[int]] = defaultdict(count)
    return [Phrase(sample_id, next(indices[sample_id]), sentence) for sample_id, sentence in sentences]
