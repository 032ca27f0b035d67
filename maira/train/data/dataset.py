"""Training data of reports: a table of all samples with their lengths, and any sample as tokens and images."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from maira.data.image_check import check_pixels
from maira.data.images import CropMap, Gray
from maira.data.study import IMAGE_COLUMNS, Study
from maira.model.checkpoint import fingerprint
from maira.model.processor import MairaProcessor
from maira.model.prompts import Task, render
from maira.model.task_examples import Example, drop_inputs, make_example
from maira.train.config.run_config import TASKS, DataSource, TrainConfig
from maira.train.data.packing import SAMPLE_LENGTHS, EncodedSample
from maira.train.data.schedule import map_in_workers
from maira.train.data.sources import ManifestSource, StudySource, open_source, reading_sample
from radfact.errors import ErrorCode, InputError
from radfact.io.download import file_sha256
from radfact.io.jsonl import open_atomic, read_json, reading, write_json
from radfact.machine import usable_cores

FORMAT = 3
"""Version of the files of a table; increased when their layout or what they count changes."""

BAD_IMAGES = "images-not-read.txt"
"""File in the folder of a run that lists missing and unreadable images if there are many."""

_MAX_LISTED = 10
_CHUNK = 500
_SINGLE_PROCESS = 2000
"""Number of studies up to which starting processes takes longer than the work."""
_MAX_PROCESSES = 32


@dataclass(frozen=True)
class Table:
    """All samples that can be trained on."""

    rows: npt.NDArray[Any]  # (samples,) of `SAMPLE_LENGTHS`, sorted by source, study, task and phrase
    kinds: list[str]  # kinds of all labels, sorted
    notes: dict[str, int]  # number of samples by the input that cannot be used
    # Prompt and answer of all samples one after the other, with one placeholder for each image.
    tokens: npt.NDArray[Any] = field(default_factory=lambda: np.zeros(0, np.uint32))

    def save(self, folder: Path) -> None:
        """Write the table; `about.json` comes last, so the table is complete if it exists."""
        for name in ("rows", "tokens"):
            with open_atomic(folder / f"{name}.npy", "wb") as handle:
                np.save(handle, getattr(self, name), allow_pickle=False)
        write_json(folder / "about.json", {"kinds": self.kinds, "notes": self.notes})

    @classmethod
    def load(cls, folder: Path) -> Table:
        """Memory-map a table that `save` wrote."""
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("rows", "tokens")}
        return cls(**arrays, **read_json(folder / "about.json"))


class StudyDataset:
    """Samples of studies by their row in the table; `patch_grid`: patches along a side of an image, for a loss."""

    def __init__(
        self,
        sources: Sequence[StudySource],
        table: Table,
        processor: MairaProcessor,
        config: TrainConfig,
        patch_grid: int | None,
    ) -> None:
        self.sources, self.processor, self.config, self.patch_grid = sources, processor, config, patch_grid
        self.pad_id: int = processor.tokenizer.pad_token_id
        self.table, self.kinds, self.notes, self._tokens = table.rows, table.kinds, table.notes, table.tokens
        prompts, answers, images = (self.table[name].astype(np.int64) for name in ("prompt", "answer", "images"))
        counts = prompts + answers - images * (processor.image_seq_length - 1)
        self._starts = np.concatenate(([0], counts.cumsum()))

    def sample_id(self, row: int) -> str:
        lengths = self.table[row]
        return self.sources[int(lengths["source"])].read(int(lengths["number"])).study.sample_id

    def location(self, row: int) -> str:
        """Return where the study of a sample is read from, and its number there from 1."""
        lengths = self.table[row]
        return f"{self.sources[int(lengths['source'])].location} {lengths['number'] + 1}"

    def blank(self) -> EncodedSample:
        """Return an empty image without an answer."""
        ids = [self.processor.image_token_id] * self.processor.image_seq_length
        size = self.processor.image_processor.size
        grid = self.patch_grid
        coverage = None if grid is None else np.zeros((grid**2, len(self.kinds)), np.float32)
        return EncodedSample("", "findings", ids, len(ids), np.zeros((1, size, size), np.float32), coverage)

    def encode(self, row: int) -> EncodedSample:
        """Return the tokens of a sample, and its images preprocessed; each file is read once."""
        lengths = self.table[row]
        study, radiographs = self.read(row)
        ids = self._tokens[self._starts[row] : self._starts[row + 1]]
        coverage = None
        if self.patch_grid is not None:
            height, width = radiographs[0].shape
            coverage = patch_coverage(study, self.kinds, self.patch_grid, CropMap(width, height))
        task, images = TASKS[int(lengths["task"])], self.preprocess(radiographs)
        expanded, prompt = expand_images(ids, self.processor), int(lengths["prompt"])
        return EncodedSample(study.sample_id, task, expanded, prompt, images, coverage)

    def preprocess(self, radiographs: Sequence[Gray]) -> npt.NDArray[np.float32]:
        """Return images as the model reads them, (images, size, size)."""
        # One of three equal channels, since images travel between processes and to the accelerator.
        images: npt.NDArray[np.float32] = self.processor.image_processor(radiographs)["pixel_values"][:, 0].numpy()
        return images

    def read(self, row: int) -> tuple[Study, list[Gray]]:
        """Return the study of a sample without the inputs to drop, and its images that the task reads."""
        lengths = self.table[row]
        source, task = self.sources[int(lengths["source"])], TASKS[int(lengths["task"])]
        sample = source.read(int(lengths["number"]))
        study = drop_inputs(sample.study, self.config.drop)
        read = IMAGE_COLUMNS[:1] if task == "phrase" else IMAGE_COLUMNS
        columns = [column for column in read if getattr(study, column) is not None]
        with reading_sample():
            radiographs = [source.radiograph(sample, column) for column in columns]
            if self.config.faults.image_check == "refuse":
                for column, pixels in zip(columns, radiographs, strict=True):
                    check_pixels(pixels, getattr(study, column))
        return study, radiographs


def open_dataset(
    config: TrainConfig,
    sources: Sequence[DataSource],
    processor: MairaProcessor,
    folder: Path,
    patch_grid: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> StudyDataset:
    """Open the dataset of some sources; its table is read from a folder, or made and saved there."""
    studies = [open_source(source) for source in sources]
    key: list[Any] = [FORMAT, config.preset, sorted(config.drop), processor.image_seq_length]
    key += [processor.tokenizer.backend_tokenizer.to_str(), processor.chat_template]
    for source, opened in zip(sources, studies, strict=True):
        key.append([opened.key(), source.split, sorted(config.shares(source))])
    path = folder / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    if not (path / "about.json").exists():
        _make_table(config, sources, studies, processor, on_progress, folder.with_name(BAD_IMAGES)).save(path)
    return StudyDataset(studies, Table.load(path), processor, config, patch_grid)


def iterate_texts(config: TrainConfig, limit: int) -> Iterator[str]:
    """Yield prompts with answers, findings and grounded, of the first studies, to train a tokenizer on."""
    errors: list[InputError] = []  # reported when the table is made
    sources = [(open_source(source), source.split) for source in config.train]
    headers = ((opened, *header) for opened, split in sources for header in opened.scan(0, opened.count, split, errors))
    for opened, number, study, size in islice(headers, limit):
        for task in ("findings", "grounded"):
            with _locate_errors(opened, number):
                example = study_example(drop_inputs(study, config.drop), task, 0, config, size)
            yield render(example.messages) + (example.target or "")


def encode_example(example: Example, processor: MairaProcessor) -> tuple[list[int], int]:
    """Return the tokens of prompt and answer, tokenized apart as in generation, and the number of prompt tokens."""
    try:
        prompt = processor.encode_example(example)
        return [*prompt, *processor.encode_target(example.target or "")], len(prompt)
    except ValueError as error:
        raise InputError(f"sample '{example.sample_id}' (task {example.task}): {error}") from None


def compact_images(ids: Sequence[int], processor: MairaProcessor) -> list[int]:
    """Return tokens with one placeholder for each image instead of one for each image token."""
    tokens = np.array(ids)
    is_image = tokens == processor.image_token_id
    # Of each image the last token.
    return list(tokens[~is_image | (np.cumsum(is_image) % processor.image_seq_length == 0)].tolist())


def expand_images(ids: npt.NDArray[Any] | Sequence[int], processor: MairaProcessor) -> list[int]:
    """Return the tokens that `compact_images` shortened."""
    tokens = np.asarray(ids, np.int64)
    counts = np.where(tokens == processor.image_token_id, processor.image_seq_length, 1)
    return list(tokens.repeat(counts).tolist())


def patch_coverage(study: Study, kinds: Sequence[str], grid: int, crop: CropMap) -> npt.NDArray[np.float32]:
    """Compute the share of each patch of the frontal's crop that the boxes of each kind cover."""
    coverage = np.zeros((grid, grid, len(kinds)), np.float32)
    edges = np.arange(grid + 1) / grid
    for label in study.labels or ():
        for box in label.boxes or ():
            inside = crop.to_crop(box)[0]
            if inside is None:
                continue
            across = np.clip(np.minimum(edges[1:], inside.x_max) - np.maximum(edges[:-1], inside.x_min), 0, None)
            down = np.clip(np.minimum(edges[1:], inside.y_max) - np.maximum(edges[:-1], inside.y_min), 0, None)
            share = np.outer(down, across).astype(np.float32) * grid * grid
            kind = kinds.index(label.kind)
            coverage[:, :, kind] = np.maximum(coverage[:, :, kind], share)
    return coverage.reshape(grid * grid, len(kinds))


