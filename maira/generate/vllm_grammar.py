"""vLLM's logits processor for MAIRA-2, in the process of the model; it can send back nothing but a token's score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from maira.generate.constraints import Constraints, OpenResponse
from maira.generate.engine import Sampling
from maira.model.grammar import Grammar
from maira.model.tokens import IMAGE

FORM = "maira_form"
"""Extra argument of the sampling parameters with the form of the response; None for an unconstrained one."""
SAMPLING = "maira_sampling"
"""Extra argument with the fields of `Sampling`: vLLM's own sampling would change the marks `CUT` and `BROKEN`."""
CUT = 1e9
"""Score of a token that was chosen because the limit forbids a more likely one; larger than any logit of a model."""
BROKEN = 2.0**40
"""Score of the end token that ends a response whose logits are NaN or infinite; exact in single precision."""


class MairaLogitsProcessor(LogitsProcessor):
    """Constrains the logits of running requests; the model is a folder of `maira.generate.vllm_parts`."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:  # noqa: ARG002
        folder = Path(vllm_config.model_config.model)
        self.tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
        self._grammar = Grammar(self.tokenizer, GenerationConfig.from_pretrained(folder).eos_token_id)
        self._constraints = Constraints(self._grammar, self.tokenizer.convert_tokens_to_ids(IMAGE))
        self._responses: dict[int, OpenResponse] = {}

    def is_argmax_invariant(self) -> bool:
        """Return False: the most likely token may be forbidden."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow requests that enter, leave or move within the batch."""
        process_dict_updates(self._responses, batch_update, self._begin)

    def _begin(self, params: Any, _: list[int] | None, ids: list[int]) -> OpenResponse:
        extra = params.extra_args or {}
        sampling = None if (values := extra.get(SAMPLING)) is None else Sampling(*values)
        # vLLM's own list of output tokens, which grows.
        return OpenResponse(self._grammar, extra.get(FORM), params.max_tokens, sampling, ids)

    def apply(self, logits: Tensor) -> Tensor:
        """Set the logits (requests, vocabulary) of forbidden tokens to -inf, in place, and end broken responses."""
        broken, cut = self._constraints(logits, self._responses)
        for row in cut:
            logits[row, logits[row].argmax()] = CUT
        logits[broken] = -torch.inf
        logits[broken, min(self._grammar.ends)] = BROKEN
        return logits
