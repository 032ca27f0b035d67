"""Generation with transformers: of the most likely tokens, or sampled."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from logging import LogRecord, getLogger
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList, StaticCache

from maira.generate.constraints import FiniteCheck, GrammarProcessor, NarrativeGuard, Sampler
from maira.generate.engine import (
    NON_FINITE,
    FailedRequest,
    GenerationRequest,
    Response,
    limit_to_window,
    window_failure,
)
from maira.generate.features import ENCODER_BATCH, ImageFeatures
from maira.generate.options import EngineOptions
from maira.model.checkpoint import checkpoint_name
from maira.model.config import context_window
from maira.model.grammar import Grammar, Vocabulary
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor, pad
from maira.model.tokens import OBJECT_END
from radfact.errors import ErrorCode, InputError

_PREFILL_TOKENS = 16_384
"""Tokens of a batch, over all rows, that pass the language model together while prompts are read."""
_MEMORY_SHARE = 0.9
"""Share of the free memory to plan with; allocators and kernels take the rest."""
_BATCH_SIZE = 8
"""Batch size without an accelerator."""
_CACHE_SLACK = 1.25
"""Longest static cache that is reused, relative to the length needed; a new one takes a compilation."""
_COMPILED_FROM = 1000
"""Requests from which the decoding step is compiled by default.

