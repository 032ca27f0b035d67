"""Constraints on the next token: grammar of reports, repetition guard, sampling, and logits that are not finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from maira.generate.engine import Form, Sampling
from maira.model.grammar import Allow, Grammar, ReportState
from maira.model.parser import is_loop

_CLOSING = 7
"""The limit restricts the last tokens only: those of a box and of the end of its object."""


@dataclass
class OpenResponse:
    """A response of at most `limit` tokens, unconstrained without a form; `ids` are its tokens so far, and grow."""

    grammar: Grammar | None
    form: Form | None
    limit: int
    sampling: Sampling | None = None
    ids: Sequence[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        is_guided = self.form in ("report", "boxes")
        self._state = ReportState(self.grammar, in_box=self.form == "boxes") if is_guided and self.grammar else None
        self._length = 0
        self._rng = None if self.sampling is None else np.random.default_rng(self.sampling.seed)
        self._uniforms: list[float] = []

    def uniform(self) -> float:
        """Return the random number of the next token; the same one if vLLM discards the token and repeats the step."""
        assert self._rng is not None
        missing = len(self.ids) + 1 - len(self._uniforms)
        self._uniforms += self._rng.random(max(missing, 0)).tolist()
        return self._uniforms[len(self.ids)]

    def state(self) -> ReportState | None:
        """Return the state of the grammar after the last token, None without one."""
        if self._state is not None:
            for token in self.ids[self._length :]:
                self._state.advance(token)
            self._length = len(self.ids)
        return self._state


class TokenChoice:
    """Samples, and suppresses image placeholders; each response is independent of the others."""

    def __init__(self, image_token: int | None) -> None:
        self._suppressed = [] if image_token is None else [image_token]

    def __call__(self, scores: Tensor, responses: Mapping[int, OpenResponse]) -> tuple[Tensor, list[int]]:
        """Set scores (rows, vocabulary) of tokens that may not follow to -inf, in place; return broken and cut rows."""
        scores[:, self._suppressed] = -torch.inf
        # Single values of -inf are legal: they mark tokens that may not come next.
        broken = ~scores.amax(-1).isfinite()
        cut = self._constrain(scores, responses)
        sampled = {row: response for row, response in responses.items() if response.sampling is not None}
        if sampled:
            rows = [*sampled]
            temperatures = [response.sampling.temperature for response in sampled.values() if response.sampling]
            uniforms = [response.uniform() for response in sampled.values()]
            drawn, log_probs = draw_tokens(scores[rows], temperatures, uniforms)
            scores[rows] = -torch.inf
            scores[rows, drawn] = log_probs.to(scores.dtype)
        return broken, cut

    def _constrain(self, scores: Tensor, responses: Mapping[int, OpenResponse]) -> list[int]:
        """Set scores of forbidden tokens to -inf, and return the rows where the limit decides."""
        del scores, responses
        return []


class Constraints(TokenChoice):
    """Also constrains the scores of open responses by the grammar and the repetition guard."""

    def __init__(self, grammar: Grammar, image_token: int) -> None:
        super().__init__(image_token)
        self.grammar = grammar
        self._forbidden = torch.empty(0)
        self._sentence_ends = {
            i for i, t in enumerate(grammar.texts) if t.rstrip().endswith((".", "!", "?")) or "\n" in t
        }

    def _constrain(self, scores: Tensor, responses: Mapping[int, OpenResponse]) -> list[int]:
        guided = {row: state for row, response in responses.items() if (state := response.state()) is not None}
        left = {row: max(responses[row].limit - len(responses[row].ids), 1) for row in guided}
        cut = self._apply_grammar(scores, guided, left) if guided else []
        for row, response in responses.items():
            is_guarded = response.form == "narrative" and response.sampling is None
            if is_guarded and self._loops(response.ids, scores[row]):
                ends = [*self.grammar.ends]
                kept = scores[row, ends].clamp(min=torch.finfo(scores.dtype).min)
                scores[row] = -torch.inf
                scores[row, ends] = kept
        return cut

    def _apply_grammar(self, scores: Tensor, states: Mapping[int, ReportState], left: Mapping[int, int]) -> list[int]:
        if self._forbidden.device != scores.device or self._forbidden.shape[-1] != scores.shape[1]:
            self._forbidden = forbidden_table(self.grammar, scores.shape[1]).to(scores.device)
        choices = {row: state.choices(left[row]) for row, state in states.items()}
        cut = [
            row
            for row, (choice, _) in choices.items()
            if left[row] < _CLOSING and self._is_cut(scores[row], states[row], choice)
        ]
        rows = [*states]
        forbidden = self._forbidden[[choice for choice, _ in choices.values()]]
        # An allowed token with a score of -inf stays more likely than a forbidden one.
        scores[rows] = scores[rows].clamp(min=torch.finfo(scores.dtype).min).masked_fill(forbidden, -torch.inf)
        for row, (_, banned) in choices.items():
            if banned:
                scores[row, banned] = -torch.inf
        return cut

    def _is_cut(self, scores: Tensor, state: ReportState, choice: int) -> bool:
        unlimited, banned = state.choices()
        if unlimited == choice:
            return False
        unlimited_scores = scores.masked_fill(self._forbidden[unlimited], -torch.inf)
        unlimited_scores[banned] = -torch.inf
        return bool(self._forbidden[choice, unlimited_scores.argmax()])

    def _loops(self, ids: Sequence[int], scores: Tensor) -> bool:
        """Return whether a narrative has just repeated a sentence for the third time."""
        if not ids or ids[-1] not in self._sentence_ends:
            return False
        text, continued = (
            str(self.grammar.decode(tokens, skip_special_tokens=True))
            for tokens in ([*ids], [*ids, int(scores.argmax())])
        )
        return is_loop(text, text) and is_loop(text, continued)


class BatchConstraints(LogitsProcessor):
    """`Constraints` for one call of transformers' `generate` without beams, whose rows are the responses."""

    def __init__(self, constraints: TokenChoice, responses: Sequence[OpenResponse]) -> None:
        self._constraints, self._responses = constraints, dict(enumerate(responses))
        self._prompt_length: int | None = None
        self.is_broken: Tensor | bool = False
        self.cut_rows: set[int] = set()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores (rows, vocabulary) with -inf for tokens that may not follow `input_ids` (rows, length)."""
        if self._prompt_length is None:
            self._prompt_length = input_ids.shape[1]
        for row, ids in enumerate(input_ids[:, self._prompt_length :].tolist()):
            self._responses[row].ids = ids
        scores = scores.clone()
        broken, cut = self._constraints(scores, self._responses)
        self.is_broken = broken | self.is_broken
        self.cut_rows.update(cut)
        return scores


def forbidden_table(grammar: Grammar, size: int) -> Tensor:
    """Return (rows of `Allow`, size), whether a token may not come next, for a head with at least a row per token."""
    allowed = np.zeros((len(grammar.allowed), size), bool)
    allowed[:, : grammar.allowed.shape[1]] = grammar.allowed
    allowed[Allow.ANYTHING] = True
    return torch.from_numpy(~allowed)


def draw_tokens(scores: Tensor, temperatures: Sequence[float], uniforms: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Sample one token per row of scores (rows, vocabulary) by its temperature and random number in [0, 1)."""
    divisors, numbers = torch.tensor([temperatures, uniforms], dtype=torch.float64, device=scores.device)[..., None]
    # In double precision, so that the sums of a large vocabulary keep its rare tokens.
    log_probs = (scores.double() / divisors).log_softmax(-1)
    cumulative = log_probs.exp().cumsum(-1)
    # The first token whose sum exceeds the number has a probability above 0.
    drawn = torch.searchsorted(cumulative, numbers * cumulative[:, -1:], right=True).clamp(max=scores.shape[1] - 1)
    return drawn[:, 0], log_probs.gather(-1, drawn)[:, 0]
