"""Training data of judges: conversations as tokens, with the loss on the answer only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import TemplateError

from maira.judge.run_config import ChatSource, JudgeTrainConfig
from maira.judge.samples import ChatSample, parse_sample
from maira.train.data.dataset import combine_errors
from maira.train.data.packing import ALL_TASKS, SAMPLE_LENGTHS, EncodedSample
from maira.train.data.sources import UnreadableSample, line_offsets
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import parse_rows

BAD_SAMPLES = "samples-not-read.txt"
"""File in the folder of a run that lists samples that cannot be trained on if there are many."""

_NO_IMAGES: npt.NDArray[np.float32] = np.zeros((0, 1, 1), np.float32)


class ChatFile:
    """The lines of a file of conversations by number from 0, read on demand.

    Args:
        path: JSON Lines file.

    Raises:
        InputError: the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.offsets = path, line_offsets(path)
        self.count = len(self.offsets) - 1

    def read(self, number: int) -> ChatSample | None:
        """Return the sample of a line, None for a blank line.

        Raises:
            InputError: the line is not a valid sample.
        """
        begin, end = (int(self.offsets[index]) for index in (number, number + 1))
        try:
            with self.path.open("rb") as handle:
                handle.seek(begin)
                text = handle.read(end - begin).decode("utf-8" if begin else "utf-8-sig")
        except OSError as error:
            raise InputError(
                f"cannot be read: {error.strerror}", code=ErrorCode.FILE_UNREADABLE, file=self.path
            ) from None
        except UnicodeDecodeError as error:
            message = f"expected UTF-8 text (byte {begin + error.start})"
            raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=self.path) from None
        for line, row in parse_rows([text.removesuffix("\n")], self.path, number + 1):
            return parse_sample(row, self.path, line)
        return None


class ChatDataset:
    """Conversations by their row in a table.

    Args:
        files: of the configuration, in order.
        table: (samples,) of `SAMPLE_LENGTHS`.
        tokenizer: of the model, with a chat template.
        ends: stop tokens of the model.
    """

    def __init__(
        self, files: Sequence[ChatFile], table: npt.NDArray[Any], tokenizer: Any, ends: frozenset[int]
    ) -> None:
        self.files, self.table, self.tokenizer, self.ends = files, table, tokenizer, ends

    @property
    def pad_id(self) -> int:
        """Padding token."""
        pad: int | None = self.tokenizer.pad_token_id
        return min(self.ends) if pad is None else pad

    def sample_id(self, row: int) -> str:
        """Return the name of a sample."""
        return self._sample(row).sample_id

    def location(self, row: int) -> str:
        """Return file and line of a sample."""
        lengths = self.table[row]
        return f"{self.files[int(lengths['source'])].path}:{lengths['number'] + 1}"

    def blank(self) -> EncodedSample:
        """Return a single token without an answer."""
        return EncodedSample("", ALL_TASKS[int(self.table["task"][0])], [self.pad_id], 1, _NO_IMAGES)

    def encode(self, row: int) -> EncodedSample:
        """Tokenize a conversation.

        Raises:
            UnreadableSample: the line cannot be read.
            InputError: the conversation has changed since the run began.
        """
        lengths, sample = self.table[row], self._sample(row)
        ids, prompt = encode_chat(sample, self.tokenizer, self.ends)
        if (prompt, len(ids)) != (lengths["prompt"], lengths["prompt"] + lengths["answer"]):
            raise InputError(
                f"expected {lengths['prompt'] + lengths['answer']} tokens in sample '{sample.sample_id}', as when the "
                f"run began, found {len(ids)}; the data of a run must not change",
                code=ErrorCode.MISMATCH,
                file=self.files[int(lengths["source"])].path,
            )
        return EncodedSample(sample.sample_id, sample.task, ids, prompt, _NO_IMAGES)

    def _sample(self, row: int) -> ChatSample:
        file, number = self.files[int(self.table[row]["source"])], int(self.table[row]["number"])
        try:
            sample = file.read(number)
        except InputError as error:
            raise UnreadableSample(
                error.message, code=error.code, file=error.file, line=error.line, field=error.field
            ) from None
        if sample is None:
            raise InputError(
                "has changed since the run began: the line is blank",
                code=ErrorCode.MISMATCH,
                file=file.path,
                line=number + 1,
            )
        return sample