def study_example(study: Study, task: Task, phrase: int, config: TrainConfig, size: tuple[int, int]) -> Example:
    text = (study.phrases or [])[phrase] if task == "phrase" else None
    return make_example(study, task, phrase=text, preset=config.preset, frontal_size=size)


def data_fingerprints(config: TrainConfig) -> dict[str, Any]:
    """Return fingerprints of the model to start from and of the content of the sources, as JSON values."""
    model = fingerprint(config.model) if isinstance(config.model, Path) else None
    train = [_sha256(source.manifest) if source.manifest else open_source(source).key() for source in config.train]
    preferences = [source.preferences and _sha256(source.preferences) for source in config.train]
    return {"model": model, "train": train} | ({"preferences": preferences} if any(preferences) else {})


def _sha256(path: Path) -> str:
    with reading(path):
        return file_sha256(path)


class _TablePart(NamedTuple):
    """Rows and tokens of some studies of a source, and the numbers and names of the studies."""

    rows: npt.NDArray[Any]
    tokens: npt.NDArray[Any]
    names: list[tuple[int, str]]
    kinds: set[str]
    notes: Counter[str]
    image_errors: list[InputError]


def _make_part(
    config: TrainConfig,
    sources: Sequence[DataSource],
    studies: Sequence[StudySource],
    processor: MairaProcessor,
    chunk: tuple[int, int, int],
) -> _TablePart:
    """Make the rows of a chunk, given as (index of the source, first number, end)."""
    index, begin, end = chunk
    split, tasks = sources[index].split, [task for task in TASKS if task in config.shares(sources[index])]
    rows: list[tuple[int, ...]] = []
    tokens: list[int] = []
    names, kinds, notes, image_errors = list[tuple[int, str]](), set[str](), Counter[str](), list[InputError]()
    for number, full_study, frontal_size in studies[index].scan(begin, end, split, image_errors):
        names.append((number, full_study.sample_id))
        kinds.update(label.kind for label in full_study.labels or ())
        study = drop_inputs(full_study, config.drop)
        for task, phrase in answers(study, tasks):
            with _locate_errors(studies[index], number):
                example = study_example(study, task, phrase, config, frontal_size)
                ids, prompt = encode_example(example, processor)
            rows.append((index, number, TASKS.index(task), phrase, len(example.images), prompt, len(ids) - prompt))
            tokens += compact_images(ids, processor)
            notes.update(set(example.notes))
    dtype = np.min_scalar_type(len(processor.tokenizer))
    return _TablePart(np.array(rows, SAMPLE_LENGTHS), np.array(tokens, dtype), names, kinds, notes, image_errors)


