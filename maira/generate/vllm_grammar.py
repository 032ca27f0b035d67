"""vLLM's logits processor for MAIRA-2: grammar, repetition guard, sampling, and suppressed image placeholder.

vLLM creates the processor in the process that runs the model. It takes its data from the model's folder and from the
parameters of a request, and can send back nothing but the score of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from maira.generate.constraints import GrammarMask, NarrativeGuard, draw_tokens, has_non_finite
from maira.generate.engine import Form, Sampling
from maira.model.grammar import Grammar, ReportState, Vocabulary
from maira.model.tokens import IMAGE

FORM = "maira_form"
"""Extra argument of the sampling parameters with the form of the response; None for an unconstrained one."""
SAMPLING = "maira_sampling"
"""Extra argument of the sampling parameters with the fields of `Sampling`; None for greedy decoding.

The processor samples with the same random numbers as the transformers engine. It sets the logit of the sampled token to
its log-probability and all others to -inf. Sampling by vLLM would change the marks `CUT` and `BROKEN`.
"""
CUT = 1e9
"""Score of a token that was chosen because the limit forbids a more likely one; larger than any logit of a model."""
BROKEN = 2.0**40
"""Score of the end token that ends a response whose logits are NaN or infinite; exact in single precision."""


@dataclass
class _Sequence:
    """A running request; `ids` is vLLM's own list of output tokens, which grows."""

    form: Form | None
    limit: int
    ids: Sequence[int]
    state: ReportState | None
    sampling: Sampling | None
    position: int = 0

    def __post_init__(self) -> None:
        self._rng = None if self.sampling is None else np.random.default_rng(self.sampling.seed)
        self._uniforms: list[float] = []

    def uniform(self) -> float:
        """Return the random number of the next token; the same one if vLLM discards the token and repeats the step."""
        assert self._rng is not None
        missing = len(self.ids) + 1 - len(self._uniforms)
        self._uniforms += self._rng.random(max(missing, 0)).tolist()
        return self._uniforms[len(self.ids)]

    def advance(self) -> None:
        """Advance the grammar's state to the last output token."""
        if self.state is not None:
            for token in self.ids[self.position :]:
                self.state.advance(token)
            self.position = len(self.ids)


class MairaLogitsProcessor(LogitsProcessor):
    """Constrains the logits of running requests; the model is a folder of `maira.generate.plain_llama`."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:  # noqa: ARG002
        folder = Path(vllm_config.model_config.model)
        tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
        vocabulary = Vocabulary.from_tokenizer(tokenizer, GenerationConfig.from_pretrained(folder).eos_token_id)
        self._grammar = Grammar(vocabulary)
        self._mask = GrammarMask(self._grammar)
        self._guard = NarrativeGuard(vocabulary, tokenizer)
        self._image = tokenizer.convert_tokens_to_ids(IMAGE)
        self._end = min(vocabulary.ends)
        self._sequences: dict[int, _Sequence] = {}

    def is_argmax_invariant(self) -> bool:
        """Return False: the most likely token may be forbidden."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow requests that enter, leave or move within the batch."""
        process_dict_updates(self._sequences, batch_update, self._begin)

    def _begin(self, params: Any, _: list[int] | None, ids: list[int]) -> _Sequence:
        extra = params.extra_args or {}
        form: Form | None = extra.get(FORM)
        guided = form in ("report", "boxes")
        state = ReportState(self._grammar, in_box=form == "boxes") if guided else None
        values = extra.get(SAMPLING)
        return _Sequence(form, params.max_tokens, ids, state, None if values is None else Sampling(*values))

    def apply(self, logits: Tensor) -> Tensor:
        """Set the logits (requests, vocabulary) of forbidden tokens to -inf, in place, and end broken responses.

        Output tokens are read here and not in `update_state`, before which vLLM may hold the last ones back.
        """
        logits[:, self._image] = -torch.inf
        broken = has_non_finite(logits)
        cut = self._constrain(logits)
        for index, sequence in self._sequences.items():
            if sequence.form == "narrative" and sequence.sampling is None:
                logits[index] = self._guard.constrain(sequence.ids, logits[index])
        self._sample(logits)
        for index in cut:
            logits[index, logits[index].argmax()] = CUT
        logits[broken] = -torch.inf
        logits[broken, self._end] = BROKEN
        return logits

    def _constrain(self, logits: Tensor) -> list[int]:
        """Apply the grammar in place, and return the rows where the token limit forbids a more likely token."""
        guided, states, left = [], [], []
        for index, sequence in self._sequences.items():
            if sequence.state is not None:
                sequence.advance()
                guided.append(index)
                states.append(sequence.state)
                left.append(max(sequence.limit - len(sequence.ids), 1))
        if not guided:
            return []
        logits[guided], cut = self._mask(logits[guided], states, left)
        return [index for index, is_cut in zip(guided, cut, strict=True) if is_cut]

    def _sample(self, logits: Tensor) -> None:
        """Set the logits of sampled tokens to their log-probabilities and all others to -inf, in place."""
        sampled = {index: seq for index, seq in self._sequences.items() if seq.sampling is not None}
        if not sampled:
            return
        rows = list(sampled)
        temperatures = [seq.sampling.temperature for seq in sampled.values() if seq.sampling is not None]
        drawn, log_probs = draw_tokens(logits[rows], temperatures, [seq.uniform() for seq in sampled.values()])
        logits[rows] = -torch.inf
        logits[rows, drawn] = log_probs.to(logits.dtype)
