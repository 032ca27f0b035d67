"""Logits processors for transformers: grammar of reports, repetition guard, sampling, and non-finite logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from maira.generate.engine import Sampling
from maira.model.grammar import Allow, Grammar, ReportState, Vocabulary
from maira.model.parser import is_loop

_CLOSING = 7
"""The limit restricts the last tokens only: those of a box and of the end of its object."""


class GrammarMask:
    """Masks the scores of forbidden tokens; stateless, so that every engine can use it."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._forbidden = torch.empty(0)

    def __call__(
        self, scores: Tensor, states: Sequence[ReportState], left: Sequence[int]
    ) -> tuple[Tensor, Sequence[bool]]:
        """Mask scores (rows, vocabulary) of the tokens that may not come next, with the remaining tokens of each row.

        Returns the scores with -inf for forbidden tokens, and for each row whether the limit forbids the token that
        would be chosen without it.
        """
        if self._forbidden.device != scores.device or self._forbidden.shape[-1] != scores.shape[1]:
            self._forbidden = forbidden_table(self._grammar, scores.shape[1]).to(scores.device)
        choices = [state.choices(remaining) for state, remaining in zip(states, left, strict=True)]
        cut = [
            remaining < _CLOSING and self._is_cut(scores[row], state, choice)
            for row, (state, remaining, (choice, _)) in enumerate(zip(states, left, choices, strict=True))
        ]
        rows = torch.tensor([choice for choice, _ in choices], device=scores.device)
        # An allowed token with a score of -inf stays more likely than a forbidden one.
        scores = scores.clamp(min=torch.finfo(scores.dtype).min).masked_fill(self._forbidden[rows], -torch.inf)
        for row, (_, banned) in enumerate(choices):
            if banned:
                scores[row, banned] = -torch.inf
        return scores, cut

    def _is_cut(self, scores: Tensor, state: ReportState, choice: int) -> bool:
        unlimited, banned = state.choices()
        if unlimited == choice:
            return False
        unlimited_scores = scores.masked_fill(self._forbidden[unlimited], -torch.inf)
        unlimited_scores[banned] = -torch.inf
        return bool(self._forbidden[choice, unlimited_scores.argmax()])


def forbidden_table(grammar: Grammar, size: int) -> Tensor:
    """Return (rows of `Allow`, size), whether a token may not come next, for a head of `size` rows.

    A head may have more rows than the vocabulary has tokens.
    """
    allowed = np.zeros((len(grammar.allowed), size), bool)
    allowed[:, : grammar.allowed.shape[1]] = grammar.allowed
    allowed[Allow.ANYTHING] = True
    return torch.from_numpy(~allowed)


