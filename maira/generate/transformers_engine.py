"""Generation with transformers: of the most likely tokens, or sampled."""

from __future__ import annotations

import copy
import gc
import os
import time
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM, LogitsProcessorList, StaticCache

from maira.generate.constraints import BatchConstraints, Constraints, OpenResponse
from maira.generate.engine import (
    NON_FINITE,
    EngineOptions,
    FailedRequest,
    Form,
    GenerationRequest,
    Response,
    fit_window,
)
from maira.generate.features import ENCODER_BATCH, ImageFeatures
from maira.model.checkpoint import checkpoint_name
from maira.model.config import context_window
from maira.model.grammar import Grammar
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.model.tokens import OBJECT_END
from radfact.errors import ErrorCode, InputError

_PREFILL_TOKENS = 16_384
"""Tokens of a batch, over all rows, that pass the language model together while prompts are read."""
_MEMORY_SHARE = 0.9
"""Share of the free memory to plan with; allocators and kernels take the rest."""
BATCH_SIZE = 8
"""Batch size without an accelerator, or of a model whose memory is not known."""
_CACHE_SLACK = 1.25
"""Longest static cache that is reused, relative to the length needed; a new one takes a compilation."""
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


class BatchEngine:
    """Runs batches of prompts; one that does not fit in memory is halved, and so are later ones."""

    name: str
    options: EngineOptions
    device: torch.device
    _batch_share = 1.0  # of the planned batch size; smaller after a batch did not fit
    _static_cache: StaticCache | None = None

    def close(self) -> None:
        """Do nothing: Python frees the model."""

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
    """An engine that prefills prompts in chunks, which needs little memory, and continues from that cache."""

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
        """Make an engine of a model in memory, on its device and in its type."""
        engine = cls.__new__(cls)
        engine._set_model(model, processor, options, "model")
        return engine

    def _set_model(self, model: Any, processor: Any, options: EngineOptions, name: str) -> None:
        self.model, self.processor, self.options, self.name = model.eval(), processor, options, name
        self.device: torch.device = model.device
        self.grammar = Grammar(processor.tokenizer, model.generation_config.eos_token_id)
        self._constraints = Constraints(self.grammar, model.config.image_token_index)
        self.language_model: Any = _language_model(self.model)
        self._window = context_window(self.model.config.text_config)
        # A static cache is allocated once, instead of copied for every token. Computed for 7B parameters and 32
        # sequences of 3,300 tokens on an H100: a step reads 13.5 GB of weights and 55 GB of keys and values (21 ms at
        # 3.35 TB/s); a dynamic cache also reads and writes the latter once more (54 ms). On a CPU both took the same
        # time (33 drafts of the shipped checkpoint, 16.3 to 17.1 s).
        self._is_static = options.cache == "static" or (options.cache == "auto" and self.device.type == "cuda")
        self._static_shape = (0, 0)
        self._is_compiled = True

    @torch.inference_mode()
    def generate(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Response | FailedRequest]]:
        """Yield the index and the response of every request, the longest prompts first."""
        prompts: list[Prompt] = []
        for index, request in enumerate(requests):
            ids: list[int] = self.processor.encode_example(request.example)
            fitting = fit_window(request, len(ids), self._window)
            if isinstance(fitting, FailedRequest):
                yield index, fitting
            else:
                prompts.append(Prompt(index, fitting, array("i", ids)))
        self._is_compiled = self.options.cache == "static" or len(prompts) >= _COMPILED_FROM
        prompts.sort(key=lambda prompt: (prompt.kind, len(prompt.ids)), reverse=True)
        images = [prompt.request.example.images for prompt in prompts]
        with ImageFeatures(
            lambda pixels: self.model.encode_patches(pixels.to(self.device)),
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

    def _generate(
        self, prompts: Sequence[Prompt], images: Mapping[Path, Tensor | InputError]
    ) -> list[Response | FailedRequest]:
        """Return the responses to readable requests of one kind, without their time."""
        requests = [prompt.request for prompt in prompts]
        limit, form, tokenizer = requests[0].max_new_tokens, requests[0].form, self.processor.tokenizer
        ends = set(self.grammar.ends)
        if form == "boxes":
            ends.add(self.grammar.ids[OBJECT_END])
        used_form = None if self.options.free else form
        responses = [OpenResponse(self.grammar, used_form, limit, request.sampling) for request in requests]
        constraints = BatchConstraints(self._constraints, responses)
        padded = self.processor.pad([prompt.ids for prompt in prompts])
        prompt, mask = (tensor.to(self.device) for tensor in padded.values())
        patches = [images[image] for request in requests for image in request.example.images]
        ids = self.language_model.generate(
            prompt,
            attention_mask=mask,
            past_key_values=self._prefill(prompt, mask, patches, limit),
            max_new_tokens=limit,
            disable_compile=not self._is_compiled,
            do_sample=False,
            eos_token_id=sorted(ends),
            pad_token_id=tokenizer.pad_token_id,
            # In place of those of the checkpoint, which vLLM does not read.
            suppress_tokens=[self.model.config.image_token_index],
            logits_processor=LogitsProcessorList([constraints]),
        )[:, prompt.shape[1] :].tolist()
        return list(read_rows(ids, ends, constraints, partial(tokenizer.decode, skip_special_tokens=True)))

    def _prefill(self, prompt: Tensor, mask: Tensor, patches: Sequence[Any], limit: int) -> Any:
        """Return a cache of the prompts (batch, length) without their last token, with space for `limit` more."""
        rows, length = prompt.shape
        cache = self._make_cache(rows, length + limit)
        chunks = (patches[start : start + ENCODER_BATCH] for start in range(0, len(patches), ENCODER_BATCH))
        image_tokens = [self.model.project(torch.stack(list(chunk)).to(self.device)) for chunk in chunks]
        embeddings = self.model.embed(prompt, torch.cat(image_tokens) if image_tokens else None)
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


def read_rows(
    ids: Sequence[list[int]], ends: Collection[int], constraints: BatchConstraints, decode: Callable[[list[int]], str]
) -> Iterator[Response | FailedRequest]:
    """Yield the responses of the rows of generated tokens (rows, length), without their time."""
    broken = torch.as_tensor(constraints.is_broken).expand(len(ids)).tolist()
    for index, (row, is_broken) in enumerate(zip(ids, broken, strict=True)):
        end = next((place for place, token in enumerate(row) if token in ends), None)
        # Padding follows the end.
        tokens = row if end is None else row[: end + 1]
        is_cut = end is None or index in constraints.cut_rows
        yield FailedRequest(NON_FINITE) if is_broken else Response(decode(tokens).strip(), is_cut, 0.0, tuple(tokens))


def _language_model(model: Any) -> Any:
    """Return the language model as a Llama of its own, which shares all modules; it never sees an image."""
    config = copy.deepcopy(model.config.text_config)
    config.num_hidden_layers = 0
    with torch.device("meta"):
        llama: Any = LlamaForCausalLM(config)
    llama.model, llama.lm_head, llama.config = model.model.language_model, model.lm_head, model.config.text_config
    llama.generation_config = model.generation_config
    return llama.eval()


def largest_batch_size(free: int, length: int, config: Any, itemsize: int) -> int:
    """Return how many sequences of `length` tokens, prompt and response, fit in `free` bytes; at least one."""
    row, chunk = batch_bytes(length, config, itemsize)
    return max(1, int((free * _MEMORY_SHARE - chunk) / row))


def batch_bytes(length: int, config: Any, itemsize: int) -> tuple[int, int]:
    """Return the memory per row of a batch and the memory per batch, in bytes."""
    # Keys and values (those of one layer twice while it grows), embeddings, up to four float32 copies of the logits;
    # of a chunk three tensors of the MLP's width, eight of the model's width, and the attention mask.
    head = config.head_dim or config.hidden_size // config.num_attention_heads
    keys_and_values = 2 * (config.num_hidden_layers + 1) * config.num_key_value_heads * head
    row = length * (keys_and_values + config.hidden_size) * itemsize + 4 * 4 * config.vocab_size
    chunk = (3 * config.intermediate_size + 8 * config.hidden_size + length) * itemsize + length
    return row, _PREFILL_TOKENS * chunk


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
        torch.cuda.set_device(device)
    return device
