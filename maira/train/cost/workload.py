"""Estimate the number and lengths of the samples of an epoch before the data are tokenized."""

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
    """Training samples of one data set.

    Attributes:
        task: task of the samples.
        samples: number of samples.
        lateral: share of samples with a lateral image.
        prior: share of samples with a prior image.

    Source: MAIRA-2, table 1.
    """

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
"""Training samples of MAIRA-2, 510,848 in all.

Source: MAIRA-2, table 1.
"""
_FOLDERS = {
    "mimic": "MIMIC-CXR",
    "mimic-cxr": "MIMIC-CXR",
    "mimic-cxr-jpg": "MIMIC-CXR",
    "ms-cxr": "MS-CXR",
    "padchest": "PadChest",
    "padchest-gr": "PadChest-GR",
}
"""Rows of `TABLE_1` by the name of the data folder."""
_TEXT_TOKENS, _ANSWER_TOKENS = 336, 140
"""Text tokens of an average sample, and those of them in the answer."""
_CHARACTERS_PER_TOKEN = 4.0
"""Average used if the tokenizer of the model is not available."""
_STUDIES_READ = 400
"""Approximate number of studies of a source whose texts are read."""
_ROWS = 2000
"""Number of samples drawn to represent an epoch."""


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
    """Measure the workload of the data of a configuration; missing sources are replaced by their rows of table 1.

    With `dpo`, `answers` counts preference pairs; if a file is missing, each study counts as one pair.

    A missing source is identified by the name of a folder on its path, such as `padchest-gr`. If table 1 has no row of
    that name, the whole table replaces the data.

    Args:
        config: of the training.
        model_config: of the model.

    Raises:
        InputError: the data exist and cannot be read, or have no answers for the tasks.
    """
    if (pairs := _read_pairs(config, model_config)) is not None:
        return pairs
    opened = [(source, _open(source)) for source in config.train]
    missing = [(source, reason) for source, reason in opened if isinstance(reason, str)]
    if nameless := [f"{_path(source)} {reason}" for source, reason in missing if _row_of(source) is None]:
        return paper_workload(config, model_config, "; ".join(nameless))
    count_tokens, method = _token_counter(config)
    parts: list[npt.NDArray[Any]] = []
    weights: list[float] = []
    basis: list[str] = []
    total_read = 0
    for source, studies in opened:
        shares = config.shares(source)
        if isinstance(studies, str):
            name = _row_of(source) or ""
            row = TABLE_1[name]
            samples = row.samples * shares.get(row.task, 0.0)
            parts.append(_published(row, config, model_config))
            weights += [samples / _ROWS] * _ROWS
            basis.append(
                f"{name} of the paper's table 1, {round(samples):,} samples, for {_path(source)}, which {studies}"
            )
            continue
        rows, weight_per_row, read = _read_lengths(studies, source, config, model_config, count_tokens)
        parts.append(rows)
        weights += [weight_per_row * shares[TASKS[task]] for task in rows["task"]]
        total_read += read
    if not any(weights):
        raise InputError("expected answers for the configured tasks, found none in the studies", field="train")
    table, weight = np.concatenate(parts), np.array(weights)
    drawn = table[np.random.default_rng(0).choice(len(table), _ROWS, p=weight / weight.sum())]
    own = [f"{total_read:,} studies of the configured data, {method}"] if total_read else []
    answers = round(weight.sum())
    return Workload(answers, drawn, "; ".join([*own, *basis, *_pairs_note(config), _on_average(answers, drawn)]))


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
    basis = f"the paper's whole mix (table 1), its private data included, since {why}"
    return Workload(answers, rows, "; ".join([basis, *_pairs_note(config), _on_average(answers, rows)]))


def _pairs_note(config: TrainConfig) -> list[str]:
    return [] if config.dpo is None else ["one preference pair per study, with two reports as long as its own"]


def _on_average(answers: int, rows: npt.NDArray[Any]) -> str:
    mean = float((rows["prompt"] + rows["answer"]).mean())
    return (
        f"an epoch of {answers:,} samples of {rows['images'].mean():.2f} images and {mean:,.0f} tokens on average, "
        f"{rows['answer'].mean():,.0f} of them the answer's"
    )


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


