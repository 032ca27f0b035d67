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
from maira.model.repetition import is_loop

_CLOSING = 7
"""The limit restricts the last tokens only: those of a box and of the end of its object."""


class GrammarMask:
    """Masks the scores of forbidden tokens; stateless, so that every engine can use it.

    Args:
        grammar: tables of the grammar.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self._forbidden = torch.empty(0)

    def __call__(
        self, scores: Tensor, states: Sequence[ReportState], left: Sequence[int]
    ) -> tuple[Tensor, Sequence[bool]]:
        """Mask the tokens that may not come next.

        Args:
            scores: (rows, vocabulary), scores of the next tokens.
            states: grammar states of the rows.
            left: remaining tokens of each row.

        Returns:
            The scores with -inf for forbidden tokens, and for each row whether the limit forbids the token that would
            be chosen without it.
        """
        forbidden = self._table(scores)
        choices = [state.choices(remaining) for state, remaining in zip(states, left, strict=True)]
        cut = [
            remaining < _CLOSING and self._is_cut(scores[row], state, choice)
            for row, (state, remaining, (choice, _)) in enumerate(zip(states, left, choices, strict=True))
        ]
        rows = torch.tensor([choice for choice, _ in choices], device=scores.device)
        # An allowed token with a score of -inf stays more likely than a forbidden one.
        scores = scores.clamp(min=torch.finfo(scores.dtype).min).masked_fill(forbidden[rows], -torch.inf)
        for row, (_, banned) in enumerate(choices):
            if banned:
                scores[row, banned] = -torch.inf
        return scores, cut

    def _table(self, scores: Tensor) -> Tensor:
        """Return the mask (rows of `Allow`, vocabulary) on the device of the scores."""
        if self._forbidden.device != scores.device or self._forbidden.shape[-1] != scores.shape[1]:
            self._forbidden = forbidden_table(self.grammar, scores.shape[1]).to(scores.device)
        return self._forbidden

    def _is_cut(self, scores: Tensor, state: ReportState, choice: int) -> bool:
        unlimited, banned = state.choices()
        if unlimited == choice:
            return False
        unlimited_scores = scores.masked_fill(self._forbidden[unlimited], -torch.inf)
        unlimited_scores[banned] = -torch.inf
        return bool(self._forbidden[choice, unlimited_scores.argmax()])


def forbidden_table(grammar: Grammar, size: int) -> Tensor:
    """Return (rows of `Allow`, size), whether a token may not come next.

    Args:
        grammar: tables of the grammar.
        size: rows of the head, which may have more rows than the vocabulary has tokens.
    """
    allowed = np.zeros((len(grammar.allowed), size), bool)
    allowed[:, : grammar.allowed.shape[1]] = grammar.allowed
    allowed[Allow.ANYTHING] = True
    return torch.from_numpy(~allowed)


class GrammarProcessor(LogitsProcessor):
    """Restricts every row of a batch to the grammar, and closes open objects before the limit.

    Serves one call of `generate` without beams: rows must stay in their places.

    Args:
        grammar: tables of the grammar.
        max_new_tokens: limit of that call.
        in_box: whether the prompts end with a sentence's first `<box>` and the responses with its `</obj>`.

    Attributes:
        cut_off: for each row, whether the limit forbade a token that the model would have chosen.
    """

    def __init__(self, grammar: Grammar, max_new_tokens: int, *, in_box: bool = False) -> None:
        self.grammar, self.left, self.in_box = grammar, max_new_tokens, in_box
        self.cut_off: list[bool] = []
        self._mask = GrammarMask(grammar)
        self._states: list[ReportState] = []
        self._length = 0
        self._last_tokens: list[int] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores (rows, vocabulary) with -inf for tokens that may not follow `input_ids` (rows, length).

        Raises:
            ValueError: this is not the next step of the same call, or rows have moved.
        """
        if self._states:
            self._advance(input_ids)
        else:
            self._begin(input_ids)
        scores, cut = self._mask(scores, self._states, [self.left] * len(self._states))
        self.cut_off = [earlier or now for earlier, now in zip(self.cut_off, cut, strict=True)]
        self.left -= 1
        return scores

    def _begin(self, input_ids: Tensor) -> None:
        self._states = [self.grammar.start(in_box=self.in_box) for _ in range(len(input_ids))]
        self.cut_off = [False] * len(input_ids)
        self._length, self._last_tokens = input_ids.shape[1], input_ids[:, -1].tolist()

    def _advance(self, input_ids: Tensor) -> None:
        self._length += 1
        pairs = input_ids[:, -2:].tolist()
        if input_ids.shape[1] != self._length or [token for token, _ in pairs] != self._last_tokens:
            raise ValueError("a grammar processor serves one call of generate, without beams")
        self._last_tokens = [token for _, token in pairs]
        for state, token in zip(self._states, self._last_tokens, strict=True):
            state.advance(token)


