"""What a run trains on: a table of all answers with their lengths, made once, and any of them as tokens and images."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data.images import CropMap
from data.study import IMAGE_COLUMNS, Study
from maira.model.checkpoint import fingerprint
from maira.model.processor import MairaProcessor
from maira.model.prompts import Task
from maira.model.task_examples import Example, UnusedInputWarning, drop_inputs, make_example
from maira.train.config.run_config import DataSource, TrainConfig
from maira.train.data.packing import SAMPLE_LENGTHS, TASKS, EncodedSample
from maira.train.data.sources import ManifestSource, StudyHeader, StudySource, manifest_key, open_source
from maira.train.data.workers import map_in_workers
from radfact.doctor.machine import usable_cores
from radfact.errors import InputError
from radfact.io.jsonl import open_atomic, read_json, write_json

FORMAT = 1
"""Of the files of a table; another number when they, or what is counted in them, are made otherwise."""

BAD_IMAGES = "images-not-read.txt"
"""In the folder of a run: images that are missing or cannot be read, a line each, if they are many."""

_NAMED = 10
_CHUNK = 500
_ALONE = 2000
"""Studies up to which starting processes takes longer than the work."""
_MOST_PROCESSES = 32


@dataclass(frozen=True)
class Table:
    """All answers that can be trained on.

    Attributes:
        rows: (answers,) of `SAMPLE_LENGTHS`, by source, study, task and phrase.
        offsets: where the lines of each manifest begin; None for shards.
        kinds: of all labels, sorted.
        notes: of how many answers something cannot be used, by what it is.
    """

    rows: npt.NDArray[Any]
    offsets: list[npt.NDArray[np.uint64] | None]
    kinds: list[str]
    notes: dict[str, int]

    def save(self, folder: Path) -> None:
        """Write it; `about.json` comes last and says that the rest is whole."""
        arrays = {"rows": self.rows} | {f"lines-{i}": o for i, o in enumerate(self.offsets) if o is not None}
        for name, array in arrays.items():
            with open_atomic(folder / f"{name}.npy", "wb") as handle:
                np.save(handle, array, allow_pickle=False)
        write_json(folder / "about.json", {"sources": len(self.offsets), "kinds": self.kinds, "notes": self.notes})

    @classmethod
    def load(cls, folder: Path) -> Table:
        """Read what `save` wrote; the processes of a machine share its memory."""
        about = read_json(folder / "about.json")
        lines = [folder / f"lines-{i}.npy" for i in range(about["sources"])]
        return cls(
            np.load(folder / "rows.npy", mmap_mode="r"),
            [np.load(path, mmap_mode="r") if path.exists() else None for path in lines],
            about["kinds"],
            about["notes"],
        )


class StudyDataset:
    """Samples by their place in the table.

    Args:
        sources: the recipe's, opened, in their order.
        table: of them.
        processor: of the model.
        config: its preset and what it drops count.
        patch_grid: patches along a side of the encoder's image, for the auxiliary loss; None without it.

    Attributes:
        table: (answers,) of `SAMPLE_LENGTHS`.
        kinds: labelled kinds, which the auxiliary loss tells apart.
        notes: of how many answers something cannot be used, by what it is.
    """

    def __init__(
        self,
        sources: Sequence[StudySource],
        table: Table,
        processor: MairaProcessor,
        config: TrainConfig,
        patch_grid: int | None,
    ) -> None:
        self.sources, self.processor, self.config, self.patch_grid = sources, processor, config, patch_grid
        self.table, self.kinds, self.notes = table.rows, table.kinds, table.notes

    @property
    def pad_id(self) -> int:
        """The token of padding."""
        pad_id: int = self.processor.tokenizer.pad_token_id
        return pad_id

    def notices(self) -> list[str]:
        """What of the answers cannot be used, a line each."""
        return [f"{count} of {len(self.table)} answers: {note}" for note, count in self.notes.items()]

    def study(self, source: int, number: int) -> Study:
        """A study by the place of its source and its number there."""
        return self.sources[source].read(number).study

    def sample_id(self, row: int) -> str:
        """Name of the study of an answer."""
        return self.study(int(self.table[row]["source"]), int(self.table[row]["number"])).sample_id

    def place(self, row: int) -> str:
        """Where the study of an answer is read from, and its number there from 1."""
        item = self.table[row]
        return f"{self.sources[int(item['source'])].where} {item['number'] + 1}"

    def blank(self) -> EncodedSample:
        """An empty image that nothing is asked about."""
        ids = [self.processor.image_token_id] * self.processor.image_seq_length
        size = self.processor.image_processor.size
        grid = self.patch_grid
        cover = None if grid is None else np.zeros((grid**2, len(self.kinds)), np.float32)
        return EncodedSample("", "findings", ids, len(ids), np.zeros((1, size, size), np.float32), cover)

    def encode(self, row: int) -> EncodedSample:
        """An answer with its prompt as tokens, and its images prepared; each file is read once.

        Raises:
            Unreadable: an image cannot be read.
            InputError: the study is not as it was when the table was made.
        """
        item = self.table[row]
        source, task = self.sources[int(item["source"])], TASKS[int(item["task"])]
        sample = source.read(int(item["number"]))
        study = drop_inputs(sample.study, self.config.drop)
        radiographs = [source.radiograph(sample, column) for column in _shown(study, task)]
        height, width = radiographs[0].shape
        example = _example(study, task, int(item["phrase"]), self.config, (width, height))
        ids, prompt_tokens = encode_example(example, self.processor)
        if (prompt_tokens, len(ids)) != (item["prompt"], item["prompt"] + item["answer"]):
            raise InputError(
                f"sample '{study.sample_id}' has {len(ids)} tokens, and had {item['prompt'] + item['answer']} when the "
                "run began; a run's data must stay as it is",
                file=source.where,
            )
        # Three equal channels are one too many times three for the way to the accelerator.
        images = self.processor.image_processor(radiographs)["pixel_values"][:, 0].numpy()
        coverage = None
        if self.patch_grid is not None:
            coverage = patch_coverage(study, self.kinds, self.patch_grid, CropMap(width, height))
        return EncodedSample(study.sample_id, task, ids, prompt_tokens, images, coverage)


def open_dataset(
    config: TrainConfig,
    sources: Sequence[DataSource],
    processor: MairaProcessor,
    folder: Path,
    *,
    patch_grid: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> StudyDataset:
    """The corpus of some sources; its table is read from a folder, or made by several processes and put there.

    Of the processes of a run the main one comes first, and the others find what it made.

    Args:
        config: its shares, preset and what it drops count.
        sources: to train or validate on.
        processor: of the model.
        folder: of the run's tables; each has a folder in it, named by a key of all that it depends on.
        patch_grid: as for `StudyDataset`.
        on_progress: called with (studies done, studies in all) while a table is made.

    Raises:
        InputError: a study cannot be read or made a sample, or a source has no answer.
    """
    place = folder / _key(config, sources, processor)
    if not (place / "about.json").exists():
        _make_table(config, sources, processor, on_progress, folder.with_name(BAD_IMAGES)).save(place)
    table = Table.load(place)
    opened = [open_source(source, offsets) for source, offsets in zip(sources, table.offsets, strict=True)]
    return StudyDataset(opened, table, processor, config, patch_grid)


def texts(config: TrainConfig, limit: int) -> Iterator[str]:
    """Prompts with their answers, findings and grounded, of the first studies of a recipe: a tokenizer's food.

    Args:
        config: its sources, preset and what it drops count.
        limit: most studies.

    Raises:
        InputError: a study cannot be read or made a sample.
    """
    passed_over: list[InputError] = []  # the table names all of them
    seen = (
        (opened, *found)
        for source in config.train
        for opened in (open_source(source),)
        for found in opened.scan(0, opened.count, source.split, passed_over)
    )
    for opened, number, study, size in islice(seen, limit):
        for task in ("findings", "grounded"):
            with _naming(opened, number):
                example = _example(drop_inputs(study, config.drop), task, 0, config, size)
            yield example.prompt + (example.target or "")


def encode_example(example: Example, processor: MairaProcessor) -> tuple[list[int], int]:
    """The tokens of a sample, prompt and answer, and how many of them are the prompt's.

    The model will be shown the prompt alone, so its tokens must be those that begin the whole text (specification,
    "Prompt"), and each image must have its place.

    Raises:
        InputError: they do not line up.
    """
    target, images = example.target or "", len(example.images)
    try:
        prompt = processor.encode_prompt(example.prompt, images)
        answer = processor.encode_target(target)
        whole = [*processor.encode_prompt(example.prompt + target, images), processor.tokenizer.eos_token_id]
    except ValueError as error:
        raise InputError(f"sample '{example.sample_id}' (task {example.task}): {error}") from None
    ids = [*prompt, *answer]
    if ids != whole:
        agree = next((i for i, (a, b) in enumerate(zip(ids, whole, strict=False)) if a != b), min(len(ids), len(whole)))
        raise InputError(
            f"sample '{example.sample_id}' (task {example.task}): prompt and answer have {len(prompt)} + {len(answer)} "
            f"tokens, but the text of both has {len(whole)}, of which only the first {agree} are the same; the "
            "tokenizer does not split it where the answer begins"
        )
    found, wanted = ids.count(processor.image_token_id), images * processor.image_seq_length
    if found != wanted:
        raise InputError(
            f"sample '{example.sample_id}' (task {example.task}): {found} image tokens for {images} images of "
            f"{processor.image_seq_length} tokens, which are {wanted}"
        )
    return ids, len(prompt)


def patch_coverage(study: Study, kinds: Sequence[str], grid: int, crop: CropMap) -> npt.NDArray[np.float32]:
    """Share of each patch of the frontal's crop that the boxes of each kind cover.

    Args:
        study: with labels.
        kinds: all that there are.
        grid: patches along a side.
        crop: of the frontal.

    Returns:
        (grid * grid, kinds).
    """
    cover = np.zeros((grid, grid, len(kinds)), np.float32)
    edges = np.arange(grid + 1) / grid
    for label in study.labels or ():
        for box in label.boxes or ():
            inside = crop.to_crop(box)[0]
            if inside is None:
                continue
            across = np.clip(np.minimum(edges[1:], inside.x_max) - np.maximum(edges[:-1], inside.x_min), 0, None)
            down = np.clip(np.minimum(edges[1:], inside.y_max) - np.maximum(edges[:-1], inside.y_min), 0, None)
            part = np.outer(down, across).astype(np.float32) * grid * grid
            kind = kinds.index(label.kind)
            cover[:, :, kind] = np.maximum(cover[:, :, kind], part)
    return cover.reshape(grid * grid, len(kinds))


def _shown(study: Study, task: Task) -> list[str]:
    """Columns of the images that a prompt shows, in its order."""
    columns = IMAGE_COLUMNS[:1] if task == "phrase" else IMAGE_COLUMNS
    return [column for column in columns if getattr(study, column) is not None]


def _example(study: Study, task: Task, phrase: int, config: TrainConfig, size: tuple[int, int]) -> Example:
    asked = (study.phrases or [])[phrase] if task == "phrase" else None
    with warnings.catch_warnings():
        # Counted in the table, and said once for all.
        warnings.simplefilter("ignore", UnusedInputWarning)
        return make_example(study, task, phrase=asked, preset=config.preset, frontal_size=size)


def _key(config: TrainConfig, sources: Sequence[DataSource], processor: MairaProcessor) -> str:
    """Of all that a table depends on."""
    parts: list[Any] = [FORMAT, config.preset, sorted(config.drop), processor.image_seq_length]
    parts.append(processor.tokenizer.backend_tokenizer.to_str())
    parts += [[_source_key(source), source.split, sorted(config.shares(source))] for source in sources]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _source_key(source: DataSource) -> Any:
    return manifest_key(source.manifest) if source.manifest is not None else open_source(source).key()


def data_fingerprints(config: TrainConfig) -> dict[str, Any]:
    """What lies on disk by now under the names in a recipe: the model to start from, and the sources; JSON values.

    Of sources by their content, since a copy of a manifest is the same studies.

    Raises:
        InputError: one of them is not there.
    """
    model = fingerprint(config.model) if isinstance(config.model, Path) else None
    return {"model": model, "train": [_content_key(source) for source in config.train]}


def _content_key(source: DataSource) -> Any:
    if source.manifest is None:
        return open_source(source).key()
    try:
        with source.manifest.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=source.manifest) from None


@dataclass(frozen=True)
class _Part:
    """What was found in some studies of a source: the answers, a fingerprint of every study's name, images that cannot
    be read, and the rest as in `Table`."""

    rows: npt.NDArray[Any]
    names: dict[bytes, int]
    kinds: set[str]
    notes: Counter[str]
    faults: list[InputError]


class _Measure:
    """Looks through studies; a job is (place of the source, first number, end)."""

    def __init__(
        self,
        config: TrainConfig,
        sources: Sequence[DataSource],
        studies: Sequence[StudySource],
        processor: MairaProcessor,
    ) -> None:
        self.config, self.sources, self.studies, self.processor = config, sources, studies, processor

    def __call__(self, job: tuple[int, int, int]) -> _Part:
        place, begin, end = job
        split, tasks = self.sources[place].split, [t for t in TASKS if t in self.config.shares(self.sources[place])]
        rows: list[tuple[int, ...]] = []
        part = _Part(np.empty(0, SAMPLE_LENGTHS), {}, set(), Counter(), [])
        for seen in self.studies[place].scan(begin, end, split, part.faults):
            name = hashlib.blake2b(seen.study.sample_id.encode(), digest_size=8).digest()
            self._check_unique(place, seen, part.names.setdefault(name, seen.number))
            part.kinds.update(label.kind for label in seen.study.labels or ())
            study = drop_inputs(seen.study, self.config.drop)
            for task, phrase in _answers(study, tasks):
                with _naming(self.studies[place], seen.number):
                    example = _example(study, task, phrase, self.config, seen.frontal_size)
                    ids, prompt = encode_example(example, self.processor)
                lengths = (len(example.images), prompt, len(ids) - prompt)
                rows.append((place, seen.number, TASKS.index(task), phrase, *lengths))
                part.notes.update(set(example.notes))
        return replace(part, rows=np.array(rows, SAMPLE_LENGTHS))

    def _check_unique(self, place: int, seen: StudyHeader, first: int) -> None:
        check_unique(self.studies[place], seen.study.sample_id, first, seen.number)


def check_unique(studies: StudySource, sample_id: str, first: int, number: int) -> None:
    """Raise an InputError where two studies of a source have the same name."""
    if first != number:
        message = f"'{sample_id}' must be unique, but studies {first + 1} and {number + 1} have it"
        raise InputError(message, file=studies.where, field="sample_id")


def _answers(study: Study, tasks: Iterable[Task]) -> Iterator[tuple[Task, int]]:
    """The tasks that a study has an answer for; each of its phrases is one."""
    for task in tasks:
        if task == "phrase":
            yield from ((task, phrase) for phrase in range(len(study.phrases or ())))
        elif (study.findings if task == "findings" else study.grounded_findings) is not None:
            yield task, 0


@contextmanager
def _naming(studies: StudySource, number: int) -> Iterator[None]:
    """Say of which study an error is that does not say it itself."""
    try:
        yield
    except InputError as error:
        if error.file is not None:
            raise
        raise InputError(error.message, file=studies.where, line=studies.line(number), field=error.field) from None


def all_of(faults: list[InputError], what: str, listed: Path) -> InputError:
    """One error for all that cannot be read.

    Args:
        faults: one each, at least one.
        what: they are about, in the plural, and that they cannot be used.
        listed: file that lists them where they are too many for a line.
    """
    if len(faults) == 1:
        return faults[0]
    first = "; ".join(map(str, faults[:_NAMED]))
    if len(faults) > _NAMED:
        with open_atomic(listed) as handle:
            handle.writelines(f"{fault}\n" for fault in faults)
        first += f"; all are listed in {listed}"
    return InputError(f"{len(faults)} {what}: {first}")


def _make_table(
    config: TrainConfig,
    sources: Sequence[DataSource],
    processor: MairaProcessor,
    on_progress: Callable[[int, int], None] | None,
    bad_images: Path,
) -> Table:
    studies = [open_source(source) for source in sources]
    # An ablation may leave a source without any task; its studies are of no interest then.
    used = [place for place, source in enumerate(sources) if config.shares(source)]
    jobs = [
        (i, begin, min(begin + _CHUNK, studies[i].count)) for i in used for begin in range(0, studies[i].count, _CHUNK)
    ]
    measure, in_all = _Measure(config, sources, studies, processor), sum(studies[i].count for i in used)
    processes = min(usable_cores(), _MOST_PROCESSES)
    parts: Iterable[_Part] = (
        map(measure, jobs) if in_all <= _ALONE or processes == 1 else map_in_workers(measure, jobs, processes)
    )
    rows, names, kinds, notes, done = [], [dict[bytes, int]() for _ in studies], set[str](), Counter[str](), 0
    faults: list[InputError] = []
    for (place, begin, end), part in zip(jobs, parts, strict=True):
        rows.append(part.rows)
        for name in part.names.keys() & names[place].keys():
            number = part.names[name]
            first = names[place][name]
            check_unique(studies[place], studies[place].read(number).study.sample_id, first, number)
        names[place].update(part.names)
        kinds |= part.kinds
        notes += part.notes
        faults += part.faults
        done += end - begin
        if on_progress:
            on_progress(done, in_all)
    if faults:
        raise all_of(faults, "images are missing or cannot be read", bad_images)
    table = np.concatenate([np.empty(0, SAMPLE_LENGTHS), *rows])
    for place in used:
        source = sources[place]
        if not (table["source"] == place).any():
            split = f" in the split '{source.split}'" if source.split is not None else ""
            tasks = " or ".join(config.shares(source))
            raise InputError(f"has no study{split} with an answer for the task {tasks}", file=studies[place].where)
    offsets = [s.offsets if isinstance(s, ManifestSource) else None for s in studies]
    return Table(table, offsets, sorted(kinds), dict(sorted(notes.items())))