def check_unique(studies: StudySource, sample_id: str, first: int, number: int) -> None:
    """Refuse two studies of a source with the same name."""
    if first != number:
        message = f"duplicate name '{sample_id}' of the studies {first + 1} and {number + 1}"
        raise InputError(message, code=ErrorCode.DUPLICATE, file=studies.location, field="sample_id")


def answers(study: Study, tasks: Iterable[Task]) -> Iterator[tuple[Task, int]]:
    """Yield the tasks that a study has an answer for, and the indices of its phrases."""
    for task in tasks:
        if task == "phrase":
            yield from ((task, phrase) for phrase in range(len(study.phrases or ())))
        elif (study.findings if task == "findings" else study.grounded_findings) is not None:
            yield task, 0


@contextmanager
def _locate_errors(studies: StudySource, number: int) -> Iterator[None]:
    """Add file and line of a study to errors without a file."""
    try:
        yield
    except InputError as error:
        if error.file is not None:
            raise
        line = number + 1 if isinstance(studies, ManifestSource) else None
        raise InputError(error.message, code=error.code, file=studies.location, line=line, field=error.field) from None


def _combine_errors(errors: list[InputError], listed: Path) -> InputError:
    """Return one error for those of images; a file lists them if there are too many for a line."""
    if len(errors) == 1:
        return errors[0]
    first = "; ".join(map(str, errors[:_MAX_LISTED]))
    if len(errors) > _MAX_LISTED:
        with open_atomic(listed) as handle:
            handle.writelines(f"{error}\n" for error in errors)
        first += f"; all are listed in {listed}"
    return InputError(f"{len(errors)} images are missing or cannot be read: {first}", code=errors[0].code)