def _row_of(source: DataSource) -> str | None:
    """Return the row of `TABLE_1` that the innermost known folder of a source names."""
    folders = _path(source).lower().split("/")
    return next((_FOLDERS[folder] for folder in reversed(folders) if folder in _FOLDERS), None)


def _open(source: DataSource) -> StudySource | str:
    """Return the studies of a source, or the reason why they are not available."""
    path = _path(source)
    if "://" in path:
        try:
            return open_source(source)
        except InputError as error:
            return f"cannot be opened ({error})"
    index = Path(path) if source.manifest is not None else Path(path) / "index.json"
    return open_source(source) if index.is_file() else "does not exist"


def _read_pairs(config: TrainConfig, model_config: MairaConfig) -> Workload | None:
    """Return the preference pairs of a run; None without `dpo`, or if the model or a file of pairs does not exist."""
    if config.dpo is None or (model := _processor_folder(config)) is None:
        return None
    files = [source.preferences for source in config.train if config.shares(source)]
    if any(isinstance(_open(source), str) for source in config.train) or not all(
        file and file.is_file() for file in files
    ):
        return None
    from maira.model.processor import MairaProcessor
    from maira.train.post.preferences import open_preferences

    processor = MairaProcessor.from_pretrained(model)
    table = open_preferences(config, processor, context_window(model_config.text_config)).table
    # Each row has the mean length of the two reports of a pair.
    rows = table[list(SAMPLE_LENGTHS.names or ())].astype(SAMPLE_LENGTHS)
    for name in ("images", "prompt", "answer"):
        rows[name] //= 2
    return Workload(len(rows), rows, f"{len(rows):,} preference pairs, tokenized; {_on_average(len(rows), rows)}")


def _read_lengths(
    studies: StudySource,
    source: DataSource,
    config: TrainConfig,
    model_config: MairaConfig,
    count_tokens: Callable[[str], int],
) -> tuple[npt.NDArray[Any], float, int]:
    """Read some studies of a source.

    Returns:
        (rows,) of `SAMPLE_LENGTHS`, the number of samples that each row represents, and the number of studies read.
    """
    numbers = range(0, studies.count, max(1, studies.count // _STUDIES_READ))
    rows: list[tuple[int, ...]] = []
    for number in numbers:
        for _, study, size in studies.scan(number, number + 1, source.split):
            known = drop_inputs(study, config.drop)
            for task in config.shares(source):
                for phrase in (known.phrases or ()) if task == "phrase" else (None,):
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", UnusedInputWarning)
                        example = make_example(known, task, phrase=phrase, preset=config.preset, frontal_size=size)
                    if example.target is not None:
                        images, text = len(example.images), render(example.messages).replace(IMAGE, "")
                        prompt = images * model_config.image_seq_length + count_tokens(text)
                        rows.append((0, number, TASKS.index(task), 0, images, prompt, count_tokens(example.target) + 1))
    return np.array(rows, SAMPLE_LENGTHS), studies.count / max(1, len(numbers)), len(numbers)


def _token_counter(config: TrainConfig) -> tuple[Callable[[str], int], str]:
    """Return a function that counts the tokens of a text (estimated without a tokenizer), and its description."""
    if (model := _processor_folder(config)) is not None:
        from maira.model.processor import MairaProcessor

        tokenizer = MairaProcessor.from_pretrained(model).tokenizer
        return lambda text: len(tokenizer(text)["input_ids"]), "tokenized"
    return lambda text: ceil(
        len(text) / _CHARACTERS_PER_TOKEN
    ), f"{_CHARACTERS_PER_TOKEN:g} characters assumed per token"


def _processor_folder(config: TrainConfig) -> Path | None:
    """Return the checkpoint to start from, which has a tokenizer; None if it does not exist."""
    model = config.model
    return model if isinstance(model, Path) and (model / "config.json").is_file() else None
