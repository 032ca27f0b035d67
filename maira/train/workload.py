"""What a run goes through: how many answers an epoch has, and how long they are, before any of it is tokenised."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from maira.config import MairaConfig
from maira.examples import Unused, make_example
from maira.inputs import drop_inputs
from maira.prompts import Task
from maira.tokens import IMAGE
from maira.train.items import LENGTHS, TASKS
from maira.train.recipe import Recipe, Source
from maira.train.sources import open_source
from radfact.errors import InputError

PAPER: dict[Task, int] = {"findings": 437_805, "grounded": 72_226, "phrase": 817}
"""Training samples of the paper's mix (004, table 1), 510,848 in all."""
_HAS_LATERAL, _HAS_PRIOR = 0.534, 0.265
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
        rows: (rows,) of `LENGTHS`, as long as an epoch's on average.
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


def measure_workload(recipe: Recipe, config: MairaConfig) -> Workload:
    """The workload of a recipe's own data where they are there, else of the paper's mix.

    Raises:
        InputError: its data are there and cannot be read.
    """
    missing = [str(source.manifest or source.shards) for source in recipe.train if not _is_there(source)]
    if missing:
        return paper_workload(recipe, config, f"this is not here: {', '.join(missing)}")
    count, how = _counter(recipe)
    parts: list[npt.NDArray[Any]] = []
    weights: list[float] = []
    studies = 0
    for source in recipe.train:
        rows, stands_for, looked = _look(source, recipe, config, count)
        shares = recipe.shares(source)
        parts.append(rows)
        weights += [stands_for * shares[TASKS[task]] for task in rows["task"]]
        studies += looked
    if not weights:
        raise InputError("the studies have no answer for the tasks that are asked for", field="train")
    table, weight = np.concatenate(parts), np.array(weights)
    drawn = np.random.default_rng(0).choice(len(table), _ROWS, p=weight / weight.sum())
    return Workload(round(weight.sum()), table[drawn], f"{studies:,} studies of the recipe's data, {how}")


def paper_workload(recipe: Recipe, config: MairaConfig, why: str) -> Workload:
    """The mix of table 1: 53.4 % of samples with a lateral, 26.5 % with a prior, about 2,800 tokens on average."""
    rows, rng = np.zeros(_ROWS, LENGTHS), np.random.default_rng(0)
    for dropped, share in (("lateral", _HAS_LATERAL), ("prior", _HAS_PRIOR)):
        if dropped not in recipe.drop:
            rows["images"] += rng.random(_ROWS) < share
    rows["images"] += 1
    rows["prompt"] = rows["images"].astype(int) * config.image_seq_length + _TEXT - _ANSWER
    rows["answer"] = _ANSWER
    answers = round(sum(PAPER[task] * share for task, share in recipe.tasks.items()))
    mean = float((rows["prompt"] + rows["answer"]).mean())
    basis = (
        f"the paper's mix (table 1), {answers:,} samples of {rows['images'].mean():.2f} images and {mean:,.0f} tokens "
        f"on average, {_ANSWER} of them the answer's, since {why}"
    )
    return Workload(answers, rows, basis)


def _is_there(source: Source) -> bool:
    if source.manifest is not None:
        return source.manifest.is_file()
    return (Path(str(source.shards)) / "index.json").is_file()


def _look(
    source: Source, recipe: Recipe, config: MairaConfig, count: Callable[[str], int]
) -> tuple[npt.NDArray[Any], float, int]:
    """Lengths of the answers of some studies of a source, of how many each stands for, and how many were looked at."""
    opened = open_source(source)
    looked = range(0, opened.count, max(1, opened.count // _LOOKED_AT))
    found: list[tuple[int, ...]] = []
    for number in looked:
        for _, study, size in opened.look(number, number + 1, source.split):
            known = drop_inputs(study, recipe.drop)
            for task in recipe.shares(source):
                for phrase in (known.phrases or ()) if task == "phrase" else (None,):
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", Unused)
                        made = make_example(known, task, phrase=phrase, preset=recipe.preset, frontal_size=size)
                    if made.target is not None:
                        images = len(made.images)
                        prompt = images * config.image_seq_length + count(made.prompt.replace(IMAGE, ""))
                        found.append((0, number, TASKS.index(task), 0, images, prompt, count(made.target) + 1))
    return np.array(found, LENGTHS), opened.count / max(1, len(looked)), len(looked)


def _counter(recipe: Recipe) -> tuple[Callable[[str], int], str]:
    """Tokens of a text: counted where the model's tokenizer is there, else guessed; and which it is."""
    if isinstance(recipe.model, Path) and (recipe.model / "config.json").is_file():
        from maira.processor import MairaProcessor

        tokenizer = MairaProcessor.from_pretrained(recipe.model).tokenizer
        return lambda text: len(tokenizer(text)["input_ids"]), "tokens counted"
    return lambda text: ceil(len(text) / _CHARACTERS), f"{_CHARACTERS:g} characters of text taken for a token"
