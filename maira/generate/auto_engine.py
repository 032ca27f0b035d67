"""Generation with any image-text-to-text model of transformers that has a chat template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LogitsProcessorList

from maira.generate.constraints import BatchConstraints, OpenResponse, TokenChoice
from maira.generate.engine import NON_FINITE, EngineOptions, FailedRequest, GenerationRequest, Response, read_chat
from maira.generate.features import read_image
from maira.generate.transformers_engine import BatchEngine, Prompt, Responses, select_device
from maira.model.checkpoint import checkpoint_name
from maira.model.config import context_window
from maira.model.grammar import end_ids
from maira.model.other_models import load_other_model, merge_system
from maira.model.prompts import Messages
from maira.model.tokens import BOX, BOX_END, IMAGE, OBJECT, OBJECT_END
from radfact.errors import InputError


class AutoEngine(BatchEngine):
    """An engine whose model sees whole images, and writes what it is asked for without a grammar."""

    def __init__(self, checkpoint: Path, options: EngineOptions) -> None:
        self.options, self.device, self.name = options, select_device(options.device), checkpoint_name(checkpoint)
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        model, self.processor, self._merges_system = load_other_model(checkpoint, dtype)
        self.model, self.tokenizer = model.to(self.device).eval(), self.processor.tokenizer
        self.tokenizer.padding_side = "left"
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self._ends = end_ids(self.tokenizer, model.generation_config.eos_token_id)
        self._choice = TokenChoice(getattr(model.config, "image_token_id", None))
        self._window = context_window(model.config.get_text_config())
        # Some models have our tags as control tokens, which are text here.
        special = {token.content: i for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        self._control = {token: i for token, i in special.items() if token not in (OBJECT, OBJECT_END, BOX, BOX_END)}

    @torch.inference_mode()
    def generate(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Any]]:
        prompts = [Prompt(index, request) for index, request in enumerate(requests)]
        prompts.sort(key=lambda prompt: (prompt.kind, prompt.request.length_key), reverse=True)
        for index, response in self._run(prompts, self._answer):
            yield index, read_chat(response, requests[index].example)

    def _answer(self, prompts: Sequence[Prompt], _: Any) -> Responses:
        responses: Responses = {}
        readable: list[tuple[Prompt, Messages, int]] = []
        for prompt in prompts:
            try:
                conversation = self._conversation(prompt.request)
                length = self._encode([conversation])["input_ids"].shape[1]
                fitting = prompt.request.fit_window(length, self._window)
            except Exception as error:  # a processor may raise anything, for example for an image of unusual shape
                fitting = FailedRequest(" ".join(str(error).split()) or type(error).__name__)
            if isinstance(fitting, FailedRequest):
                responses[prompt.index] = fitting
            else:
                readable.append((prompt, conversation, fitting.max_new_tokens))
        if not readable:
            return responses
        sampled = [OpenResponse(None, None, limit, prompt.request.sampling) for prompt, _, limit in readable]
        constraints = BatchConstraints(self._choice, sampled)
        inputs = self._encode([conversation for _, conversation, _ in readable]).to(self.device, self.model.dtype)
        ids = self.model.generate(
            **inputs,
            max_new_tokens=max(limit for _, _, limit in readable),
            do_sample=False,
            num_beams=1,
            eos_token_id=sorted(self._ends),
            pad_token_id=self.tokenizer.pad_token_id,
            logits_processor=LogitsProcessorList([constraints]),
        )[:, inputs["input_ids"].shape[1] :].tolist()
        broken = torch.as_tensor(constraints.is_broken).tolist()
        for (prompt, _, limit), row, is_broken in zip(readable, ids, broken, strict=True):
            end = next((place for place, token in enumerate(row[:limit]) if token in self._ends), None)
            tokens: list[int] = row[:limit] if end is None else row[: end + 1]  # padding follows the end
            response = Response(self._decode(tokens).strip(), end is None, 0.0, tuple(tokens))
            responses[prompt.index] = FailedRequest(NON_FINITE) if is_broken else response
        return responses

    def _conversation(self, request: GenerationRequest) -> Messages:
        text = request.example.text.replace(IMAGE, "")
        if token := next((token for token in self._control if token in text), None):
            raise InputError(f"sample '{request.example.sample_id}': a section contains the control token {token}")
        images = iter([read_image(path, self.options.image_check).convert("RGB") for path in request.example.images])

        def show(item: dict[str, Any]) -> dict[str, Any]:
            return item | {"image": next(images)} if item["type"] == "image" else item

        messages = tuple(m | {"content": [*map(show, m["content"])]} for m in request.example.messages)
        return merge_system(messages) if self._merges_system else messages

    def _encode(self, conversations: Sequence[Messages]) -> Any:
        options = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
        rows = [*map(list, conversations)]
        return self.processor.apply_chat_template(rows, processor_kwargs={"padding": True}, **options)

    def _decode(self, ids: list[int]) -> str:
        control = {*self._control.values(), *self._ends}
        return str(self.tokenizer.decode([token for token in ids if token not in control]))
