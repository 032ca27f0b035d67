"""Samples into rows: which go together, and the tensors of a row."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace

import numpy as np
import torch

from maira.train.data.items import Encoded, PackedBatch, Totals
from radfact.errors import InputError


def pack(lengths: Sequence[int], budget: int, world: int = 1) -> list[list[int]]:
    """Deal samples to k x world rows, k as small as a greedy packing finds, their loads as even as can be.

    The longest goes first, into the row with the least so far; where that does not fit, into the fullest row that has
    room. Rows come with the fullest first, so that rows i * world to (i + 1) * world, which the processes run at the
    same time, are of about the same length. A function of its arguments alone.

    Args:
        lengths: tokens of each sample.
        budget: most tokens of a row.
        world: processes; all get as many rows.

    Returns:
        For each row the indices of its samples, none of them without any.

    Raises:
        InputError: a sample is longer than a row, or there are fewer samples than rows.
    """
    if max(lengths, default=0) > budget:
        raise InputError(f"a sample of {max(lengths)} tokens does not fit in {budget}", field="token_budget")
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    rows = max(1, -(-sum(lengths) // (budget * world))) * world
    while True:
        if rows > len(lengths):
            raise InputError(
                f"{len(lengths)} samples do not fill {rows} rows of up to {budget} tokens, {rows // world} for each of "
                f"{world} processes; a multiple of {world} or a larger token_budget does",
                field="global_batch",
            )
        bins = _evenly(order, lengths, budget, rows) or _tightly(order, lengths, budget, rows)
        if bins is not None:
            return sorted(bins, key=lambda row: (-sum(lengths[i] for i in row), row[0]))
        rows += world


def _evenly(order: Sequence[int], lengths: Sequence[int], budget: int, rows: int) -> list[list[int]] | None:
    """Each sample into the row with the least; None where it does not fit there."""
    loads = [(0, row) for row in range(rows)]
    heapify(loads)
    bins: list[list[int]] = [[] for _ in range(rows)]
    for index in order:
        load, row = loads[0]
        if load + lengths[index] > budget:
            return None
        bins[row].append(index)
        heapreplace(loads, (load + lengths[index], row))
    return bins


def _tightly(order: Sequence[int], lengths: Sequence[int], budget: int, rows: int) -> list[list[int]] | None:
    """Each sample into the fullest row that has room; None where there is none."""
    loads = [0] * rows
    bins: list[list[int]] = [[] for _ in range(rows)]
    for index in order:
        open_rows = [row for row in range(rows) if loads[row] + lengths[index] <= budget]
        if not open_rows:
            return None
        row = max(open_rows, key=lambda r: (loads[r], -r))
        bins[row].append(index)
        loads[row] += lengths[index]
    for empty in (samples for samples in bins if not samples):
        # Every process needs something to run; the fullest row by number has two samples or more.
        empty.append(max(bins, key=len).pop())
    return bins


def collate(encoded: Sequence[Encoded], totals: Totals, pad_id: int, multiple: int = 1) -> PackedBatch:
    """The tensors of one row: samples one behind the other, then padding.

    Args:
        encoded: the samples.
        totals: of the optimiser step that the row is a part of.
        pad_id: token of the padding.
        multiple: the row is padded to a multiple of this many tokens.
    """
    lengths = np.array([len(sample.input_ids) for sample in encoded])
    starts = np.concatenate(([0], lengths.cumsum()))
    used = int(starts[-1])
    padding = -used % multiple
    ids = np.full(used + padding, pad_id, np.int64)
    positions = np.arange(used + padding)
    answers, owners = [], []
    for number, (sample, start, end) in enumerate(zip(encoded, starts[:-1], starts[1:], strict=True)):
        ids[start:end] = sample.input_ids
        positions[start:end] -= start
        # The last token of the prompt predicts the first of the answer.
        answers.append(np.arange(start + sample.prompt_tokens - 1, end - 1))
        owners.append(np.full(len(answers[-1]), number))
    positions[used:] -= used
    where = np.concatenate(answers)
    images = np.array([len(sample.images) for sample in encoded])
    covers = [sample.coverage for sample in encoded if sample.coverage is not None]
    return PackedBatch(
        input_ids=torch.from_numpy(ids)[None],
        position_ids=torch.from_numpy(positions)[None],
        starts=torch.from_numpy(starts.astype(np.int32)),
        longest=max(int(lengths.max()), padding),
        answers=torch.from_numpy(where),
        targets=torch.from_numpy(ids[where + 1]),
        answer_samples=torch.from_numpy(np.concatenate(owners)),
        pixel_values=torch.from_numpy(np.concatenate([sample.images for sample in encoded]))[:, None],
        frontal_rows=torch.from_numpy(images.cumsum() - images),
        coverage=torch.from_numpy(np.stack(covers)) if covers else None,
        sample_ids=tuple(sample.sample_id for sample in encoded),
        tasks=tuple(sample.task for sample in encoded),
        totals=totals,
    )
