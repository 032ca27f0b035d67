"""Conversations as tokens, with the loss on the answer alone: the samples of a judge's training."""

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
from radfact.errors import InputError
from radfact.io.jsonl import parse_rows

BAD_SAMPLES = "samples-not-read.txt"
"""In the folder of a run: samples that cannot be trained on, a line each, if they are many."""

_NO_IMAGES: npt.NDArray[np.float32] = np.zeros((0, 1, 1), np.float32)


class ChatFile:
    """The lines of a file of conversations, by number from 0, without holding them in memory.

    Args:
        path: of the file.

    Raises:
        InputError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.offsets = path, line_offsets(path)
        self.count = len(self.offsets) - 1

    def read(self, number: int) -> ChatSample | None:
        """The sample of a line; None if the line is blank.

        Raises:
            InputError: it is no sample; line and field are named.
        """
        begin, end = (int(self.offsets[place]) for place in (number, number + 1))
        try:
            with self.path.open("rb") as handle:
                handle.seek(begin)
                text = handle.read(end - begin).decode("utf-8" if begin else "utf-8-sig")
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", file=self.path) from None
        except UnicodeDecodeError as error:
            raise InputError(f"not UTF-8 text (byte {begin + error.start})", file=self.path) from None
        for line, row in parse_rows([text.removesuffix("\n")], self.path, number + 1):
            return parse_sample(row, self.path, line)
        return None


class ChatDataset:
    """Samples of a judge by their place in a table.

    Args:
        files: the recipe's, in their order.
        table: (answers,) of `SAMPLE_LENGTHS`.
        tokenizer: of the model, with a chat template.
        ends: tokens at which the model stops to write.
    """

    def __init__(
        self, files: Sequence[ChatFile], table: npt.NDArray[Any], tokenizer: Any, ends: frozenset[int]
    ) -> None:
        self.files, self.table, self.tokenizer, self.ends = files, table, tokenizer, ends

    @property
    def pad_id(self) -> int:
        """The token of padding, which nothing reads."""
        pad: int | None = self.tokenizer.pad_token_id
        return min(self.ends) if pad is None else pad

    def sample_id(self, row: int) -> str:
        """Name of the sample of an answer."""
        return self._sample(row).sample_id

    def place(self, row: int) -> str:
        """File and line of the sample of an answer."""
        item = self.table[row]
        return f"{self.files[int(item['source'])].path}:{item['number'] + 1}"

    def blank(self) -> EncodedSample:
        """A token that nothing is asked about."""
        return EncodedSample("", ALL_TASKS[int(self.table["task"][0])], [self.pad_id], 1, _NO_IMAGES)

    def encode(self, row: int) -> EncodedSample:
        """A conversation as tokens, the answer's behind the prompt's.

        Raises:
            UnreadableSample: its line cannot be read.
            InputError: it is not as it was when the run began.
        """
        item, sample = self.table[row], self._sample(row)
        ids, prompt = encode_chat(sample, self.tokenizer, self.ends)
        if (prompt, len(ids)) != (item["prompt"], item["prompt"] + item["answer"]):
            raise InputError(
                f"sample '{sample.sample_id}' has {len(ids)} tokens, and had {item['prompt'] + item['answer']} when "
                "the run began; a run's data must stay as it is",
                file=self.files[int(item["source"])].path,
            )
        return EncodedSample(sample.sample_id, sample.task, ids, prompt, _NO_IMAGES)

    def _sample(self, row: int) -> ChatSample:
        file, number = self.files[int(self.table[row]["source"])], int(self.table[row]["number"])
        try:
            sample = file.read(number)
        except InputError as error:
            raise UnreadableSample(error.message, file=error.file, line=error.line, field=error.field) from None
        if sample is None:
            raise InputError("has changed since it was read first: the line is blank", file=file.path, line=number + 1)
        return sample


def open_chat_dataset(
    config: JudgeTrainConfig,
    sources: Sequence[ChatSource],
    tokenizer: Any,
    ends: frozenset[int],
    on_progress: Callable[[int, int], None] | None = None,
) -> ChatDataset:
    """Read all conversations of some sources once: their lengths as tokens, and whether each can be trained on.

    Args:
        config: its shares count, and its folder takes the list of what cannot be trained on, if that is long.
        sources: to train or validate on.
        tokenizer: of the model.
        ends: tokens at which the model stops to write.
        on_progress: called with (lines done, lines in all).

    Raises:
        InputError: a line is no sample, two have one name, the template does not fit, or a source has no answer.
    """
    files = [ChatFile(source.file) for source in sources]
    in_all, done = sum(file.count for file in files), 0
    rows: list[tuple[int, ...]] = []
    faults: list[InputError] = []
    for place, (source, file) in enumerate(zip(sources, files, strict=True)):
        shares, before = config.shares(source), len(rows) + len(faults)
        for number, sample in _look(file, faults):
            done += 1
            if on_progress and done % 100 == 0:
                on_progress(done, in_all)
            if sample is None or sample.task not in shares or source.split not in (None, sample.split):
                continue
            try:
                ids, prompt = encode_chat(sample, tokenizer, ends)
            except InputError as error:
                faults.append(InputError(error.message, file=file.path, line=number + 1))
                continue
            rows.append((place, number, ALL_TASKS.index(sample.task), 0, 0, prompt, len(ids) - prompt))
        if len(rows) + len(faults) == before:
            split = f" in the split '{source.split}'" if source.split is not None else ""
            raise InputError(f"has no sample{split} of the task {' or '.join(shares)}", file=file.path)
    if faults:
        raise combine_errors(faults, "samples cannot be trained on", config.out / BAD_SAMPLES)
    return ChatDataset(files, np.array(rows, SAMPLE_LENGTHS), tokenizer, ends)


def _look(file: ChatFile, faults: list[InputError]) -> Iterator[tuple[int, ChatSample | None]]:
    """Numbers and samples of a file; None for a blank line and for one that is no sample, which is added to `faults`.

    Raises:
        InputError: two samples have one name.
    """
    seen: dict[str, int] = {}
    for number in range(file.count):
        sample = None
        try:
            sample = file.read(number)
        except InputError as error:
            faults.append(error)
        if sample and (first := seen.setdefault(sample.sample_id, number)) != number:
            message = f"'{sample.sample_id}' must be unique, but lines {first + 1} and {number + 1} have it"
            raise InputError(message, file=file.path, field="sample_id")
        yield number, sample


def encode_chat(sample: ChatSample, tokenizer: Any, ends: frozenset[int]) -> tuple[list[int], int]:
    """The tokens of a conversation with its answer, and how many of them are the prompt's.

    The prompt is what a server makes of the messages by the model's chat template. What the template puts around the
    answer up to the token at which the model stops is learnt with it; what follows that token is cut off.

    Args:
        sample: messages and answer.
        tokenizer: with a chat template.
        ends: tokens at which the model stops to write.

    Raises:
        InputError: the template refuses the messages, the prompt is not the beginning of the whole, the answer is not
            in it as it is, or nothing ends it; the sample is named.
    """
    messages = [message.model_dump() for message in sample.messages]
    try:
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        whole = tokenizer.apply_chat_template([*messages, _said(sample.answer)], tokenize=False)
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
    last = next((place for place in range(len(begin), len(ids)) if ids[place] in ends), None)
    if last is None:
        raise InputError(
            f"sample '{sample.sample_id}': the chat template does not end an answer with a token at which the model "
            f"stops ({', '.join(tokenizer.convert_ids_to_tokens(sorted(ends)))})"
        )
    return ids[: last + 1], len(begin)


def _said(answer: str) -> dict[str, str]:
    return {"role": "assistant", "content": answer}


def _tokens(tokenizer: Any, text: str) -> list[int]:
    # The template has written the special tokens.
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