def open_chat_dataset(
    config: JudgeTrainConfig,
    sources: Sequence[ChatSource],
    tokenizer: Any,
    ends: frozenset[int],
    on_progress: Callable[[int, int], None] | None = None,
) -> ChatDataset:
    """Read all conversations of some sources, check that each can be trained on, and count their tokens.

    Args:
        config: its shares, and its folder for a list of samples that cannot be trained on.
        sources: to train or validate on.
        tokenizer: of the model.
        ends: stop tokens of the model.
        on_progress: called with (lines done, total).

    Raises:
        InputError: a line is not a valid sample, two samples have the same name, the template fails, or a source has
            no sample.
    """
    files = [ChatFile(source.file) for source in sources]
    total, done = sum(file.count for file in files), 0
    rows: list[tuple[int, ...]] = []
    errors: list[InputError] = []
    for index, (source, file) in enumerate(zip(sources, files, strict=True)):
        shares, before = config.shares(source), len(rows) + len(errors)
        for number, sample in _read_samples(file, errors):
            done += 1
            if on_progress and done % 100 == 0:
                on_progress(done, total)
            if sample is None or sample.task not in shares or source.split not in (None, sample.split):
                continue
            try:
                ids, prompt = encode_chat(sample, tokenizer, ends)
            except InputError as error:
                errors.append(InputError(error.message, code=error.code, file=file.path, line=number + 1))
                continue
            rows.append((index, number, ALL_TASKS.index(sample.task), 0, 0, prompt, len(ids) - prompt))
        if len(rows) + len(errors) == before:
            split = f" in the split '{source.split}'" if source.split is not None else ""
            message = f"has no sample{split} of the task {' or '.join(shares)}"
            raise InputError(message, code=ErrorCode.EMPTY_INPUT, file=file.path)
    if errors:
        raise combine_errors(errors, "samples cannot be trained on", config.out / BAD_SAMPLES)
    return ChatDataset(files, np.array(rows, SAMPLE_LENGTHS), tokenizer, ends)


def _read_samples(file: ChatFile, errors: list[InputError]) -> Iterator[tuple[int, ChatSample | None]]:
    """Yield numbers and samples of a file, None for blank and invalid lines; errors of the latter are collected.

    Raises:
        InputError: two samples have the same name.
    """
    seen: dict[str, int] = {}
    for number in range(file.count):
        sample = None
        try:
            sample = file.read(number)
        except InputError as error:
            errors.append(error)
        if sample and (first := seen.setdefault(sample.sample_id, number)) != number:
            message = f"duplicate name '{sample.sample_id}' in the lines {first + 1} and {number + 1}"
            raise InputError(message, code=ErrorCode.DUPLICATE, file=file.path, field="sample_id")
        yield number, sample


def encode_chat(sample: ChatSample, tokenizer: Any, ends: frozenset[int]) -> tuple[list[int], int]:
    """Tokenize a conversation with its answer.

    The prompt is the same as a server's with the model's chat template. What the template writes from the answer up to
    the stop token is trained on; what follows the stop token is cut off.

    Args:
        sample: messages and answer.
        tokenizer: with a chat template.
        ends: stop tokens of the model.

    Returns:
        The tokens of prompt and answer, and the number of prompt tokens.

    Raises:
        InputError: the template fails, the whole text does not begin with the prompt, does not contain the answer, or
            has no stop token.
    """
    messages = [message.model_dump() for message in sample.messages]
    try:
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        answer = {"role": "assistant", "content": sample.answer}
        whole = tokenizer.apply_chat_template([*messages, answer], tokenize=False)
    except (TemplateError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"sample '{sample.sample_id}': the chat template fails: {error}") from None
    if not whole.startswith(prompt):
        agree = next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(whole))
        raise InputError(
            f"sample '{sample.sample_id}': the chat template gives another prompt without the answer than with it, "
            f"from character {agree} of {len(prompt)} on"
        )
    if sample.answer.strip() not in whole[len(prompt) :]:
        raise InputError(f"sample '{sample.sample_id}': the chat template changes the answer")
    ids = _tokens(tokenizer, whole)
    begin = _tokens(tokenizer, prompt)
    if ids[: len(begin)] != begin:
        agree = next((i for i, (a, b) in enumerate(zip(begin, ids, strict=False)) if a != b), len(ids))
        raise InputError(
            f"sample '{sample.sample_id}': the prompt has {len(begin)} tokens, but of those of prompt and answer only "
            f"the first {agree} are the same; the tokenizer does not split the text where the answer begins"
        )
    last = next((index for index in range(len(begin), len(ids)) if ids[index] in ends), None)
    if last is None:
        raise InputError(
            f"sample '{sample.sample_id}': the chat template does not end an answer with a token at which the model "
            f"stops ({', '.join(tokenizer.convert_ids_to_tokens(sorted(ends)))})"
        )
    return ids[: last + 1], len(begin)


def _tokens(tokenizer: Any, text: str) -> list[int]:
    # The template writes the special tokens.
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
