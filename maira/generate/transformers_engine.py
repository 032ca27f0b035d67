"""Greedy generation with transformers, in batches of requests of like length."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from transformers import LogitsProcessorList

from maira.generate.answers import fingerprint
from maira.generate.constraints import GrammarProcessor, NarrativeGuard
from maira.generate.request import Answer, EngineOptions, Form, Request, Unanswered
from maira.grammar import Grammar, Vocabulary
from maira.model import MairaForConditionalGeneration
from maira.processor import MairaProcessor
from maira.tokens import OBJECT_END
from radfact.errors import InputError

_BATCH = 8


class TransformersEngine:
    """A checkpoint that answers by transformers' own `generate`.

    Args:
        checkpoint: folder with the model and its processor.
        options: see there.

    Raises:
        InputError: the folder is no checkpoint of ours, or its tokenizer lacks the format's tokens.
    """

    def __init__(self, checkpoint: Path, options: EngineOptions) -> None:
        self.name = f"{checkpoint.resolve().name}@{fingerprint(checkpoint)}"
        self.device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.model: Any = MairaForConditionalGeneration.from_pretrained(checkpoint, dtype=dtype).to(self.device).eval()
        self.processor: Any = MairaProcessor.from_pretrained(checkpoint)
        self.options = options
        ends = self.model.generation_config.eos_token_id or []
        self.vocabulary = Vocabulary.of(self.processor.tokenizer, ends if isinstance(ends, list) else [ends])
        self.grammar = Grammar(self.vocabulary)

    def answers(self, requests: Sequence[Request]) -> Iterator[tuple[int, Answer | Unanswered]]:
        """Each request's answer, the longest first, so that a run that does not fit in memory fails at once."""

        def place(index: int) -> tuple[Form, int, int, int]:
            request = requests[index]
            return request.form, request.max_new_tokens, len(request.example.images), len(request.example.prompt)

        ordered = sorted(range(len(requests)), key=place, reverse=True)
        size = self.options.batch_size or _BATCH
        for _, group in groupby(ordered, lambda index: place(index)[:2]):
            alike = list(group)
            for start in range(0, len(alike), size):
                batch = alike[start : start + size]
                yield from zip(batch, self._answer([requests[i] for i in batch]), strict=True)

    def close(self) -> None:
        """Nothing is held that Python does not give back."""

    def _answer(self, requests: Sequence[Request]) -> list[Answer | Unanswered]:
        """Answers to a batch; where one image cannot be read, the others are answered one by one."""
        started = time.perf_counter()
        try:
            written = self._generate(requests)
        except InputError as error:
            if len(requests) == 1:
                return [Unanswered(str(error))]
            return [answer for request in requests for answer in self._answer([request])]
        share = (time.perf_counter() - started) / len(requests)
        return [Answer(text, cut_off, share) for text, cut_off in written]

    @torch.inference_mode()
    def _generate(self, requests: Sequence[Request]) -> list[tuple[str, bool]]:
        limit, form = requests[0].max_new_tokens, requests[0].form
        examples = [request.example for request in requests]
        inputs = self.processor([e.images for e in examples], [e.prompt for e in examples]).to(self.device)
        tokenizer = self.processor.tokenizer
        ends = set(self.vocabulary.ends)
        if form == "boxes":
            ends.add(self.vocabulary.ids[OBJECT_END])
        grammar, constraints = None, []
        if not self.options.free and form == "narrative":
            constraints = [NarrativeGuard(self.vocabulary, tokenizer)]
        elif not self.options.free:
            constraints = [grammar := GrammarProcessor(self.grammar, limit, in_box=form == "boxes")]
        ids = self.model.generate(
            **inputs,
            max_new_tokens=limit,
            do_sample=False,
            eos_token_id=sorted(ends),
            logits_processor=LogitsProcessorList(constraints),
        )
        ids = ids[:, inputs["input_ids"].shape[1] :]
        cut_off = [ends.isdisjoint(row) for row in ids.tolist()]
        if grammar is not None:
            cut_off = [cut or limited for cut, limited in zip(cut_off, grammar.cut_off, strict=True)]
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [(text.strip(), cut) for text, cut in zip(texts, cut_off, strict=True)]