Assumed, not measured: compiling takes about a minute, and saves about 10 ms per token of a batch. A batch of 32
responses of 200 tokens then saves 2 s, so that about 30 batches make up for it.
"""
_OUT_OF_MEMORY = "does not fit in memory, even alone (out of memory)"


class TransformersEngine:
    """An engine that runs transformers' own `generate` on batches of requests of similar length.

    Prompts are prefilled in chunks of a bounded number of tokens, so that a large batch needs little memory in addition
    to its cache; `generate` continues from that cache. A batch that does not fit in memory is halved, and so are later
    ones.

    Args:
        checkpoint: folder with the model and its processor.
        options: options of the engine.

    Raises:
        InputError: the folder is not a checkpoint of MAIRA-2, its tokenizer lacks tokens, or the device is unknown.
    """

    def __init__(self, checkpoint: Path, options: EngineOptions) -> None:
        device = select_device(options.device)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        model: Any = MairaForConditionalGeneration.from_pretrained(checkpoint, dtype=dtype)
        name = checkpoint_name(checkpoint)
        self._set_model(model.to(device), MairaProcessor.from_pretrained(checkpoint), options, name)

    @classmethod
    def from_model(
        cls, model: MairaForConditionalGeneration, processor: Any, options: EngineOptions
    ) -> TransformersEngine:
        """Make an engine of a model in memory, on its device and in its type.

        Args:
            model: the model.
            processor: its processor.
            options: options of the engine.
        """
        engine = cls.__new__(cls)
        engine._set_model(model, processor, options, "model")
        return engine

    def _set_model(self, model: Any, processor: Any, options: EngineOptions, name: str) -> None:
        self.model, self.processor, self.options, self.name = model.eval(), processor, options, name
        self.device: torch.device = model.device
        ends = self.model.generation_config.eos_token_id or []
        self.vocabulary = Vocabulary.from_tokenizer(
            self.processor.tokenizer, ends if isinstance(ends, list) else [ends]
        )
        self.grammar = Grammar(self.vocabulary)
        self.language_model: Any = self.model.language_model
        self.language_model.generation_config = self.model.generation_config
        self._window = context_window(self.model.config.text_config)
        self._batch_share = 1.0  # of the planned batch size; smaller after a batch did not fit
        self._static_cache: StaticCache | None = None
        self._static_shape = (0, 0)
        self._is_static = uses_static_cache(options.cache, self.device)
        self._is_compiled = True

    @torch.inference_mode()
    def generate(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Response | FailedRequest]]:
        """Yield the index and the response of every request, the longest prompts first.

        A request fails if its image cannot be read, if its prompt fills the context window, or if its logits are not
        finite.
        """
        lengths = [self._prompt_length(request) for request in requests]
        limited = [
            limit_to_window(request, length, self._window) for request, length in zip(requests, lengths, strict=True)
        ]
        order = []
        for index, length in enumerate(lengths):
            if failure := window_failure(length, self._window):
                yield index, failure
            else:
                order.append(index)
        yield from self._generate_batches(limited, lengths, order)

    def _generate_batches(
        self, requests: Sequence[GenerationRequest], lengths: Sequence[int], order: Sequence[int]
    ) -> Iterator[tuple[int, Response | FailedRequest]]:
        kinds = [(request.form, request.max_new_tokens, request.sampling is not None) for request in requests]
        self._is_compiled = self.options.cache == "static" or len(order) >= _COMPILED_FROM
        order = sorted(order, key=lambda index: (kinds[index], lengths[index]), reverse=True)
        images = [requests[index].example.images for index in order]
        with ImageFeatures(
            self._encode_patches, self.processor.image_processor, images, image_check=self.options.image_check
        ) as features:
            start = 0
            while start < len(order):
                longest = lengths[order[start]] + requests[order[start]].max_new_tokens
                planned = self._batch_size(longest)
                batch = order[start : start + max(1, int(planned * self._batch_share))]
                batch = [index for index in batch if kinds[index] == kinds[batch[0]]]
                stop = start + len(batch)
                responses = self._try_batch([requests[index] for index in batch], features, start, stop)
                if responses is None:
                    self._free_memory()
                    if len(batch) > 1:
                        self._batch_share = (len(batch) // 2) / planned
                        continue
                    # A request that does not fit even alone says nothing about the others.
                    responses, self._batch_share = [FailedRequest(_OUT_OF_MEMORY)], 1.0
                yield from zip(batch, responses, strict=True)
                start = stop

    def close(self) -> None:
        """Do nothing: Python frees the model."""

    def _encode_patches(self, pixels: Tensor) -> Tensor:
        patches: Tensor = self.model.encode_patches(pixels.to(self.device))
        return patches

    def _prompt_length(self, request: GenerationRequest) -> int:
        return len(self.processor.encode_prompt(request.example.prompt, len(request.example.images)))

    def _batch_size(self, length: int) -> int:
        """Return the batch size for sequences of `length` tokens, prompt and response."""
        if self.options.batch_size is not None:
            return self.options.batch_size
        if self.device.type != "cuda":
            return _BATCH_SIZE
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        free = torch.cuda.mem_get_info(self.device)[0] + unused
        if self._static_cache is not None:
            free += sum(layer.keys.nbytes + layer.values.nbytes for layer in self._static_cache.layers)
        return largest_batch_size(free, length, self.model.config.text_config, self.model.dtype.itemsize)

    def _try_batch(
        self, requests: Sequence[GenerationRequest], features: ImageFeatures, start: int, stop: int
    ) -> list[Response | FailedRequest] | None:
        """Return the responses to a batch, or None if there is not enough memory."""
        begin = time.perf_counter()
        try:
            images = features.encode(start, stop)
            failures = [_image_failure(request, images) for request in requests]
            readable = [request for request, failure in zip(requests, failures, strict=True) if failure is None]
            texts = iter(self._generate(readable, images) if readable else [])
        except torch.OutOfMemoryError:
            return None
        seconds = (time.perf_counter() - begin) / max(1, len(readable))
        return [failure or _response(next(texts), seconds) for failure in failures]

    def _free_memory(self) -> None:
        self._static_cache = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _generate(
        self, requests: Sequence[GenerationRequest], images: Mapping[Path, Tensor | InputError]
    ) -> list[tuple[str, bool, tuple[int, ...]] | None]:
        """Return text and tokens of each response, and whether the token limit ended it; None for non-finite logits."""
        limit, form, tokenizer = requests[0].max_new_tokens, requests[0].form, self.processor.tokenizer
        ends = set(self.vocabulary.ends)
        if form == "boxes":
            ends.add(self.vocabulary.ids[OBJECT_END])
        grammar, finite = None, FiniteCheck()
        constraints: list[LogitsProcessor] = [finite]
        samplings = [request.sampling for request in requests if request.sampling is not None]
        if not self.options.free and form == "narrative" and not samplings:
            constraints.append(NarrativeGuard(self.vocabulary, tokenizer))
        elif not self.options.free and form != "narrative":
            constraints.append(grammar := GrammarProcessor(self.grammar, limit, in_box=form == "boxes"))
        suppressed = self.model.config.image_token_index
        if samplings:
            constraints.append(Sampler(samplings, suppressed))
        examples = [request.example for request in requests]
        rows = [self.processor.encode_prompt(example.prompt, len(example.images)) for example in examples]
        prompt, mask = (tensor.to(self.device) for tensor in pad(rows, tokenizer.pad_token_id, left=True))
        image_tokens = self._image_tokens([images[image] for example in examples for image in example.images])
        with _without_length_warning():
            ids = self.language_model.generate(
                prompt,
                attention_mask=mask,
                past_key_values=self._prefill(prompt, mask, image_tokens, limit),
                max_new_tokens=limit,
                disable_compile=not self._is_compiled,
                do_sample=False,
                eos_token_id=sorted(ends),
                pad_token_id=tokenizer.pad_token_id,
                suppress_tokens=[suppressed],
                logits_processor=LogitsProcessorList(constraints),
            )[:, prompt.shape[1] :]
        cut_off = [ends.isdisjoint(row) for row in ids.tolist()]
        if grammar is not None:
            cut_off = [is_cut or limited for is_cut, limited in zip(cut_off, grammar.cut_off, strict=True)]
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        is_broken = [False] * len(rows) if finite.is_broken is None else finite.is_broken.tolist()
        return [
            None if broken else (text.strip(), is_cut, _until_end(row, ends))
            for text, is_cut, broken, row in zip(texts, cut_off, is_broken, ids.tolist(), strict=True)
        ]

    def _image_tokens(self, patches: Sequence[Any]) -> Tensor | None:
        """Project encoded images, each (patches, encoder width), to (images, image_seq_length, width)."""
        if not patches:
            return None
        chunks = (patches[start : start + ENCODER_BATCH] for start in range(0, len(patches), ENCODER_BATCH))
        return torch.cat([self.model.project(torch.stack(list(chunk)).to(self.device)) for chunk in chunks])

    def _prefill(self, prompt: Tensor, mask: Tensor, image_tokens: Tensor | None, limit: int) -> Any:
        """Return a cache of the prompts without their last token, which `generate` reads itself.

        Args:
            prompt: token ids (batch, length), padded on the left.
            mask: (batch, length), 1 for tokens.
            image_tokens: (images, image_seq_length, width), or None.
            limit: new tokens that the cache must hold in addition.
        """
        rows, length = prompt.shape
        cache = self._make_cache(rows, length + limit)
        embeddings = self.model.embed(prompt, image_tokens)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        step = max(1, _PREFILL_TOKENS // rows)
        for start in range(0, length - 1, step):
            stop = min(start + step, length - 1)
            self.model.decode(
                embeddings[:, start:stop],
                attention_mask=mask[:, :stop],
                position_ids=positions[:, start:stop],
                past_key_values=cache,
                use_cache=True,
            )
        return cache

    def _make_cache(self, rows: int, length: int) -> Any:
        config = self.model.config.text_config
        if not self._is_static:
            return DynamicCache(config=config)
        static_rows, static_length = self._static_shape
        fits = static_rows == rows and length <= static_length <= _CACHE_SLACK * length
        if self._static_cache is None or not fits:
            self._static_cache = None  # frees its memory before the next one is allocated
            self._static_cache, self._static_shape = StaticCache(config=config, max_cache_len=length), (rows, length)
        self._static_cache.reset()
        return self._static_cache


def uses_static_cache(option: Literal["auto", "dynamic", "static"], device: torch.device) -> bool:
    """Return whether the key-value cache is allocated once, instead of copied for every token.

    "auto" is static on a GPU. Computed for 7B parameters and 32 sequences of 3,300 tokens on an H100: a step reads
    13.5 GB of weights and 55 GB of keys and values (21 ms at 3.35 TB/s); a dynamic cache also reads and writes the
    latter once more (54 ms). On a CPU both took the same time (33 drafts of the shipped checkpoint, 16.3 to 17.1 s).

    Args:
        option: of the engine.
        device: of the model.
    """
    return option == "static" or (option == "auto" and device.type == "cuda")


def largest_batch_size(free: int, length: int, config: Any, itemsize: int) -> int:
    """Return how many sequences can be generated together, at least one.

    Args:
        free: free memory, bytes.
        length: length of the longest row, prompt and response, in tokens.
        config: configuration of the language model.
        itemsize: bytes per weight.
    """
    row, chunk = batch_bytes(length, config, itemsize)
    return max(1, int((free * _MEMORY_SHARE - chunk) / row))


def batch_bytes(length: int, config: Any, itemsize: int) -> tuple[int, int]:
    """Return the memory per row of a batch and the memory per batch, in bytes.

    A row takes the keys and values of all its tokens (those of one layer twice while it grows), the embeddings of its
    prompt, and up to four float32 copies of its logits. Independent of the rows, a chunk of `_PREFILL_TOKENS` passes
    the layers: three tensors of the MLP's width, eight of the model's width, and the attention mask.

    Args:
        length: length of the longest row, prompt and response, in tokens.
        config: configuration of the language model.
        itemsize: bytes per weight.
    """
    head = config.head_dim or config.hidden_size // config.num_attention_heads
    keys_and_values = 2 * (config.num_hidden_layers + 1) * config.num_key_value_heads * head
    row = length * (keys_and_values + config.hidden_size) * itemsize + 4 * 4 * config.vocab_size
    chunk = (3 * config.intermediate_size + 8 * config.hidden_size + length) * itemsize + length
    return row, _PREFILL_TOKENS * chunk


@contextmanager
def _without_length_warning() -> Iterator[None]:
    """Silence transformers' warning about the number of positions, which ignores that they are scaled."""

    def is_other(record: LogRecord) -> bool:
        return "predefined maximum length" not in record.getMessage()

    logger = getLogger("transformers.generation.stopping_criteria")
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def select_device(name: str | None) -> torch.device:
    """Return the device of a name, or the default: this process's GPU, if there is one.

    Raises:
        InputError: there is no such device.
    """
    has_gpu = torch.cuda.is_available()
    if name is None and not has_gpu:
        return torch.device("cpu")
    try:
        device = torch.device(name or "cuda")
    except RuntimeError:
        raise InputError(
            f"expected cpu, cuda or cuda:1, found '{name}'", code=ErrorCode.INVALID_OPTION, field="device"
        ) from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if has_gpu else 0
        index = device.index if device.index is not None else int(os.environ.get("LOCAL_RANK", 0)) % max(1, count)
        if index >= count:
            raise InputError(
                f"'{name}' does not exist; this machine has {count} GPUs",
                code=ErrorCode.MISSING_REQUIREMENT,
                field="device",
            )
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    return device


def _response(result: tuple[str, bool, tuple[int, ...]] | None, seconds: float) -> Response | FailedRequest:
    if result is None:
        return FailedRequest(NON_FINITE)
    text, is_cut, ids = result
    return Response(text, is_cut, seconds, ids)


def _until_end(ids: Sequence[int], ends: Set[int]) -> tuple[int, ...]:
    """Return tokens up to and including the first that ends the response, without the padding after it."""
    end = next((place for place, token in enumerate(ids) if token in ends), len(ids) - 1)
    return tuple(ids[: end + 1])


def _image_failure(request: GenerationRequest, images: Mapping[Path, Tensor | InputError]) -> FailedRequest | None:
    errors = (images[image] for image in request.example.images)
    return next((FailedRequest(str(error)) for error in errors if isinstance(error, InputError)), None)