class GrammarProcessor(LogitsProcessor):
    """Restricts every row of a batch to the grammar, and closes open objects before the limit.

    Serves one call of `generate` without beams: rows must stay in their places. With `in_box`, the prompts end with a
    sentence's first `<box>` and the responses with its `</obj>`. `cut_off` tells for each row whether the limit forbade
    a token that the model would have chosen.
    """

    def __init__(self, grammar: Grammar, max_new_tokens: int, *, in_box: bool = False) -> None:
        self.grammar, self._left, self.in_box = grammar, max_new_tokens, in_box
        self._mask = GrammarMask(grammar)
        self.cut_off: list[bool] = []
        self._states: list[ReportState] = []
        self._length = 0
        self._last_tokens: list[int] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores (rows, vocabulary) with -inf for tokens that may not follow `input_ids` (rows, length)."""
        if not self._states:
            self._states = [ReportState(self.grammar, in_box=self.in_box) for _ in range(len(input_ids))]
            self.cut_off = [False] * len(input_ids)
        else:
            before = [token for token, _ in input_ids[:, -2:].tolist()]
            if input_ids.shape[1] != self._length + 1 or before != self._last_tokens:
                raise ValueError("a grammar processor serves one call of generate, without beams")
            for state, token in zip(self._states, input_ids[:, -1].tolist(), strict=True):
                state.advance(token)
        self._length, self._last_tokens = input_ids.shape[1], input_ids[:, -1].tolist()
        scores, cut = self._mask(scores, self._states, [self._left] * len(self._states))
        self.cut_off = [earlier or now for earlier, now in zip(self.cut_off, cut, strict=True)]
        self._left -= 1
        return scores


class Sampler(LogitsProcessor):
    """Samples the next token of each row and masks all others, so that greedy decoding picks it. Must come last.

    Each row has its own random numbers, one per token, so that a response does not depend on its batch. All rows have
    the same temperature; the token `suppressed` is never sampled.
    """

    def __init__(self, samplings: Sequence[Sampling], suppressed: int) -> None:
        self._temperature, self._suppressed = samplings[0].temperature, suppressed
        self._generators = [np.random.default_rng(sampling.seed) for sampling in samplings]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
        """Return scores (rows, vocabulary) with -inf for all tokens but the sampled ones."""
        scores = scores.clone()
        scores[:, self._suppressed] = -torch.inf
        temperatures = [self._temperature] * len(scores)
        drawn, _ = draw_tokens(scores, temperatures, [rng.random() for rng in self._generators])
        return torch.full_like(scores, -torch.inf).scatter(-1, drawn[:, None], 0.0)


def draw_tokens(scores: Tensor, temperatures: Sequence[float], uniforms: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Sample one token per row of scores (rows, vocabulary) by inverting the cumulative distribution; for both engines.

    Each row has a temperature and a random number in [0, 1). Returns token ids and their log-probabilities.
    """
    divisors, numbers = torch.tensor([temperatures, uniforms], dtype=torch.float64, device=scores.device)[..., None]
    # In double precision, so that the sums of a large vocabulary keep its rare tokens.
    log_probs = (scores.double() / divisors).log_softmax(-1)
    cumulative = log_probs.exp().cumsum(-1)
    # The first token whose sum exceeds the number has a probability above 0.
    drawn = torch.searchsorted(cumulative, numbers * cumulative[:, -1:], right=True).clamp(max=scores.shape[1] - 1)
    return drawn[:, 0], log_probs.gather(-1, drawn)[:, 0]


class FiniteCheck(LogitsProcessor):
    """Records the rows (`is_broken`) whose logits are NaN or infinite; it precedes those that replace such values."""

    is_broken: Tensor | bool = False

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
        """Return the scores (rows, vocabulary) unchanged."""
        self.is_broken = has_non_finite(scores) | self.is_broken
        return scores


def has_non_finite(scores: Tensor) -> Tensor:
    """Return for each row of (rows, vocabulary) whether its largest value is NaN or infinite.

    Single values of -inf are legal: they mark tokens that may not come next.
    """
    return ~scores.amax(-1).isfinite()


class NarrativeGuard(LogitsProcessor):
    """Ends a narrative that repeats a sentence for the third time; for greedy generation without beams."""

    def __init__(self, vocabulary: Vocabulary, tokenizer: Any) -> None:
        self.tokenizer, self._ends = tokenizer, list(vocabulary.ends)
        self._sentence_ends = {
            i for i, t in enumerate(vocabulary.texts) if t.rstrip().endswith((".", "!", "?")) or "\n" in t
        }
        self._prompt_length: int | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores (rows, vocabulary) with -inf for all tokens but the end in rows of `input_ids` that loop."""
        if self._prompt_length is None:
            self._prompt_length = input_ids.shape[1]
        responses = input_ids[:, self._prompt_length :].tolist()
        return torch.stack([self.constrain(ids, row) for ids, row in zip(responses, scores, strict=True)])

    def constrain(self, ids: Sequence[int], scores: Tensor) -> Tensor:
        """Return scores (vocabulary) with -inf for all tokens but the end if the response `ids` would loop on."""
        if not ids or ids[-1] not in self._sentence_ends:
            return scores
        text, continued = (
            str(self.tokenizer.decode(tokens, skip_special_tokens=True))
            for tokens in ([*ids], [*ids, int(scores.argmax())])
        )
        if not (is_loop(text, text) and is_loop(text, continued)):
            return scores
        constrained = torch.full_like(scores, -torch.inf)
        constrained[self._ends] = scores[self._ends].clamp(min=torch.finfo(scores.dtype).min)
        return constrained
