"""Samples to padded batches, in an order that is a function of (seed, epoch) alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from data.images import CropMap, image_size
from data.study import Study
from maira.examples import Example, make_example
from maira.processor import MairaProcessor, pad
from maira.prompts import Task
from maira.train.recipe import Recipe
from radfact.errors import InputError

SORTED_BATCHES = 16
"""Batches whose samples are sorted by length together, so that little of a batch is padding."""
LENGTH_STEP = 32
"""Batches are padded to multiples of this many tokens: kernels are compiled anew for every shape."""


@dataclass(frozen=True)
class Batch:
    """Tensors of one pass.

    Attributes:
        input_ids, attention_mask, labels: (samples, length); labels are -100 outside the answers.
        pixel_values: (images, 3, size, size).
        frontal_rows: (samples,), which image is each sample's current frontal.
        coverage: (samples, patches, kinds), share of each patch that each labelled kind covers; None without.
        sample_ids: which studies these are, for messages.
    """

    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor
    pixel_values: Tensor
    frontal_rows: Tensor
    coverage: Tensor | None
    sample_ids: tuple[str, ...]

    def to(self, device: torch.device) -> Batch:
        """The same batch with its tensors on a device."""
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=True) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)


def plan_epoch(studies: Sequence[Study], recipe: Recipe, epoch: int) -> list[list[tuple[int, Task]]]:
    """The micro-batches of an epoch: (index of the study, task) of every sample.

    Samples of a batch have the same number of images; those that fill no batch wait for another epoch.

    Args:
        studies: the training set.
        recipe: its seed, task weights and micro-batch size count.
        epoch: from 0.
    """
    rng = np.random.default_rng(np.random.SeedSequence((recipe.seed, epoch)))
    tasks = [task for task, weight in recipe.tasks.items() if weight > 0]
    weights = np.array([recipe.tasks[task] for task in tasks])
    order = rng.permutation(len(studies))
    drawn = [tasks[i] for i in rng.choice(len(tasks), size=len(studies), p=weights / weights.sum())]
    samples = [(int(i), _possible(studies[i], drawn[i], tasks)) for i in order]
    kept = [(i, task) for i, task in samples if task is not None]
    window = SORTED_BATCHES * recipe.micro_batch
    batches: list[list[tuple[int, Task]]] = []
    for images in (1, 2, 3):
        alike = [s for s in kept if _size(studies[s[0]], s[1])[0] == images]
        for start in range(0, len(alike), window):
            part = sorted(alike[start : start + window], key=lambda s: _size(studies[s[0]], s[1]))
            batches += [part[i : i + recipe.micro_batch] for i in range(0, len(part), recipe.micro_batch)]
    batches = [batch for batch in batches if len(batch) == recipe.micro_batch]
    return [batches[i] for i in rng.permutation(len(batches))]


def _possible(study: Study, task: Task, tasks: Sequence[Task]) -> Task | None:
    """The drawn task, or the first that the study has an answer for."""
    answers = {"findings": study.findings, "grounded": study.grounded_findings, "phrase": study.phrases}
    return next((t for t in (task, *tasks) if answers[t]), None)


def _size(study: Study, task: Task) -> tuple[int, int]:
    images = 1 if task == "phrase" else 1 + (study.lateral is not None) + (study.prior_frontal is not None)
    return images, len(study.findings or "") if task != "phrase" else 0


class Samples(Dataset[Batch | InputError]):
    """The micro-batches of one process and epoch, made when asked for.

    Input that cannot be used is returned instead of raised: raised in a worker process, an error reaches the user as
    that process's traceback.
    """

    def __init__(
        self,
        studies: Sequence[Study],
        plan: Sequence[Sequence[tuple[int, Task]]],
        processor: MairaProcessor,
        recipe: Recipe,
        epoch: int,
        kinds: Sequence[str],
        patch_grid: int,
    ) -> None:
        self.studies, self.plan, self.processor, self.recipe = studies, plan, processor, recipe
        self.epoch, self.kinds, self.patch_grid = epoch, kinds, patch_grid

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, position: int) -> Batch | InputError:
        try:
            return self._batch(position)
        except InputError as error:
            return error

    def _batch(self, position: int) -> Batch:
        examples = [self._example(index, task) for index, task in self.plan[position]]
        rows, labels = zip(*(self._encode(example) for example in examples), strict=True)
        ids, mask = pad(rows, self.processor.tokenizer.pad_token_id, multiple=LENGTH_STEP)
        pixels = self.processor.image_processor([p for example in examples for p in example.images])["pixel_values"]
        counts = torch.tensor([len(example.images) for example in examples])
        coverage = None
        if self.recipe.patch_loss:
            covers = [patch_coverage(self.studies[i], self.kinds, self.patch_grid) for i, _ in self.plan[position]]
            coverage = torch.from_numpy(np.stack(covers))
        return Batch(
            input_ids=ids,
            attention_mask=mask,
            labels=pad(labels, -100, multiple=LENGTH_STEP)[0],
            pixel_values=pixels,
            frontal_rows=counts.cumsum(0) - counts,
            coverage=coverage,
            sample_ids=tuple(example.sample_id for example in examples),
        )

    def _example(self, index: int, task: Task) -> Example:
        study = self.studies[index]
        phrase = None
        if task == "phrase":
            phrases = study.phrases or []
            rng = np.random.default_rng(np.random.SeedSequence((self.recipe.seed, self.epoch, index)))
            phrase = phrases[rng.integers(len(phrases))]
        return make_example(study, task, phrase=phrase, preset=self.recipe.preset)

    def _encode(self, example: Example) -> tuple[list[int], list[int]]:
        if example.target is None:
            raise ValueError(f"sample {example.sample_id} has no answer for the task '{example.task}'")
        prompt = self.processor.encode_prompt(example.prompt, len(example.images))
        target = self.processor.encode_target(example.target)
        return [*prompt, *target], [*[-100] * len(prompt), *target]


def patch_coverage(study: Study, kinds: Sequence[str], grid: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Share of each patch of the frontal's crop that the boxes of each kind cover: (grid * grid, kinds)."""
    cover = np.zeros((grid, grid, len(kinds)), np.float32)
    crop = CropMap(*image_size(study.frontal))
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
