"""The number and lengths of the samples of an epoch before the data are tokenized."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from maira.model.config import MairaConfig, context_window
from maira.model.prompts import Task, render
from maira.model.task_examples import UnusedInputWarning, drop_inputs, make_example
from maira.model.tokens import IMAGE
from maira.train.config.run_config import DataSource, TrainConfig
from maira.train.data.packing import SAMPLE_LENGTHS, TASKS
from maira.train.data.sources import StudySource, open_source
from radfact.errors import InputError


class Published(NamedTuple):
    """Training samples of one data set: their task and number, and the shares with a lateral and with a prior."""

    task: Task
    samples: int
    lateral: float
    prior: float


# MAIRA-2, table 1.
TABLE_1 = {
    "MIMIC-CXR": Published("findings", 158_555, 0.606, 0.642),
    "MS-CXR": Published("phrase", 817, 0, 0),
    "PadChest": Published("findings", 85_598, 0.46, 0.383),
    "PadChest-GR": Published("grounded", 3_183, 0.447, 0.323),
    "USMix": Published("findings", 193_652, 0.517, 0),
    "USMix, GR-1": Published("grounded", 60_463, 0.48, 0),
    "USMix, GR-Bench": Published("grounded", 8_580, 0.812, 0),
}
_FOLDERS = {"mimic": "MIMIC-CXR", "mimic-cxr": "MIMIC-CXR", "mimic-cxr-jpg": "MIMIC-CXR"}
_FOLDERS |= {"ms-cxr": "MS-CXR", "padchest": "PadChest", "padchest-gr": "PadChest-GR"}
"""Rows of `TABLE_1` by the name of the data folder."""
_TEXT_TOKENS, _ANSWER_TOKENS = 336, 140
"""Text tokens of an average sample, and those of them in the answer."""
_STUDIES_READ, _ROWS = 400, 2000
"""Approximate number of studies of a source whose texts are read, and of samples drawn to represent an epoch."""


@dataclass(frozen=True)
class Workload:
    """Samples of an epoch.

    Attributes:
        answers: number of samples, by the configured shares of the tasks.
        rows: (rows,) of `SAMPLE_LENGTHS`, drawn from the samples of an epoch.
        basis: description of where the numbers come from.
    """

    answers: int
    rows: npt.NDArray[Any]
    basis: str

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """(rows,), tokens of prompt and answer."""
        tokens: npt.NDArray[np.int64] = self.rows["prompt"].astype(np.int64) + self.rows["answer"]
        return tokens


def measure_workload(config: TrainConfig, model_config: MairaConfig) -> Workload:
    """Measure the data of a configuration; missing sources are replaced by the rows of table 1 that their folders name.

    If table 1 has no row of that name, the whole table replaces the data. With `dpo`, `answers` counts preference
    pairs; if a file is missing, each study counts as one pair.

    Raises:
        InputError: the data exist and cannot be read, or have no answers for the tasks.
    """
    opened = [(source, _open(source)) for source in config.train]
    if (pairs := _read_pairs(config, model_config, opened)) is not None:
        return pairs
    missing = [f"{_path(s)} {reason}" for s, reason in opened if isinstance(reason, str) and not _row_of(s)]
    if missing:
        return paper_workload(config, model_config, "; ".join(missing))
    count_tokens, method = _token_counter(config)
    parts, weights, basis, total_read = [], [], [], 0
    for source, studies in opened:
        shares = config.shares(source)
        if isinstance(studies, str):
            name = _row_of(source)
            samples = TABLE_1[name].samples * shares.get(TABLE_1[name].task, 0.0)
            parts.append(_published(TABLE_1[name], config, model_config))
            weights += [samples / _ROWS] * _ROWS
            basis.append(
                f"{name} of the paper's table 1, {round(samples):,} samples, for {_path(source)}, which {studies}"
            )
        else:
            rows, weight, read = _read_lengths(studies, source, config, model_config, count_tokens)
            parts.append(rows)
            weights += [weight * shares[TASKS[task]] for task in rows["task"]]
            total_read += read
    if not any(weights):
        raise InputError("expected answers for the configured tasks, found none in the studies", field="train")
    own = [f"{total_read:,} studies of the configured data, {method}"] if total_read else []
    return _drawn(config, np.concatenate(parts), np.array(weights), [*own, *basis])


def paper_workload(config: TrainConfig, model_config: MairaConfig, why: str) -> Workload:
    """Return the mix of MAIRA-2, table 1: 53.4 % with a lateral, 26.5 % with a prior, about 2,800 tokens on average."""
    weight = [row.samples * config.tasks.get(row.task, 0.0) / _ROWS for row in TABLE_1.values()]
    table = np.concatenate([_published(row, config, model_config) for row in TABLE_1.values()])
    basis = f"the paper's whole mix (table 1), its private data included, since {why}"
    return _drawn(config, table, np.repeat(weight, _ROWS), [basis])


def _drawn(config: TrainConfig, table: npt.NDArray[Any], weight: npt.NDArray[Any], basis: list[str]) -> Workload:
    """Draw the samples of an epoch from samples with a weight each."""
    rows = table[np.random.default_rng(0).choice(len(table), _ROWS, p=weight / weight.sum())]
    if config.dpo is not None:
        basis = [*basis, "one preference pair per study, with two reports as long as its own"]
    return _described(round(weight.sum()), rows, basis)


def _described(answers: int, rows: npt.NDArray[Any], basis: list[str]) -> Workload:
    mean = float((rows["prompt"] + rows["answer"]).mean())
    average = (
        f"an epoch of {answers:,} samples of {rows['images'].mean():.2f} images and {mean:,.0f} tokens on average, "
        f"{rows['answer'].mean():,.0f} of them the answer's"
    )
    return Workload(answers, rows, "; ".join([*basis, average]))


def _published(row: Published, config: TrainConfig, model_config: MairaConfig) -> npt.NDArray[Any]:
    """Return (rows,) of `SAMPLE_LENGTHS` as in table 1, with the average text lengths of the whole mix."""
    rows, rng = np.zeros(_ROWS, SAMPLE_LENGTHS), np.random.default_rng(row.samples)
    for dropped, share in (("lateral", row.lateral), ("prior", row.prior)):
        if dropped not in config.drop:
            rows["images"] += rng.random(_ROWS) < share
    rows["images"] += 1
    rows["task"] = TASKS.index(row.task)
    rows["prompt"] = rows["images"].astype(int) * model_config.image_seq_length + _TEXT_TOKENS - _ANSWER_TOKENS
    rows["answer"] = _ANSWER_TOKENS
    return rows


def _path(source: DataSource) -> str:
    return str(source.manifest or source.shards)


def _row_of(source: DataSource) -> str:
    """Return the row of `TABLE_1` that the innermost known folder of a source names; "" if there is none."""
    return next((_FOLDERS[part] for part in reversed(_path(source).lower().split("/")) if part in _FOLDERS), "")


def _open(source: DataSource) -> StudySource | str:
    """Return the studies of a source, or the reason why they are not available."""
    path = _path(source)
    if "://" not in path and not Path(path, *([] if source.manifest else ["index.json"])).is_file():
        return "does not exist"
    try:
        return open_source(source)
    except InputError as error:
        if "://" not in path:
            raise
        return f"cannot be opened ({error})"


def _read_pairs(
    config: TrainConfig, model_config: MairaConfig, opened: list[tuple[DataSource, StudySource | str]]
) -> Workload | None:
    """Return the preference pairs of a run; None without `dpo`, or if the model or a file of pairs does not exist."""
    files = [source.preferences for source, _ in opened if config.shares(source)]
    is_complete = all(file and file.is_file() for file in files) and not any(isinstance(s, str) for _, s in opened)
    if config.dpo is None or not is_complete or not isinstance(config.model, Path) or not config.model.is_dir():
        return None
    from maira.model.processor import MairaProcessor
    from maira.train.post.preferences import open_preferences

    processor = MairaProcessor.from_pretrained(config.model)
    table = open_preferences(config, processor, context_window(model_config.text_config)).table
    # Each row has the mean length of the two reports of a pair.
    rows = table[list(SAMPLE_LENGTHS.names or ())].astype(SAMPLE_LENGTHS)
    for name in ("images", "prompt", "answer"):
        rows[name] //= 2
    return _described(len(rows), rows, [f"{len(rows):,} preference pairs, tokenized"])


def _read_lengths(
    studies: StudySource,
    source: DataSource,
    config: TrainConfig,
    model_config: MairaConfig,
    count_tokens: Callable[[str], int],
) -> tuple[npt.NDArray[Any], float, int]:
    """Return rows of `SAMPLE_LENGTHS` of some studies, the samples that a row represents, and the studies read."""
    numbers = range(0, studies.count, max(1, studies.count // _STUDIES_READ))
    rows: list[tuple[int, ...]] = []
    for number in numbers:
        for _, study, size in studies.scan(number, number + 1, source.split):
            known = drop_inputs(study, config.drop)
            for task in config.shares(source):
                for phrase in (known.phrases or ()) if task == "phrase" else (None,):
                    with warnings.catch_warnings(action="ignore", category=UnusedInputWarning):
                        example = make_example(known, task, phrase=phrase, preset=config.preset, frontal_size=size)
                    if example.target is not None:
                        images = len(example.images)
                        prompt = images * model_config.image_seq_length
                        prompt += count_tokens(render(example.messages).replace(IMAGE, ""))
                        rows.append((0, number, TASKS.index(task), 0, images, prompt, count_tokens(example.target) + 1))
    return np.array(rows, SAMPLE_LENGTHS), studies.count / max(1, len(numbers)), len(numbers)


def _token_counter(config: TrainConfig) -> tuple[Callable[[str], int], str]:
    """Return a function that counts the tokens of a text, and its description."""
    if not isinstance(config.model, Path) or not (config.model / "config.json").is_file():
        return lambda text: ceil(len(text) / 4), "4 characters assumed per token"
    from maira.model.processor import MairaProcessor

    tokenizer = MairaProcessor.from_pretrained(config.model).tokenizer
    return lambda text: len(tokenizer(text)["input_ids"]), "tokenized"
