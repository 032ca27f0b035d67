"""Training data of judges: conversations as tokens, with the loss on the answer only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import TemplateError

from maira.judge.run_config import ChatSource, JudgeTrainConfig
from maira.judge.samples import ChatSample
from maira.train.config.run_config import ALL_TASKS
from maira.train.data.packing import SAMPLE_LENGTHS, EncodedSample
from radfact.errors import ErrorCode, InputError, check_unique_id
from radfact.io.jsonl import read_jsonl, read_text
from radfact.records import validate_model

NO_IMAGES: npt.NDArray[np.float32] = np.zeros((0, 1, 1), np.float32)


class ChatDataset:
    """Conversations by their row in a table of `SAMPLE_LENGTHS`; each was tokenized when the dataset was opened."""

    def __init__(
        self, table: npt.NDArray[Any], names: Sequence[str], ids: Sequence[npt.NDArray[np.int32]], pad_id: int
    ) -> None:
        self.table, self.pad_id = table, pad_id
        self._names, self._ids = names, ids

    def sample_id(self, row: int) -> str:
        return self._names[row]

    location = sample_id

    def blank(self) -> EncodedSample:
        """Return a single token without an answer."""
        return EncodedSample("", ALL_TASKS[int(self.table["task"][0])], [self.pad_id], 1, NO_IMAGES)

    def encode(self, row: int) -> EncodedSample:
        lengths = self.table[row]
        task, prompt_tokens = ALL_TASKS[int(lengths["task"])], int(lengths["prompt"])
        return EncodedSample(self._names[row], task, self._ids[row].tolist(), prompt_tokens, NO_IMAGES)


def open_chat_dataset(
    config: JudgeTrainConfig,
    sources: Sequence[ChatSource],
    tokenizer: Any,
    ends: frozenset[int],
    on_progress: Callable[[int, int], None] | None = None,
) -> ChatDataset:
    """Tokenize all conversations of some sources, and check that each can be trained on; `ends` are stop tokens."""
    total, done = sum(read_text(source.file).count("\n") for source in sources), 0
    rows: list[tuple[int, ...]] = []
    names: list[str] = []
    tokens: list[npt.NDArray[np.int32]] = []
    for index, source in enumerate(sources):
        shares, before = config.shares(source), len(rows)
        seen: dict[str, int] = {}
        for line, row in read_jsonl(source.file):
            sample = validate_model(ChatSample, row, file=source.file, line=line)
            check_unique_id(seen, sample.sample_id, line, file=source.file)
            done += 1
            if on_progress and done % 100 == 0:
                on_progress(done, total)
            if sample.task not in shares or source.split not in (None, sample.split):
                continue
            try:
                ids, prompt = encode_chat(sample, tokenizer, ends)
            except InputError as error:
                raise InputError(error.message, code=error.code, file=source.file, line=line) from None
            rows.append((index, line - 1, ALL_TASKS.index(sample.task), 0, 0, prompt, len(ids) - prompt))
            names.append(sample.sample_id)
            tokens.append(np.array(ids, np.int32))
        if len(rows) == before:
            split = f" in the split '{source.split}'" if source.split is not None else ""
            message = f"has no sample{split} of the task {' or '.join(shares)}"
            raise InputError(message, code=ErrorCode.EMPTY_INPUT, file=source.file)
    pad_id = min(ends) if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return ChatDataset(np.array(rows, SAMPLE_LENGTHS), names, tokens, pad_id)


def encode_chat(sample: ChatSample, tokenizer: Any, ends: frozenset[int]) -> tuple[list[int], int]:
    """Return the tokens of a conversation up to the stop token of its answer, and the number of prompt tokens."""
    subject = f"sample '{sample.sample_id}'"
    messages = [message.model_dump() for message in sample.messages]
    try:
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        answer = {"role": "assistant", "content": sample.answer}
        whole = tokenizer.apply_chat_template([*messages, answer], tokenize=False)
    except (TemplateError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{subject}: the chat template fails: {error}") from None
    if not whole.startswith(prompt):
        same = _shared_length(prompt, whole)
        message = "the chat template gives another prompt without the answer than with it, from character"
        raise InputError(f"{subject}: {message} {same} of {len(prompt)} on")
    if sample.answer.strip() not in whole[len(prompt) :]:
        raise InputError(f"{subject}: the chat template changes the answer")
    try:  # the template writes the special tokens
        begin, ids = (list[int](tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (prompt, whole))
    except TypeError:  # a lone surrogate
        raise InputError(f"{subject}: the tokenizer cannot read the text, which is not valid Unicode") from None
    if ids[: len(begin)] != begin:
        found = f"of those of prompt and answer only the first {_shared_length(begin, ids)} are the same"
        message = f"the prompt has {len(begin)} tokens, but {found}"
        raise InputError(f"{subject}: {message}; the tokenizer does not split the text where the answer begins")
    last = next((index for index in range(len(begin), len(ids)) if ids[index] in ends), None)
    if last is None:
        stops = ", ".join(tokenizer.convert_ids_to_tokens(sorted(ends)))
        message = f"the chat template does not end an answer with a token at which the model stops ({stops})"
        raise InputError(f"{subject}: {message}")
    return ids[: last + 1], len(begin)


def _shared_length(first: Sequence[Any], second: Sequence[Any]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