class Sampler(LogitsProcessor):
    """Samples the next token of each row and masks all others, so that greedy decoding picks it. Must come last.

    Each row has its own random numbers, one per token, so that a response does not depend on its batch.

    Args:
        samplings: sampling of each row; all have the same temperature.
        suppressed: token that is never sampled.
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
    """Sample one token per row by inverting the cumulative distribution; used by both engines.

    Args:
        scores: (rows, vocabulary), logits of the next tokens; -inf for forbidden ones.
        temperatures: sampling temperature of each row.
        uniforms: random number of each row, in [0, 1).

    Returns:
        (rows,) token ids, and (rows,) their log-probabilities.
    """
    divisors, numbers = torch.tensor([temperatures, uniforms], dtype=torch.float64, device=scores.device)[..., None]
    # In double precision, so that the sums of a large vocabulary keep its rare tokens.
    log_probs = (scores.double() / divisors).log_softmax(-1)
    cumulative = log_probs.exp().cumsum(-1)
    # The first token whose sum exceeds the number has a probability above 0.
    drawn = torch.searchsorted(cumulative, numbers * cumulative[:, -1:], right=True).clamp(max=scores.shape[1] - 1)
    return drawn[:, 0], log_probs.gather(-1, drawn)[:, 0]


class FiniteCheck(LogitsProcessor):
    """Records the rows whose logits are NaN or infinite; it must precede processors that replace such values.

    Attributes:
        is_broken: (rows,) whether a step of the row had such logits; None before the first step.
    """

    def __init__(self) -> None:
        self.is_broken: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
        """Return the scores (rows, vocabulary) unchanged."""
        is_broken = has_non_finite(scores)
        self.is_broken = is_broken if self.is_broken is None else self.is_broken | is_broken
        return scores


def has_non_finite(scores: Tensor) -> Tensor:
    """Return for each row of (rows, vocabulary) whether its largest value is NaN or infinite.

    Single values of -inf are legal: they mark tokens that may not come next.
    """
    return ~scores.amax(-1).isfinite()


class NarrativeGuard(LogitsProcessor):
    """Ends a narrative that repeats a sentence for the third time; for greedy generation without beams.

    Args:
        vocabulary: vocabulary of the model.
        tokenizer: tokenizer of the model.
    """

    def __init__(self, vocabulary: Vocabulary, tokenizer: Any) -> None:
        self.vocabulary, self.tokenizer = vocabulary, tokenizer
        self._sentence_ends = {
            i for i, t in enumerate(vocabulary.texts) if t.rstrip().endswith((".", "!", "?")) or "\n" in t
        }
        self._prompt_length: int | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores (rows, vocabulary) with -inf for all tokens but the end in rows of `input_ids` that loop."""
        if self._prompt_length is None:
            self._prompt_length = input_ids.shape[1]
            return scores
        for row, token in enumerate(input_ids[:, -1].tolist()):
            if token in self._sentence_ends:
                scores = scores.clone()
                scores[row] = self.constrain(input_ids[row, self._prompt_length :].tolist(), scores[row])
        return scores

    def constrain(self, ids: Sequence[int], scores: Tensor) -> Tensor:
        """Return scores (vocabulary) with -inf for all tokens but the end if a loop would continue.

        Args:
            ids: tokens of the response so far.
            scores: (vocabulary), scores of the next token.
        """
        if not ids or ids[-1] not in self._sentence_ends or not self._is_loop([*ids], int(scores.argmax())):
            return scores
        ends = list(self.vocabulary.ends)
        constrained = torch.full_like(scores, -torch.inf)
        constrained[ends] = scores[ends].clamp(min=torch.finfo(scores.dtype).min)
        return constrained

    def _is_loop(self, ids: list[int], following: int) -> bool:
        text = self._text(ids)
        return is_loop(text, text) and is_loop(text, self._text([*ids, following]))

    def _text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))
