"""Generation with transformers: of the most likely tokens, or sampled."""

from __future__ import annotations

import gc
import os
import time
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import Cache, DynamicLayer, StaticLayer

from maira.generate.constraints import Constraints, OpenResponse
from maira.generate.engine import NON_FINITE, Engine, EngineOptions, FailedRequest, Form, GenerationRequest, Response
from maira.generate.features import ImageFeatures
from maira.model.checkpoint import checkpoint_name
from maira.model.config import context_window
from maira.model.grammar import Grammar
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.model.tokens import OBJECT_END
from maira.runtime.processes import copy_to_device, use_gpu
from radfact.errors import ErrorCode, InputError

_PREFILL_TOKENS = 16_384
"""Tokens of whole prompts that pass the language model together; at least one prompt."""
_MEMORY_SHARE = 0.9
"""Share of the free memory to plan with; allocators and kernels take the rest."""
BATCH_SIZE = 8
"""Batch size without an accelerator, or of a model whose memory is not known."""
_CACHE_STEP, _CACHE_SLACK = 256, 1.25
"""Columns of a static cache are a multiple; rows and columns of one that is reused, relative to those needed."""
_COMPILED_FROM = 1000
"""Requests from which the decoding step is compiled: a minute, assumed, which saves 2 s per batch of 32 responses."""
Responses = dict[int, Response | FailedRequest]
"""By the index of their request."""
_OUT_OF_MEMORY = "does not fit in memory, even alone (out of memory)"


@dataclass(frozen=True)
class Prompt:
    """A request, its index and the tokens of its prompt."""

    index: int
    request: GenerationRequest
    ids: array[int] = field(default_factory=lambda: array("i"))

    @property
    def kind(self) -> tuple[Form, int, bool]:
        """What the requests of a batch have in common."""
        return self.request.form, self.request.max_new_tokens, self.request.sampling is not None


