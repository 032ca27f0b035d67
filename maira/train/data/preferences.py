"""Preference pairs (a chosen and a rejected report of a study), encoded as one sample with two answers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict

from maira.generate.drafts import without_references
from maira.model.parser import FORMAT_TOKEN, WORD, parse_report, render_report
from maira.model.processor import MairaProcessor
from maira.model.prompts import Task, build_target
from maira.model.task_examples import Example, drop_inputs
from maira.train.config.run_config import DataSource, TrainConfig
from maira.train.data.dataset import StudyDataset, Table, check_unique, study_example
from maira.train.data.packing import SAMPLE_LENGTHS, TASKS, EncodedSample, Preference
from maira.train.data.sources import StudyHeader, StudySource, UnreadableSample, open_source
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_jsonl
from radfact.records import Record, Text, validate_model

PAIR_LENGTHS = np.dtype([*SAMPLE_LENGTHS.descr, ("digest", "<u8")])
"""One pair: total images, prompt tokens and answer tokens of both answers, and a hash of the answers."""


class PreferenceRow(Record):
    """A line of `preferences.jsonl`; other fields are ignored.

    Attributes:
        sample_id: sample of the study.
        chosen, rejected: reports in the model's format, with boxes in the model's crop.
        prompt: prompt of both reports; None for the prompt made from the manifest.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    sample_id: str
    chosen: Text
    rejected: Text
    prompt: str | None = None


class _Answers(NamedTuple):
    """Tokens of the chosen and of the rejected answer."""

    chosen: list[int]
    rejected: list[int]


class PreferenceDataset(StudyDataset):
    """Preference pairs, indexed by their row in the table.

    Args:
        sources: opened sources of the run config.
        table: (pairs,) of dtype `PAIR_LENGTHS`.
        answers: chosen and rejected answer of each row of the table.
        processor: processor of the model.
        config: run config, for its preset and dropped inputs.

    Attributes:
        reference_log_probs: (pairs, 2), log-probabilities of the chosen and rejected answers under the reference model,
            NaN for pairs that could not be read; None before they are computed.
    """

    def __init__(
        self,
        sources: Sequence[StudySource],
        table: npt.NDArray[Any],
        answers: Sequence[_Answers],
        processor: MairaProcessor,
        config: TrainConfig,
    ) -> None:
        super().__init__(sources, Table(table, [], [], {}), processor, config, None)
        self._answers = answers
        self.reference_log_probs: npt.NDArray[np.float64] | None = None

    def encode(self, row: int) -> EncodedSample:
        """Return a pair. See `StudyDataset.encode`."""
        task = TASKS[int(self.table[row]["task"])]
        log_probs = None
        if self.reference_log_probs is not None:
            if np.isnan(self.reference_log_probs[row]).any():
                raise UnreadableSample(
                    "could not be read when the run began", code=ErrorCode.FILE_UNREADABLE, file=self.location(row)
                )
            log_probs = (float(self.reference_log_probs[row, 0]), float(self.reference_log_probs[row, 1]))
        study, radiographs = self.read(row)
        height, width = radiographs[0].shape
        example = study_example(without_references(study), task, 0, self.config, (width, height))
        prompt = self.processor.encode_prompt(example.prompt, len(example.images))
        chosen, rejected = self._answers[row]
        self._check_unchanged(row, study, 2 * len(prompt), len(chosen) + len(rejected))
        return EncodedSample(
            study.sample_id,
            task,
            [*prompt, *chosen],
            len(prompt),
            self.preprocess(radiographs),
            preference=Preference([*prompt, *rejected], log_probs),
        )


def open_preferences(config: TrainConfig, processor: MairaProcessor, window: int) -> PreferenceDataset:
    """Open the preference pairs of a run config.

    Args:
        config: run config.
        processor: processor of the model.
        window: size of the context window, tokens.

    Raises:
        InputError: a file cannot be read or has no pairs, a study of a pair is a duplicate, or a pair has an unknown
            study, or reports that are identical, too long, or not in the model's format.
    """
    sources = [open_source(source) for source in config.train]
    rows: list[tuple[int, ...]] = []
    answers: list[_Answers] = []
    for index, (source, opened) in enumerate(zip(config.train, sources, strict=True)):
        if not config.shares(source) or source.preferences is None:
            continue
        for number, task, images, prompt, pair in _PairReader(config, source, opened, processor, window).read():
            chosen, rejected = pair
            digest = hashlib.blake2b(np.array([len(chosen), *chosen, *rejected], "<u4").tobytes(), digest_size=8)
            counts = (2 * images, 2 * prompt, len(chosen) + len(rejected))
            rows.append((index, number, TASKS.index(task), 0, *counts, int.from_bytes(digest.digest(), "little")))
            answers.append(pair)
    return PreferenceDataset(sources, np.array(rows, PAIR_LENGTHS), answers, processor, config)


