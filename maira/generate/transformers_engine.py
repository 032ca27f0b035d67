"""Greedy generation with transformers, in batches of requests of like length."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import Filter, LogRecord, getLogger
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, LogitsProcessorList, StaticCache

from maira.generate.constraints import GrammarProcessor, NarrativeGuard
from maira.generate.engine import FailedRequest, GenerationRequest, Response, limit_to_window, prompt_error
from maira.generate.features import ENCODED_AT_ONCE, ImageFeatures
from maira.generate.options import EngineOptions
from maira.model.checkpoint import fingerprint
from maira.model.config import context_window
from maira.model.grammar import Grammar, Vocabulary
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor, pad
from maira.model.tokens import OBJECT_END
from radfact.errors import InputError

_PREFILL_TOKENS = 16_384
"""Tokens of a batch, over all of its rows, that pass the language model together while prompts are read."""
_SPARE = 0.9
"""Share of the free memory that is counted on; the rest is for what allocators and kernels take."""
_BATCH = 8
"""Requests at a time where there is no accelerator whose memory decides."""
_LOOSE = 1.25
"""How much longer than needed a static cache may be and still be used again, which saves compiling for it."""
_OUT_OF_MEMORY = "does not fit in memory, even alone (out of memory)"


class TransformersEngine:
    """A checkpoint that answers by transformers' own `generate`.

    Prompts are read in stretches of a bounded number of tokens, so that a large batch needs little memory beside its
    cache; `generate` goes on from that cache with text alone. A batch that does not fit in memory is halved, and so are
    those after it.

    Args:
        checkpoint: folder with the model and its processor.
        options: see there.

    Raises:
        InputError: the folder is no checkpoint of ours, its tokenizer lacks the format's tokens, or there is no such
            device.
    """

    def __init__(self, checkpoint: Path, options: EngineOptions) -> None:
        device = _device(options.device)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        model: Any = MairaForConditionalGeneration.from_pretrained(checkpoint, dtype=dtype)
        name = f"{checkpoint.resolve().name}@{fingerprint(checkpoint)}"
        self._hold(model.to(device), MairaProcessor.from_pretrained(checkpoint), options, name)

    @classmethod
    def from_model(
        cls, model: MairaForConditionalGeneration, processor: Any, options: EngineOptions
    ) -> TransformersEngine:
        """An engine with a model that is in memory already, on the device where it lies and in its type."""
        engine = cls.__new__(cls)
        engine._hold(model, processor, options, "model")
        return engine

    def _hold(self, model: Any, processor: Any, options: EngineOptions, name: str) -> None:
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
        self._share = 1.0  # of the batch that should fit, after some did not
        self._static: StaticCache | None = None
        self._static_shape = (0, 0)

    @torch.inference_mode()
    def generate(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Response | FailedRequest]]:
        """Each request's answer, the longest prompts first.

        A request whose image cannot be read, or whose prompt leaves no room for an answer, has none.
        """
        lengths = [self._prompt_length(request) for request in requests]
        requests = [
            limit_to_window(request, length, self._window) for request, length in zip(requests, lengths, strict=True)
        ]
        order = []
        for index, length in enumerate(lengths):
            if fault := prompt_error(length, self._window):
                yield index, fault
            else:
                order.append(index)
        yield from self._in_batches(requests, lengths, order)

    def _in_batches(
        self, requests: Sequence[GenerationRequest], lengths: Sequence[int], order: Sequence[int]
    ) -> Iterator[tuple[int, Response | FailedRequest]]:
        kinds = [(request.form, request.max_new_tokens) for request in requests]
        order = sorted(order, key=lambda index: (kinds[index], lengths[index]), reverse=True)
        shown = [requests[index].example.images for index in order]
        with ImageFeatures(self.model.vision_tower, self.processor.image_processor, shown) as features:
            place = 0
            while place < len(order):
                longest = lengths[order[place]] + requests[order[place]].max_new_tokens
                fitting = self._rows(longest)
                batch = order[place : place + max(1, int(fitting * self._share))]
                batch = [index for index in batch if kinds[index] == kinds[batch[0]]]
                stop = place + len(batch)
                answers = self._answer([requests[index] for index in batch], features, place, stop)
                if answers is None:
                    self._give_back()
                    if len(batch) > 1:
                        self._share = (len(batch) // 2) / fitting
                        continue
                    # What a request needs that does not even fit alone says nothing about the others.
                    answers, self._share = [FailedRequest(_OUT_OF_MEMORY)], 1.0
                yield from zip(batch, answers, strict=True)
                place = stop

    def close(self) -> None:
        """Nothing is held that Python does not give back."""

    def _prompt_length(self, request: GenerationRequest) -> int:
        return len(self.processor.encode_prompt(request.example.prompt, len(request.example.images)))

    def _rows(self, length: int) -> int:
        """Most requests at a time, the longest of them of so many tokens with its answer."""
        if self.options.batch_size is not None:
            return self.options.batch_size
        if self.device.type != "cuda":
            return _BATCH
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        free = torch.cuda.mem_get_info(self.device)[0] + unused
        if self._static is not None:
            free += sum(layer.keys.nbytes + layer.values.nbytes for layer in self._static.layers)
        return rows_that_fit(free, length, self.model.config.text_config, self.model.dtype.itemsize)

    def _answer(
        self, requests: Sequence[GenerationRequest], features: ImageFeatures, first: int, stop: int
    ) -> list[Response | FailedRequest] | None:
        """Answers to a batch, or None if there is not enough memory for it."""
        started = time.perf_counter()
        try:
            images = features.encode(first, stop)
            faults = [_fault(request, images) for request in requests]
            sound = [request for request, fault in zip(requests, faults, strict=True) if fault is None]
            written = iter(self._generate(sound, images) if sound else [])
        except torch.OutOfMemoryError:
            return None
        share = (time.perf_counter() - started) / max(1, len(sound))
        return [fault or Response(*next(written), share) for fault in faults]

    def _give_back(self) -> None:
        self._static = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _generate(
        self, requests: Sequence[GenerationRequest], images: Mapping[Path, Tensor | InputError]
    ) -> list[tuple[str, bool]]:
        """For each request the text, and whether the limit of tokens decided where it ends."""
        limit, form, tokenizer = requests[0].max_new_tokens, requests[0].form, self.processor.tokenizer
        ends = set(self.vocabulary.ends)
        if form == "boxes":
            ends.add(self.vocabulary.ids[OBJECT_END])
        grammar, constraints = None, []
        if not self.options.free and form == "narrative":
            constraints = [NarrativeGuard(self.vocabulary, tokenizer)]
        elif not self.options.free:
            constraints = [grammar := GrammarProcessor(self.grammar, limit, in_box=form == "boxes")]
        examples = [request.example for request in requests]
        rows = [self.processor.encode_prompt(example.prompt, len(example.images)) for example in examples]
        prompt, mask = (tensor.to(self.device) for tensor in pad(rows, tokenizer.pad_token_id, left=True))
        tokens = self._image_tokens([images[image] for example in examples for image in example.images])
        with _without_length_warning():
            written = self.language_model.generate(
                prompt,
                attention_mask=mask,
                past_key_values=self._prefilled(prompt, mask, tokens, limit),
                max_new_tokens=limit,
                do_sample=False,
                eos_token_id=sorted(ends),
                pad_token_id=tokenizer.pad_token_id,
                suppress_tokens=[self.model.config.image_token_index],
                logits_processor=LogitsProcessorList(constraints),
            )[:, prompt.shape[1] :]
        cut_off = [ends.isdisjoint(row) for row in written.tolist()]
        if grammar is not None:
            cut_off = [cut or limited for cut, limited in zip(cut_off, grammar.cut_off, strict=True)]
        texts = tokenizer.batch_decode(written, skip_special_tokens=True)
        return [(text.strip(), cut) for text, cut in zip(texts, cut_off, strict=True)]

    def _image_tokens(self, images: Sequence[Any]) -> Tensor | None:
        """What the adapter makes of encoded images, (images, image_seq_length, width)."""
        if not images:
            return None
        stretches = (images[start : start + ENCODED_AT_ONCE] for start in range(0, len(images), ENCODED_AT_ONCE))
        return torch.cat([self.model.project(torch.stack(list(stretch)).to(self.device)) for stretch in stretches])

    def _prefilled(self, prompt: Tensor, mask: Tensor, image_tokens: Tensor | None, limit: int) -> Any:
        """The cache of a batch with all of the prompt but its last token, which `generate` reads itself."""
        rows, length = prompt.shape
        cache = self._cache(rows, length + limit)
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

    def _cache(self, rows: int, length: int) -> Any:
        config = self.model.config.text_config
        if self.options.cache == "dynamic":
            return DynamicCache(config=config)
        held_rows, held_length = self._static_shape
        if self._static is None or held_rows != rows or not length <= held_length <= _LOOSE * length:
            self._static = None  # before there is another, for the memory
            self._static, self._static_shape = StaticCache(config=config, max_cache_len=length), (rows, length)
        self._static.reset()
        return self._static


def rows_that_fit(free: int, length: int, config: Any, itemsize: int) -> int:
    """How many sequences can be generated together, at least one.

    A row keeps keys and values of all of its tokens, one layer's twice while that layer's grow, the embeddings of its
    prompt, and its scores, of which there are up to four copies in float32. Whatever the rows, a stretch of
    `_PREFILL_TOKENS` passes the layers: three tensors as wide as the MLP, eight as wide as the model, and the
    attention's mask.

    Args:
        free: bytes.
        length: of the longest row, prompt and answer, in tokens.
        config: of the language model.
        itemsize: bytes of a number of its weights.
    """
    head = config.head_dim or config.hidden_size // config.num_attention_heads
    keys_and_values = 2 * (config.num_hidden_layers + 1) * config.num_key_value_heads * head
    row = length * (keys_and_values + config.hidden_size) * itemsize + 4 * 4 * config.vocab_size
    stretch = (3 * config.intermediate_size + 8 * config.hidden_size + length) * itemsize + length
    return max(1, int((free * _SPARE - _PREFILL_TOKENS * stretch) / row))


@contextmanager
def _without_length_warning() -> Iterator[None]:
    """Silence transformers' warning about the number of positions, which ignores that they are scaled."""

    class _WarningFilter(Filter):
        def filter(self, record: LogRecord) -> bool:
            return "predefined maximum length" not in record.getMessage()

    logger, warning_filter = getLogger("transformers.generation.stopping_criteria"), _WarningFilter()
    logger.addFilter(warning_filter)
    try:
        yield
    finally:
        logger.removeFilter(warning_filter)


def _device(name: str | None) -> torch.device:
    """The device of that name; without one this process's GPU, where there is one.

    Raises:
        InputError: there is no such device.
    """
    has_gpu = torch.cuda.is_available()
    if name is None and not has_gpu:
        return torch.device("cpu")
    try:
        device = torch.device(name or "cuda")
    except RuntimeError:
        raise InputError(f"no device is called '{name}'; say cpu, cuda or cuda:1", field="device") from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if has_gpu else 0
        index = device.index if device.index is not None else int(os.environ.get("LOCAL_RANK", 0)) % max(1, count)
        if index >= count:
            raise InputError(f"there is no '{name}': {count} GPUs can be used here", field="device")
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    return device


def _fault(request: GenerationRequest, images: Mapping[Path, Tensor | InputError]) -> FailedRequest | None:
    faults = (images[image] for image in request.example.images)
    return next((FailedRequest(str(fault)) for fault in faults if isinstance(fault, InputError)), None)
