"""What a run goes through: how many answers an epoch has, and how long they are, before any of it is tokenised."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from maira.model.config import MairaConfig
from maira.model.prompts import Task
from maira.model.task_examples import UnusedInputWarning, drop_inputs, make_example
from maira.model.tokens import IMAGE
from maira.train.config.run_config import DataSource, TrainConfig
from maira.train.data.packing import SAMPLE_LENGTHS, TASKS
from maira.train.data.sources import StudySource, open_source
from radfact.errors import InputError


class Published(NamedTuple):
    """A row of the paper's table 1, training side: a task, its samples, and the shares with a lateral and a prior."""

    task: Task
    samples: int
    lateral: float
    prior: float


TABLE_1 = {
    "MIMIC-CXR": Published("findings", 158_555, 0.606, 0.642),
    "MS-CXR": Published("phrase", 817, 0, 0),
    "PadChest": Published("findings", 85_598, 0.46, 0.383),
    "PadChest-GR": Published("grounded", 3_183, 0.447, 0.323),
    "USMix": Published("findings", 193_652, 0.517, 0),
    "USMix, GR-1": Published("grounded", 60_463, 0.48, 0),
    "USMix, GR-Bench": Published("grounded", 8_580, 0.812, 0),
}
"""Training samples of MAIRA-2 (table 1), 510,848 in all."""
_FOLDERS = {
    "mimic": "MIMIC-CXR",
    "mimic-cxr": "MIMIC-CXR",
    "mimic-cxr-jpg": "MIMIC-CXR",
    "ms-cxr": "MS-CXR",
    "padchest": "PadChest",
    "padchest-gr": "PadChest-GR",
}
"""Rows of the table by the folders that `maira prepare` is told to write."""
_TEXT, _ANSWER = 336, 140
"""Tokens of an average sample beside its images, and those of them that are the answer's (specification, "Costs")."""
_CHARACTERS = 4.0
"""Of a token of text, about, where the model's own tokenizer is not there to say."""
_LOOKED_AT = 400
"""Studies of a source whose texts are read."""
_ROWS = 2000


@dataclass(frozen=True)
class Workload:
    """An epoch.

    Attributes:
        answers: samples in it, by the recipe's shares.
        rows: (rows,) of `SAMPLE_LENGTHS`, as long as an epoch's on average.
        basis: where these figures come from, in words.
    """

    answers: int
    rows: npt.NDArray[Any]
    basis: str

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """(rows,), of prompt and answer."""
        tokens: npt.NDArray[np.int64] = self.rows["prompt"].astype(np.int64) + self.rows["answer"]
        return tokens


def measure_workload(config: TrainConfig, model_config: MairaConfig) -> Workload:
    """Measure the workload of the data of a configuration; missing sources are replaced by their rows of table 1.

    A missing source is identified by the name of a folder on its path, such as `padchest-gr`. If table 1 has no row of
    that name, the whole table replaces the data.

    Args:
        config: of the training.
        model_config: of the model.

    Raises:
        InputError: the data exist and cannot be read, or have no answers for the tasks.
    """
    opened = [(source, _open(source)) for source in config.train]
    missing = [(source, reason) for source, reason in opened if isinstance(reason, str)]
    if nameless := [f"{_path(source)} {reason}" for source, reason in missing if _row_of(source) is None]:
        return paper_workload(config, model_config, "; ".join(nameless))
    count, how = _counter(config)
    parts: list[npt.NDArray[Any]] = []
    weights: list[float] = []
    basis: list[str] = []
    looked = 0
    for source, found in opened:
        shares = config.shares(source)
        if isinstance(found, str):
            name = _row_of(source) or ""
            row = TABLE_1[name]
            samples = row.samples * shares.get(row.task, 0.0)
            parts.append(_published(row, config, model_config))
            weights += [samples / _ROWS] * _ROWS
            basis.append(
                f"{name} of the paper's table 1, {round(samples):,} samples, for {_path(source)}, which {found}"
            )
            continue
        rows, stands_for, seen = _look(found, source, config, model_config, count)
        parts.append(rows)
        weights += [stands_for * shares[TASKS[task]] for task in rows["task"]]
        looked += seen
    if not any(weights):
        raise InputError("the studies have no answer for the tasks that are asked for", field="train")
    table, weight = np.concatenate(parts), np.array(weights)
    drawn = table[np.random.default_rng(0).choice(len(table), _ROWS, p=weight / weight.sum())]
    own = [f"{looked:,} studies of the recipe's data, {how}"] if looked else []
    answers = round(weight.sum())
    return Workload(answers, drawn, "; ".join([*own, *basis, _on_average(answers, drawn)]))


