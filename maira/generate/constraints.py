"""What keeps generation with transformers in form: the grammar of grounded reports, and an end to loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from maira.model.grammar import Allow, Grammar, ReportState, Vocabulary
from maira.model.repetition import is_loop

_CLOSING = 7
"""Tokens before the limit from which on it decides what may follow (a box, and the end of its object)."""


class GrammarMask:
    """What a grammar forbids, as scores; holds no sequence, so that every engine can use it.

    Args:
        grammar: the tables.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self._forbidden = torch.empty(0)

    def __call__(
        self, scores: Tensor, states: Sequence[ReportState], left: Sequence[int]
    ) -> tuple[Tensor, Sequence[bool]]:
        """Take out what may not come next.

        Args:
            scores: (rows, vocabulary) of the next tokens.
            states: of the rows' sequences.
            left: tokens that each may still write.

        Returns:
            The scores with -inf for what is forbidden, and for each row whether the limit forbids the token that would
            come next without it.
        """
        forbidden = self._table(scores)
        chosen = [state.choices(room) for state, room in zip(states, left, strict=True)]
        cut = [
            room < _CLOSING and self._is_cut(scores[row], state, choice)
            for row, (state, room, (choice, _)) in enumerate(zip(states, left, chosen, strict=True))
        ]
        rows = torch.tensor([choice for choice, _ in chosen], device=scores.device)
        # A score that is already -inf must not make what is allowed as unlikely as what is not.
        scores = scores.clamp(min=torch.finfo(scores.dtype).min).masked_fill(forbidden[rows], -torch.inf)
        for row, (_, banned) in enumerate(chosen):
            if banned:
                scores[row, banned] = -torch.inf
        return scores, cut

    def _table(self, scores: Tensor) -> Tensor:
        """(rows of `Allow`, vocabulary) where the scores are."""
        if self._forbidden.device != scores.device or self._forbidden.shape[-1] != scores.shape[1]:
            # A head may have more rows than the vocabulary has tokens.
            allowed = np.zeros((len(self.grammar.allowed), scores.shape[1]), bool)
            allowed[:, : self.grammar.allowed.shape[1]] = self.grammar.allowed
            allowed[Allow.ANYTHING] = True
            self._forbidden = torch.from_numpy(~allowed).to(scores.device)
        return self._forbidden

    def _is_cut(self, scores: Tensor, state: ReportState, choice: int) -> bool:
        wanted, banned = state.choices()
        if wanted == choice:
            return False
        free = scores.masked_fill(self._forbidden[wanted], -torch.inf)
        free[banned] = -torch.inf
        return bool(self._forbidden[choice, free.argmax()])


class GrammarProcessor(LogitsProcessor):
    """Lets every row of a batch write nothing but what the grammar allows, and close what is open before the limit.

    Made for one call of `generate` without beams: rows must stay in their places.

    Args:
        grammar: the tables.
        max_new_tokens: limit of that call.
        in_box: the prompts end with a sentence's first `<box>`, the answers with its `</obj>`.

    Attributes:
        cut_off: for each row, whether the limit kept the model from what it would have written.
    """

    def __init__(self, grammar: Grammar, max_new_tokens: int, *, in_box: bool = False) -> None:
        self.grammar, self.left, self.in_box = grammar, max_new_tokens, in_box
        self.cut_off: list[bool] = []
        self._mask = GrammarMask(grammar)
        self._states: list[ReportState] = []
        self._length = 0
        self._before: list[int] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (rows, vocabulary) with -inf for what may not follow `input_ids` (rows, length).

        Raises:
            ValueError: this is not the next step of the same call, or rows have changed places.
        """
        if self._states:
            self._advance(input_ids)
        else:
            self._begin(input_ids)
        scores, cut = self._mask(scores, self._states, [self.left] * len(self._states))
        self.cut_off = [before or now for before, now in zip(self.cut_off, cut, strict=True)]
        self.left -= 1
        return scores

    def _begin(self, input_ids: Tensor) -> None:
        self._states = [self.grammar.start(in_box=self.in_box) for _ in range(len(input_ids))]
        self.cut_off = [False] * len(input_ids)
        self._length, self._before = input_ids.shape[1], input_ids[:, -1].tolist()

    def _advance(self, input_ids: Tensor) -> None:
        self._length += 1
        pairs = input_ids[:, -2:].tolist()
        if input_ids.shape[1] != self._length or [before for before, _ in pairs] != self._before:
            raise ValueError("a grammar processor serves one call of generate, without beams")
        self._before = [token for _, token in pairs]
        for state, token in zip(self._states, self._before, strict=True):
            state.advance(token)


class NarrativeGuard(LogitsProcessor):
    """Ends a narrative that says a sentence for the third time; for greedy generation without beams.

    Args:
        vocabulary: of the model.
        tokenizer: that turns ids into text.
    """

    def __init__(self, vocabulary: Vocabulary, tokenizer: Any) -> None:
        self.vocabulary, self.tokenizer = vocabulary, tokenizer
        self._enders = {i for i, t in enumerate(vocabulary.texts) if t.rstrip().endswith((".", "!", "?")) or "\n" in t}
        self._prompt: int | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (rows, vocabulary) with -inf for all but the end in rows of `input_ids` that loop."""
        if self._prompt is None:
            self._prompt = input_ids.shape[1]
            return scores
        for row, token in enumerate(input_ids[:, -1].tolist()):
            if token in self._enders:
                scores = scores.clone()
                scores[row] = self.guarded(input_ids[row, self._prompt :].tolist(), scores[row])
        return scores

    def guarded(self, said: Sequence[int], scores: Tensor) -> Tensor:
        """Scores (vocabulary) of what follows `said`, with -inf for all but the end where a loop would go on."""
        if not said or said[-1] not in self._enders or not self._loops([*said], int(scores.argmax())):
            return scores
        ends = list(self.vocabulary.ends)
        only = torch.full_like(scores, -torch.inf)
        only[ends] = scores[ends].clamp(min=torch.finfo(scores.dtype).min)
        return only

    def _loops(self, said: list[int], following: int) -> bool:
        written = self._text(said)
        return is_loop(written, written) and is_loop(written, self._text([*said, following]))

    def _text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))
