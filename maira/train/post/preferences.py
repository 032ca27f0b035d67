"""Preference pairs (a chosen and a rejected report of a study), encoded as one sample with two answers."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict

from maira.generate.drafts import without_references
from maira.model.parser import FORMAT_TOKEN, WORD, parse_report, render_report
from maira.model.processor import MairaProcessor
from maira.model.prompts import Task, build_target
from maira.model.task_examples import drop_inputs
from maira.train.config.run_config import TASKS, DataSource, TrainConfig
from maira.train.data.dataset import StudyDataset, Table, check_unique, compact_images, expand_images, study_example
from maira.train.data.packing import SAMPLE_LENGTHS, EncodedSample, Preference
from maira.train.data.sources import StudyHeader, StudySource, UnreadableSample, open_source
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_jsonl
from radfact.records import Record, Text, validate_model

PAIR_LENGTHS = np.dtype([*SAMPLE_LENGTHS.descr, ("digest", "<u8")])
"""One pair: total images, prompt tokens and answer tokens of both answers, and a hash of the answers."""
PROMPT_IGNORED = "`prompt` is ignored: the prompt is made from the manifest with the `preset` and `drop` of the run"
"""Note about pairs of earlier versions, whose files have prompts."""
_FORMS = {"grounded": "sentences as <obj>text<box><x10><y20><x30><y40></box></obj>", "findings": "plain text"}


class PreferenceRow(Record):
    """A line of `preferences.jsonl`: reports of a sample in the model's format, with boxes in the model's crop."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    sample_id: str
    chosen: Text
    rejected: Text


class _Pair(NamedTuple):
    """Tokens of a prompt, with one placeholder for each image, and of the chosen and the rejected answer."""

    prompt: list[int]
    chosen: list[int]
    rejected: list[int]


class PreferenceDataset(StudyDataset):
    """Preference pairs, indexed by their row in a table of `PAIR_LENGTHS`."""

    pairs: Sequence[_Pair]
    # (pairs, 2), under the reference model; NaN for pairs that could not be read; None before they are computed.
    reference_log_probs: npt.NDArray[np.float64] | None = None

    def encode(self, row: int) -> EncodedSample:
        task = TASKS[int(self.table[row]["task"])]
        log_probs = None
        if self.reference_log_probs is not None:
            chosen_log_prob, rejected_log_prob = self.reference_log_probs[row].tolist()
            if np.isnan(chosen_log_prob):
                message = "could not be read when the run began"
                raise UnreadableSample(message, code=ErrorCode.FILE_UNREADABLE, file=self.location(row))
            log_probs = (chosen_log_prob, rejected_log_prob)
        study, radiographs = self.read(row)
        pair = self.pairs[row]
        prompt = expand_images(pair.prompt, self.processor)
        ids, preference = [*prompt, *pair.chosen], Preference([*prompt, *pair.rejected], log_probs)
        images = self.preprocess(radiographs)
        return EncodedSample(study.sample_id, task, ids, len(prompt), images, preference=preference)


def open_preferences(config: TrainConfig, processor: MairaProcessor, window: int) -> PreferenceDataset:
    """Open the preference pairs of a run config, whose reports fit in a context window with their prompts."""
    # The prompt is made with the `preset` and `drop` of the run; the form of the reports tells the task.
    sources = [open_source(source) for source in config.train]
    rows: list[tuple[int, ...]] = []
    encoded_pairs: list[_Pair] = []
    notes: Counter[str] = Counter()
    for index, (source, studies) in enumerate(zip(config.train, sources, strict=True)):
        file = source.preferences
        if file is None or not config.shares(source):
            continue
        lines = list(read_jsonl(file))
        if not lines:
            raise InputError("expected at least one pair, found none", code=ErrorCode.EMPTY_INPUT, file=file)
        pairs = [(line, validate_model(PreferenceRow, row, file=file, line=line)) for line, row in lines]
        notes[PROMPT_IGNORED] += sum("prompt" in row for _, row in lines)
        headers = _read_headers(source, studies, {pair.sample_id for _, pair in pairs})
        for line, pair in pairs:
            try:
                header = headers.get(pair.sample_id)
                if header is None:
                    split = f" in its split '{source.split}'" if source.split is not None else ""
                    message = f"expected a study of {studies.location}{split}, found '{pair.sample_id}'"
                    raise InputError(message, code=ErrorCode.MISMATCH, field="sample_id")
                task, images, prompt, encoded = _encode_pair(config, source, processor, pair, header)
                for field, ids in (("chosen", encoded.chosen), ("rejected", encoded.rejected)):
                    if prompt + len(ids) > window:
                        message = f"expected at most {window} tokens including the prompt, found {prompt + len(ids)}"
                        raise InputError(message, field=field)
            except InputError as error:
                if error.file is not None:
                    raise
                raise InputError(error.message, code=error.code, file=file, line=line, field=error.field) from None
            flat = np.array([len(encoded.chosen), *encoded.chosen, *encoded.rejected], "<u4")
            digest = int.from_bytes(hashlib.blake2b(flat.tobytes(), digest_size=8).digest(), "little")
            lengths = (2 * images, 2 * prompt, len(encoded.chosen) + len(encoded.rejected))
            rows.append((index, header.number, TASKS.index(task), 0, *lengths, digest))
            encoded_pairs.append(encoded)
    table = Table(np.array(rows, PAIR_LENGTHS), [], +notes)
    dataset = PreferenceDataset(sources, table, processor, config, None)
    dataset.pairs = encoded_pairs
    return dataset


def _read_headers(source: DataSource, studies: StudySource, sample_ids: set[str]) -> dict[str, StudyHeader]:
    """Return the headers of studies by `sample_id`; one that is missing raises the first error of the source."""
    errors: list[InputError] = []
    headers: dict[str, StudyHeader] = {}
    for header in studies.scan(0, studies.count, source.split, errors):
        sample_id = header.study.sample_id
        if sample_id in sample_ids:
            first = headers.setdefault(sample_id, header)
            check_unique(studies, sample_id, first.number, header.number)
    if errors and sample_ids - headers.keys():
        raise errors[0]
    return headers


def _encode_pair(
    config: TrainConfig, source: DataSource, processor: MairaProcessor, pair: PreferenceRow, header: StudyHeader
) -> tuple[Task, int, int, _Pair]:
    """Return the task of a pair, the numbers of images and tokens of its prompt, and its tokens."""
    tasks = config.shares(source)
    task: Task = "grounded" if FORMAT_TOKEN.search(pair.chosen) else "findings"
    task = task if task in tasks else next(iter(tasks))
    study = without_references(drop_inputs(header.study, config.drop))
    example = study_example(study, task, 0, config, header.frontal_size)
    prompt = processor.encode_example(example)
    chosen, rejected = (_encode_report(processor, name, getattr(pair, name), task) for name in ("chosen", "rejected"))
    if chosen == rejected:
        raise InputError("expected a report that differs from the chosen one, found the same", field="rejected")
    return task, len(example.images), len(prompt), _Pair(compact_images(prompt, processor), chosen, rejected)


def _encode_report(processor: MairaProcessor, field: str, report: str, task: Task) -> list[int]:
    """Return the tokens of a report; InputError if it is not in the model's format."""
    if task == "grounded":
        parsed = parse_report(report)
        is_valid = not parsed.is_narrative and render_report(parsed.sentences) == report
    else:
        is_valid = not FORMAT_TOKEN.search(report) and WORD.search(report) is not None
    if not is_valid:
        message = f"expected a report in the model's format for the task {task} ({_FORMS[task]}), found another format"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, field=field)
    return processor.encode_target(build_target(report))