class _Pair(NamedTuple):
    """A pair: index of its study in the source, task, images and tokens of its prompt, and its answers."""

    number: int
    task: Task
    images: int
    prompt: int
    answers: _Answers


class _PairReader:
    """Reads the preference pairs of a source."""

    def __init__(
        self, config: TrainConfig, source: DataSource, studies: StudySource, processor: MairaProcessor, window: int
    ) -> None:
        assert source.preferences is not None
        self._config, self._source, self._studies = config, source, studies
        self._processor, self._window, self._file = processor, window, source.preferences

    def read(self) -> Iterator[_Pair]:
        """Yield the pairs in the order of the file."""
        rows = [
            (line, validate_model(PreferenceRow, row, file=self._file, line=line))
            for line, row in read_jsonl(self._file)
        ]
        if not rows:
            raise InputError("expected at least one pair, found none", code=ErrorCode.EMPTY_INPUT, file=self._file)
        headers = self._headers({row.sample_id for _, row in rows})
        for line, row in rows:
            if (header := headers.get(row.sample_id)) is None:
                split = f" in its split '{self._source.split}'" if self._source.split is not None else ""
                raise self._error(
                    line,
                    "sample_id",
                    f"expected a study of {self._studies.location}{split}, found '{row.sample_id}'",
                    ErrorCode.MISMATCH,
                )
            yield self._pair(line, row, header)

    def _headers(self, sample_ids: set[str]) -> dict[str, StudyHeader]:
        """Return the headers of the studies by `sample_id`."""
        errors: list[InputError] = []
        headers: dict[str, StudyHeader] = {}
        for header in self._studies.scan(0, self._studies.count, self._source.split, errors):
            sample_id = header.study.sample_id
            if sample_id in sample_ids:
                first = headers.setdefault(sample_id, header)
                check_unique(self._studies, sample_id, first.number, header.number)
        if errors and sample_ids - headers.keys():
            raise errors[0]  # most likely the reason why the study is missing
        return headers

    def _pair(self, line: int, row: PreferenceRow, header: StudyHeader) -> _Pair:
        study = without_references(drop_inputs(header.study, self._config.drop))
        examples = {
            task: study_example(study, task, 0, self._config, header.frontal_size)
            for task in self._config.shares(self._source)
        }
        task = self._task(line, row, examples)
        example = examples[task]
        prompt = len(self._processor.encode_prompt(example.prompt, len(example.images)))
        answers = _Answers(self._encode(line, "chosen", row, task), self._encode(line, "rejected", row, task))
        if answers.chosen == answers.rejected:
            raise self._error(line, "rejected", "expected a report that differs from the chosen one, found the same")
        for field, ids in answers._asdict().items():
            if prompt + len(ids) > self._window:
                message = f"expected at most {self._window} tokens including the prompt, found {prompt + len(ids)}"
                raise self._error(line, field, message)
        return _Pair(header.number, task, len(example.images), prompt, answers)

    def _task(self, line: int, row: PreferenceRow, examples: Mapping[Task, Example]) -> Task:
        """Return the task that the prompt of a row belongs to, or the only task of the source."""
        if row.prompt is None:
            if len(examples) > 1:
                message = f"expected a prompt, since the source has the tasks {' and '.join(examples)}, found none"
                raise self._error(line, "prompt", message, ErrorCode.MISSING_FIELD)
            return next(iter(examples))
        for task, example in examples.items():
            if row.prompt.strip() == example.prompt.strip():
                return task
        raise self._error(
            line,
            "prompt",
            f"expected the prompt of the study in the manifest for the task {' or '.join(examples)}, with the `preset` "
            "and `drop` of the run, found another; remove the field if the source has one task",
            ErrorCode.MISMATCH,
        )

    def _encode(self, line: int, field: str, row: PreferenceRow, task: Task) -> list[int]:
        """Return the tokens of a report.

        Raises:
            InputError: the report is not in the model's format.
        """
        report: str = getattr(row, field)
        if task == "grounded":
            parsed = parse_report(report)
            is_valid = not parsed.is_narrative and render_report(parsed.sentences) == report
        else:
            is_valid = not FORMAT_TOKEN.search(report) and WORD.search(report) is not None
        if not is_valid:
            form = "sentences as <obj>text<box><x10><y20><x30><y40></box></obj>" if task == "grounded" else "plain text"
            message = f"expected a report in the model's format for the task {task} ({form}), found another format"
            raise self._error(line, field, message, ErrorCode.INVALID_FORMAT)
        return self._processor.encode_target(build_target(report))

    def _error(self, line: int, field: str, message: str, code: ErrorCode = ErrorCode.INVALID_VALUE) -> InputError:
        return InputError(message, code=code, file=self._file, line=line, field=field)