def paper_workload(config: TrainConfig, model_config: MairaConfig, why: str) -> Workload:
    """Return the mix of MAIRA-2, table 1: 53.4 % with a lateral, 26.5 % with a prior, about 2,800 tokens on average.

    Args:
        config: of the training.
        model_config: of the model.
        why: reason for not measuring the configuration's own data.
    """
    weight = np.array([row.samples * config.tasks.get(row.task, 0.0) for row in TABLE_1.values()])
    table = np.stack([_published(row, config, model_config) for row in TABLE_1.values()])
    rng = np.random.default_rng(0)
    rows = table[rng.choice(len(table), _ROWS, p=weight / weight.sum()), rng.integers(_ROWS, size=_ROWS)]
    answers = round(weight.sum())
    basis = f"the paper's whole mix (table 1), its private data included, since {why}; {_on_average(answers, rows)}"
    return Workload(answers, rows, basis)


def _on_average(answers: int, rows: npt.NDArray[Any]) -> str:
    mean = float((rows["prompt"] + rows["answer"]).mean())
    return (
        f"an epoch of {answers:,} samples of {rows['images'].mean():.2f} images and {mean:,.0f} tokens on average, "
        f"{rows['answer'].mean():,.0f} of them the answer's"
    )


def _published(row: Published, config: TrainConfig, model_config: MairaConfig) -> npt.NDArray[Any]:
    """(rows,) of `SAMPLE_LENGTHS`, as table 1 has them; of texts it says nothing, theirs are the mix's average."""
    rows, rng = np.zeros(_ROWS, SAMPLE_LENGTHS), np.random.default_rng(row.samples)
    for dropped, share in (("lateral", row.lateral), ("prior", row.prior)):
        if dropped not in config.drop:
            rows["images"] += rng.random(_ROWS) < share
    rows["images"] += 1
    rows["task"] = TASKS.index(row.task)
    rows["prompt"] = rows["images"].astype(int) * model_config.image_seq_length + _TEXT - _ANSWER
    rows["answer"] = _ANSWER
    return rows


def _path(source: DataSource) -> str:
    return str(source.manifest or source.shards)


def _row_of(source: DataSource) -> str | None:
    """The row of table 1 that a source is named after, by the folder that is nearest to it."""
    folders = _path(source).lower().split("/")
    return next((_FOLDERS[folder] for folder in reversed(folders) if folder in _FOLDERS), None)


def _open(source: DataSource) -> StudySource | str:
    """The studies of a source, or why there are none to look at."""
    where = _path(source)
    if "://" in where:
        try:
            return open_source(source)
        except InputError as error:
            return f"cannot be opened ({error})"
    index = Path(where) if source.manifest is not None else Path(where) / "index.json"
    return open_source(source) if index.is_file() else "is not here"


def _look(
    opened: StudySource, source: DataSource, config: TrainConfig, model_config: MairaConfig, count: Callable[[str], int]
) -> tuple[npt.NDArray[Any], float, int]:
    """Lengths of the answers of some studies of a source, of how many each stands for, and how many were looked at."""
    looked = range(0, opened.count, max(1, opened.count // _LOOKED_AT))
    found: list[tuple[int, ...]] = []
    for number in looked:
        for _, study, size in opened.scan(number, number + 1, source.split):
            known = drop_inputs(study, config.drop)
            for task in config.shares(source):
                for phrase in (known.phrases or ()) if task == "phrase" else (None,):
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", UnusedInputWarning)
                        made = make_example(known, task, phrase=phrase, preset=config.preset, frontal_size=size)
                    if made.target is not None:
                        images = len(made.images)
                        prompt = images * model_config.image_seq_length + count(made.prompt.replace(IMAGE, ""))
                        found.append((0, number, TASKS.index(task), 0, images, prompt, count(made.target) + 1))
    return np.array(found, SAMPLE_LENGTHS), opened.count / max(1, len(looked)), len(looked)


def _counter(config: TrainConfig) -> tuple[Callable[[str], int], str]:
    """Tokens of a text: counted where the model's tokenizer is there, else guessed; and which it is."""
    if isinstance(config.model, Path) and (config.model / "config.json").is_file():
        from maira.model.processor import MairaProcessor

        tokenizer = MairaProcessor.from_pretrained(config.model).tokenizer
        return lambda text: len(tokenizer(text)["input_ids"]), "tokens counted"
    return lambda text: ceil(len(text) / _CHARACTERS), f"{_CHARACTERS:g} characters of text taken for a token"
