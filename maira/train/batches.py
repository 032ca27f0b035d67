"""Packed rows of the steps of a run, made ahead of time."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from maira.train.corpus import Corpus
from maira.train.items import Encoded, PackedBatch, Totals
from maira.train.packing import collate
from maira.train.plan import Plan
from maira.train.sources import Unreadable
from maira.train.workers import in_workers
from radfact.errors import InputError

LENGTH_MULTIPLE = 64
"""Rows are padded to multiples of this many tokens: kernels are compiled anew for every shape."""


class LeftOut(NamedTuple):
    """A sample that is in no row, since one of its images cannot be read."""

    sample_id: str
    answer_tokens: int
    reason: str


class Step(NamedTuple):
    """What one process runs in an optimiser step.

    Attributes:
        number: from 0.
        rows: their totals are those of all samples of the step.
        left_out: samples of this process's rows that are in none.
    """

    number: int
    rows: list[PackedBatch]
    left_out: list[LeftOut]


def stream(
    corpus: Corpus, plan: Plan, first_step: int = 0, *, rank: int = 0, world: int = 1, workers: int = 1
) -> Generator[Step]:
    """The steps of a run from one on, with the rows that one process runs in each.

    Closed, it ends its worker processes; so it should be, whatever ends the run.

    Args:
        corpus: of the table that the plan is for; its recipe says whether samples may be left out.
        plan: of the run.
        first_step: from 0; the steps before it cost nothing.
        rank, world: this process, and how many there are.
        workers: processes that prepare rows.

    Raises:
        InputError: a sample cannot be read.
        RunFailed: a worker process died.
    """
    ahead: deque[tuple[int, int, Totals]] = deque()

    def jobs() -> Iterator[list[int]]:
        for step in range(first_step, plan.steps):
            rows = plan.rows(step, rank, world)
            ahead.append((step, len(rows), plan.totals(step)))
            yield from rows

    with closing(in_workers(partial(_encode_what_can_be, corpus), jobs(), workers)) as encoded:
        for _ in range(first_step, plan.steps):
            # Not taken before its first row is here: only then has its step been planned for certain.
            first = next(encoded)
            step, count, totals = ahead.popleft()
            rows = [first, *(next(encoded) for _ in range(count - 1))]
            left_out = [sample for row in rows for sample in row if isinstance(sample, LeftOut)]
            readable = [[sample for sample in row if isinstance(sample, Encoded)] for row in rows]
            yield Step(step, [_collated(row, totals, corpus) for row in readable], left_out)


def encode_row(corpus: Corpus, row: Sequence[int]) -> list[Encoded]:
    """The samples of a row, by their places in the table."""
    return [corpus.encode(place) for place in row]


def _encode_what_can_be(corpus: Corpus, row: Sequence[int]) -> list[Encoded | LeftOut]:
    """The samples of a row; those that cannot be read stand there without what they hold, if the recipe allows it."""
    samples: list[Encoded | LeftOut] = []
    for place in row:
        try:
            samples.append(corpus.encode(place))
        except Unreadable as error:
            if corpus.recipe.faults.unreadable == "stop":
                raise InputError(
                    f"{error.message}. Mend it, or set faults.unreadable=skip to leave out such samples; the same "
                    "command then goes on",
                    file=error.file,
                ) from None
            samples.append(LeftOut(_name(corpus, place), int(corpus.table[place]["answer"]), str(error)))
    return samples


def _name(corpus: Corpus, place: int) -> str:
    try:
        return corpus.sample_id(place)
    except Unreadable:
        # Of a damaged shard not even the name can be read.
        item = corpus.table[place]
        return f"{corpus.sources[int(item['source'])].where} {item['number'] + 1}"


def _collated(row: list[Encoded], totals: Totals, corpus: Corpus) -> PackedBatch:
    pad_id = corpus.processor.tokenizer.pad_token_id
    return collate(row, totals, pad_id, LENGTH_MULTIPLE) if row else _empty(totals, pad_id, corpus)


def _empty(totals: Totals, pad_id: int, corpus: Corpus) -> PackedBatch:
    """A row without samples: an empty image that nothing is asked about.

    Processes wait for each other's tensors in every row, so that one cannot pass it over.
    """
    processor = corpus.processor
    ids = [processor.image_token_id] * processor.image_seq_length
    size = processor.image_processor.size
    image = np.zeros((1, size, size), np.float32)
    cover = None if corpus.patch_grid is None else np.zeros((corpus.patch_grid**2, len(corpus.kinds)), np.float32)
    batch = collate([Encoded("", "findings", ids, len(ids), image, cover)], totals, pad_id, LENGTH_MULTIPLE)
    return replace(
        batch,
        frontal_rows=batch.frontal_rows[:0],
        coverage=None if batch.coverage is None else batch.coverage[:0],
        sample_ids=(),
        tasks=(),
    )