def _make_table(
    config: TrainConfig,
    sources: Sequence[DataSource],
    studies: Sequence[StudySource],
    processor: MairaProcessor,
    on_progress: Callable[[int, int], None] | None,
    bad_images: Path,
) -> Table:
    # An ablation may leave a source without any task.
    used = [index for index, source in enumerate(sources) if config.shares(source)]
    counts = {i: studies[i].count for i in used}
    chunks = [(i, begin, min(begin + _CHUNK, end)) for i, end in counts.items() for begin in range(0, end, _CHUNK)]
    make_part, total = partial(_make_part, config, sources, studies, processor), sum(counts.values())
    processes = min(usable_cores(), _MAX_PROCESSES) if total > _SINGLE_PROCESS else 0
    parts: list[_TablePart] = []
    numbers: dict[tuple[int, str], int] = {}
    done = 0
    with closing(map_in_workers(make_part, chunks, processes)) as made:
        for (index, begin, end), part in zip(chunks, made, strict=True):
            parts.append(part)
            for number, sample_id in part.names:
                check_unique(studies[index], sample_id, numbers.setdefault((index, sample_id), number), number)
            done += end - begin
            if on_progress:
                on_progress(done, total)
    if errors := [error for part in parts for error in part.image_errors]:
        raise _combine_errors(errors, bad_images)
    rows = np.concatenate([np.empty(0, SAMPLE_LENGTHS), *(part.rows for part in parts)])
    for index in used:
        source = sources[index]
        if not (rows["source"] == index).any():
            split = f" in the split '{source.split}'" if source.split is not None else ""
            message = f"has no study{split} with an answer for the task {' or '.join(config.shares(source))}"
            raise InputError(message, code=ErrorCode.EMPTY_INPUT, file=studies[index].location)
    notes = sum((part.notes for part in parts), Counter[str]())
    kinds = sorted(set[str]().union(*(part.kinds for part in parts)))
    return Table(rows, kinds, dict(sorted(notes.items())), np.concatenate([part.tokens for part in parts]))