class BatchEngine(Engine):
    """Runs batches of prompts; one that does not fit in memory is halved, and so are later ones."""

    options: EngineOptions
    device: torch.device
    _batch_share = 1.0  # of the planned batch size; smaller after a batch did not fit
    _static_cache: StaticCache | None = None

    def _batch_size(self, length: int) -> int:
        """Return the batch size for sequences of `length` tokens, prompt and response."""
        del length
        return self.options.batch_size or BATCH_SIZE

    def _run(self, prompts: Sequence[Prompt], answer: Callable[[Sequence[Prompt], int], Responses]) -> Iterator[Any]:
        """Yield the index and the response of every prompt; `answer` takes a batch and its first prompt's place."""
        start = 0
        while start < len(prompts):
            first = prompts[start]
            planned = self._batch_size(len(first.ids) + first.request.max_new_tokens)
            batch = prompts[start : start + max(1, int(planned * self._batch_share))]
            batch = [prompt for prompt in batch if prompt.kind == first.kind]
            begin = time.perf_counter()
            try:
                responses: Responses | None = answer(batch, start)
            except torch.OutOfMemoryError:
                responses = None
            if responses is None:
                self._static_cache = None
                gc.collect()
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()
                if len(batch) > 1:
                    self._batch_share = (len(batch) // 2) / planned
                    continue
                # A request that does not fit even alone says nothing about the others.
                responses, self._batch_share = {first.index: FailedRequest(_OUT_OF_MEMORY)}, 1.0
            answered = sum(isinstance(response, Response) for response in responses.values())
            seconds = (time.perf_counter() - begin) / max(1, answered)
            for index, response in responses.items():
                yield index, replace(response, seconds=seconds) if isinstance(response, Response) else response
            start += len(batch)


class TransformersEngine(BatchEngine):
    """An engine that reads whole prompts in groups, which needs little memory, and continues from their cache."""

    def __init__(self, checkpoint: Path, options: EngineOptions) -> None:
        device = select_device(options.device)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        model: Any = MairaForConditionalGeneration.from_pretrained(checkpoint, dtype=dtype)
        name = checkpoint_name(checkpoint)
        self._set_model(model.to(device), MairaProcessor.from_pretrained(checkpoint), options, name)

    @classmethod
    def from_model(cls, model: MairaForConditionalGeneration, processor: Any, options: EngineOptions) -> Self:
        """Make an engine of a model in memory, on its device and in its type."""
        engine = cls.__new__(cls)
        engine._set_model(model, processor, options, "model")
        return engine

    def _set_model(self, model: Any, processor: Any, options: EngineOptions, name: str) -> None:
        self.model, self.processor, self.options, self.name = model.eval(), processor, options, name
        self.device: torch.device = model.device
        self.grammar = Grammar(processor.tokenizer, model.generation_config.eos_token_id)
        self._constraints = Constraints(self.grammar, model.config.image_token_index)
        self._window = context_window(self.model.config.text_config)
        # A static cache is allocated once, instead of copied for every token. Computed for 7B parameters and 32
        # sequences of 3,300 tokens on an H100: a step reads 13.5 GB of weights and 55 GB of keys and values (21 ms at
        # 3.35 TB/s); a dynamic cache also reads and writes the latter once more (54 ms). On a CPU both took the same
        # time (33 drafts of the shipped checkpoint, 16.3 to 17.1 s).
        self._is_static = options.cache == "static" or (options.cache == "auto" and self.device.type == "cuda")
        self._static_shape = (0, 0)
        self._forward: Callable[..., Tensor] = self._step

    def _compiles(self, count: int) -> bool:
        is_worth_it = self.options.cache == "static" or count >= _COMPILED_FROM
        return self._is_static and is_worth_it and self.device.type == "cuda"

    @cached_property
    def _compiled_step(self) -> Callable[..., Tensor]:
        # Dynamic from the start, since the first batches would compile one graph each.
        compiled: Callable[..., Tensor] = torch.compile(self._step, dynamic=True, mode="reduce-overhead")
        return compiled

    @torch.inference_mode()
    def generate(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Response | FailedRequest]]:
        prompts: list[Prompt] = []
        for index, request in enumerate(requests):
            ids: list[int] = self.processor.encode_example(request.example)
            fitting = request.fit_window(len(ids), self._window)
            if isinstance(fitting, FailedRequest):
                yield index, fitting
            else:
                prompts.append(Prompt(index, fitting, array("i", ids)))
        self._forward = self._compiled_step if self._compiles(len(prompts)) else self._step
        prompts.sort(key=lambda prompt: (prompt.kind, len(prompt.ids)), reverse=True)
        images = [prompt.request.example.images for prompt in prompts]
        with ImageFeatures(
            lambda pixels: self.model.encode_patches(copy_to_device(pixels, self.device)),
            self.processor.image_processor,
            images,
            image_check=self.options.image_check,
        ) as features:
            yield from self._run(prompts, partial(self._answer, features))

    def _batch_size(self, length: int) -> int:
        if self.options.batch_size is not None or self.device.type != "cuda":
            return super()._batch_size(length)
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        free = torch.cuda.mem_get_info(self.device)[0] + unused
        if self._static_cache is not None:
            free += sum(layer.keys.nbytes + layer.values.nbytes for layer in self._static_cache.layers)
        length = _static_length(length) if self._is_static else length
        return largest_batch_size(free, length, self.model.config.text_config, self.model.dtype.itemsize)

    def _answer(self, features: ImageFeatures, prompts: Sequence[Prompt], start: int) -> Responses:
        images = features.encode(start, start + len(prompts))
        responses: Responses = {}
        for prompt in prompts:
            errors = (images[image] for image in prompt.request.example.images)
            if error := next((error for error in errors if isinstance(error, InputError)), None):
                responses[prompt.index] = FailedRequest(str(error))
        readable = [prompt for prompt in prompts if prompt.index not in responses]
        generated = self._generate(readable, images) if readable else []
        return responses | {prompt.index: one for prompt, one in zip(readable, generated, strict=True)}

    def _generate(self, prompts: Sequence[Prompt], images: Mapping[Path, Any]) -> list[Response | FailedRequest]:
        """Return the responses to readable requests of one kind, without their time."""
        request, decode = prompts[0].request, self.processor.tokenizer.decode
        ends = self.grammar.ends | ({self.grammar.ids[OBJECT_END]} if request.form == "boxes" else set())
        form = None if self.options.free else request.form
        rows = [OpenResponse(self.grammar, form, request.max_new_tokens, p.request.sampling) for p in prompts]
        broken, cut = self._decode(prompts, rows, ends, self._prefill(prompts, images))
        texts = [decode(row.ids, skip_special_tokens=True).strip() for row in rows]
        cut |= {number for number, row in enumerate(rows) if row.ids[-1] not in ends}
        responses = [Response(text, n in cut, 0.0, tuple(rows[n].ids)) for n, text in enumerate(texts)]
        return [FailedRequest(NON_FINITE) if n in broken else response for n, response in enumerate(responses)]

    def _decode(
        self, prompts: Sequence[Prompt], rows: Sequence[OpenResponse], ends: Collection[int], cache: Cache
    ) -> tuple[set[int], set[int]]:
        """Add tokens to the rows until all have ended; return the broken ones, and those that the limit has cut."""
        lengths, limit = [len(prompt.ids) for prompt in prompts], rows[0].limit
        first = max(lengths) - 1
        # Further rows of a static cache, which no prompt uses, see nothing but their own tokens.
        count, width = self._static_shape if self._is_static else (len(rows), first + limit)
        starts = [(prompt.ids[-1], len(prompt.ids) - 1, first + 1 - len(prompt.ids)) for prompt in prompts]
        starts += [(0, 0, width)] * (count - len(rows))
        # (rows, 1) each; a response begins with the last token of its prompt
        tokens, positions, begins = copy_to_device(torch.tensor([*zip(*starts, strict=True)]), self.device)[..., None]
        columns = torch.arange(width, device=self.device)
        mask = ((columns >= begins) & (columns < first))[:, None, None]
        # Without a mask, attention to a dynamic cache is computed by FlashAttention.
        is_masked = self._is_static or len(set(lengths)) > 1
        open_rows, broken, cut = dict(enumerate(rows)), set[int](), set[int]()
        for column in range(first, first + limit):
            mask[..., column] = True
            seen = mask if self._is_static else mask[..., : column + 1]
            logits = self._forward(tokens, positions, seen if is_masked else None, cache)
            scores = logits[: len(rows)].to(torch.float32, copy=True)
            is_broken, is_cut = self._constraints(scores, open_rows)
            chosen = scores.argmax(-1)
            # Nothing else in a step waits for the device.
            read = torch.stack([chosen, is_broken, is_cut]).T.cpu().tolist()
            for number, row in [*open_rows.items()]:
                token, breaks, cuts = read[number]
                row.ids.append(token)
                if cuts:
                    cut.add(number)
                if breaks:
                    broken.add(number)
                if breaks or token in ends:
                    del open_rows[number]
            if not open_rows:
                break
            tokens[: len(rows), 0] = chosen
            positions += 1
        return broken, cut

    def _step(self, tokens: Tensor, positions: Tensor, mask: Tensor | None, cache: Cache) -> Tensor:
        """Return the logits (rows, vocabulary) after a further token of each row (rows, 1)."""
        embeddings = self.model.embed(tokens, None, check=False)
        options: dict[str, Any] = {"position_ids": positions, "past_key_values": cache, "use_cache": True}
        hidden = self.model.decode(embeddings, attention_mask=mask, **options).last_hidden_state
        logits: Tensor = self.model.lm_head(hidden[:, -1])
        return logits

    def _prefill(self, prompts: Sequence[Prompt], images: Mapping[Path, Any]) -> Cache:
        """Return a cache of the prompts without their last tokens, whose columns end together."""
        # Equal prompts, of which several responses are sampled, are computed once. A group of whole prompts begins in
        # its first column, so that padding follows them and no mask is needed.
        equal: dict[tuple[Any, ...], list[int]] = {}
        for number, prompt in enumerate(prompts):
            equal.setdefault((*prompt.ids, *prompt.request.example.images), []).append(number)
        distinct = [(prompts[numbers[0]], numbers) for numbers in equal.values()]
        # The longest prompts come first.
        longest = len(prompts[0].ids) - 1
        cache, rows = self._make_cache(len(prompts), longest + prompts[0].request.max_new_tokens)
        pad = self.processor.tokenizer.pad_token_id
        while distinct and longest:
            length = len(distinct[0][0].ids) - 1
            count = max(1, _PREFILL_TOKENS // max(1, length))
            group, distinct = distinct[:count], distinct[count:]
            ids = torch.tensor([[*prompt.ids[:-1], *[pad] * (length + 1 - len(prompt.ids))] for prompt, _ in group])
            shown = [images[image].to(self.device) for p, _ in group for image in p.request.example.images]
            image_tokens = self.model.project(torch.stack(shown)) if shown else None
            embeddings = self.model.embed(copy_to_device(ids, self.device), image_tokens, check=False)
            places = [(numbers, len(prompt.ids) - 1) for prompt, numbers in group]
            writers: Any = [_PromptWriter(layer, rows, places, longest) for layer in cache.layers]
            self.model.decode(embeddings, past_key_values=Cache(layers=writers), use_cache=True)
        return cache

    def _make_cache(self, rows: int, length: int) -> tuple[Cache, int]:
        """Return an empty cache, and its number of rows."""
        config = self.model.config.text_config
        if not self._is_static:
            return DynamicCache(config=config), rows
        shape = rows, _static_length(length)
        if self._static_cache is None or not all(
            need <= size <= _CACHE_SLACK * need for need, size in zip(shape, self._static_shape, strict=True)
        ):
            self._static_cache = None  # frees its memory before the next one is allocated
            self._static_cache, self._static_shape = StaticCache(config=config, max_cache_len=shape[1]), shape
        self._static_cache.reset()
        return self._static_cache, self._static_shape[0]


class _PromptWriter(DynamicLayer):  # type: ignore[misc]
    """Writes the keys and values of a group of prompts to the layer of a batch's cache, where they end at `stop`."""

    # `places` are the rows and the length of each prompt.

    def __init__(self, layer: Any, rows: int, places: Sequence[tuple[Sequence[int], int]], stop: int) -> None:
        super().__init__()
        self._layer, self._rows, self._places, self._stop = layer, rows, places, stop

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the states (prompts, heads, length, width), and return them as those that the prompts attend to."""
        layer, states = self._layer, (key_states, value_states)
        if not layer.is_initialized and isinstance(layer, StaticLayer):
            layer.lazy_initialization(*(each[:1].expand(self._rows, -1, -1, -1) for each in states))
            # One compiled step serves caches of all sizes, whose addresses do not change while they are used.
            for tensor in (layer.keys, layer.values, layer.cumulative_length):
                torch._dynamo.mark_static_address(tensor, guard=False)
        elif not layer.is_initialized:
            layer.dtype, layer.device, layer.is_initialized = key_states.dtype, key_states.device, True
            shape = self._rows, key_states.shape[1], self._stop, key_states.shape[3]
            layer.keys, layer.values = (each.new_zeros(shape) for each in states)
        if isinstance(layer, StaticLayer):
            layer.cumulative_length.fill_(self._stop)
        for prompt, (rows, length) in enumerate(self._places):
            columns = slice(self._stop - length, self._stop)
            for row in rows:
                layer.keys[row, :, columns] = key_states[prompt, :, :length]
                layer.values[row, :, columns] = value_states[prompt, :, :length]
        return states


def largest_batch_size(free: int, length: int, config: Any, itemsize: int) -> int:
    """Return how many sequences of `length` tokens, prompt and response, fit in `free` bytes; at least one."""
    row, group = batch_bytes(length, config, itemsize)
    return max(1, int((free * _MEMORY_SHARE - group) / row))


def batch_bytes(length: int, config: Any, itemsize: int) -> tuple[int, int]:
    """Return the memory per row of a batch and the memory per batch, in bytes."""
    # Keys and values (those of one layer twice while it grows) and up to four float32 copies of the logits; of a group
    # of prompts three tensors of the MLP's width and nine of the model's width.
    head = config.head_dim or config.hidden_size // config.num_attention_heads
    keys_and_values = 2 * (config.num_hidden_layers + 1) * config.num_key_value_heads * head
    row = length * keys_and_values * itemsize + 4 * 4 * config.vocab_size
    group = (3 * config.intermediate_size + 9 * config.hidden_size) * itemsize
    return row, max(_PREFILL_TOKENS, length) * group


def _static_length(length: int) -> int:
    return -(-length // _CACHE_STEP) * _CACHE_STEP


def select_device(name: str | None) -> torch.device:
    """Return the device of a name, or the default: this process's GPU, if there is one."""
    has_gpu = torch.cuda.is_available()
    if name is None and not has_gpu:
        return torch.device("cpu")
    try:
        device = torch.device(name or "cuda")
    except RuntimeError:
        message = f"expected cpu, cuda or cuda:1, found '{name}'"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="device") from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if has_gpu else 0
        index = device.index if device.index is not None else int(os.environ.get("LOCAL_RANK", 0)) % max(1, count)
        if index >= count:
            message = f"'{name}' does not exist; this machine has {count} GPUs"
            raise InputError(message, code=ErrorCode.MISSING_REQUIREMENT, field="device")
        device = torch.device("cuda", index)
        use_gpu(device)
    return device
