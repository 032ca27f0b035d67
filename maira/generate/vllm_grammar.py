"""What keeps vLLM's answers in form: the grammar, the end of loops, and no image placeholder.

vLLM makes the processor in the process that runs the model, so everything it needs comes from the model's folder and
the parameters of a request, and the only thing that it can say goes back with a token: its score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from maira.generate.constraints import GrammarMask, NarrativeGuard
from maira.generate.engine import Form
from maira.model.grammar import Grammar, ReportState, Vocabulary
from maira.model.tokens import IMAGE

FORM = "maira_form"
"""Name of a request's form among the extra arguments of its sampling parameters; None for a free answer."""
CUT = 1e9
"""Score of a token that was chosen because the limit forbids the one that would come next; no model gives as much."""


@dataclass(slots=True)
class _Sequence:
    """A request that is being answered; `said` is vLLM's own list, which grows."""

    form: Form | None
    limit: int
    said: Sequence[int]
    state: ReportState | None
    taken: int = 0

    def advance(self) -> None:
        """Bring the grammar's state to the end of what is said."""
        if self.state is not None:
            for token in self.said[self.taken :]:
                self.state.advance(token)
            self.taken = len(self.said)


class MairaLogitsProcessor(LogitsProcessor):
    """vLLM's processor of logits for answers of MAIRA-2.

    Args:
        vllm_config: of the engine; its model is a folder of `maira.generate.plain_llama`.
        device: of the logits; the tables of the grammar follow the logits themselves.
        is_pin_memory: unused.
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:  # noqa: ARG002
        folder = Path(vllm_config.model_config.model)
        tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
        vocabulary = Vocabulary.from_tokenizer(tokenizer, GenerationConfig.from_pretrained(folder).eos_token_id)
        self._grammar = Grammar(vocabulary)
        self._mask = GrammarMask(self._grammar)
        self._guard = NarrativeGuard(vocabulary, tokenizer)
        self._image = tokenizer.convert_tokens_to_ids(IMAGE)
        self._sequences: dict[int, _Sequence] = {}

    def is_argmax_invariant(self) -> bool:
        """It is not: what greedy search would take may be forbidden."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow the requests that come, go and change places in the batch."""
        process_dict_updates(self._sequences, batch_update, self._begin)

    def _begin(self, params: Any, _: list[int] | None, said: list[int]) -> _Sequence:
        form: Form | None = (params.extra_args or {}).get(FORM)
        guided = form in ("report", "boxes")
        state = self._grammar.start(in_box=form == "boxes") if guided else None
        return _Sequence(form, params.max_tokens, said, state)

    def apply(self, logits: Tensor) -> Tensor:
        """Logits (requests, vocabulary) with -inf for what may not come next, in place.

        What is said so far is read here and not in `update_state`: vLLM may hold the last tokens back until now.
        """
        logits[:, self._image] = -torch.inf
        guided = [index for index, sequence in self._sequences.items() if sequence.state is not None]
        if guided:
            self._constrain(logits, guided)
        for index, sequence in self._sequences.items():
            if sequence.form == "narrative":
                logits[index] = self._guard.guarded(sequence.said, logits[index])
        return logits

    def _constrain(self, logits: Tensor, guided: list[int]) -> None:
        states, left = [], []
        for index in guided:
            sequence = self._sequences[index]
            sequence.advance()
            assert sequence.state is not None
            states.append(sequence.state)
            left.append(max(sequence.limit - len(sequence.said), 1))
        logits[guided], cut = self._mask(logits[guided], states, left)
        for index, is_cut in zip(guided, cut, strict=True):
            if is_cut:
                logits[index, logits[index].argmax()] = CUT
