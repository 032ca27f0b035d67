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
from maira.runtime.processes import copy_to_device

_CLOSING = 7
"""The limit restricts the last tokens only: those of a box and of the end of its object."""


@dataclass
class OpenResponse:
    """A response of at most `limit` tokens, unconstrained without a form; `ids` are its tokens so far, and grow."""

    grammar: Grammar | None
    form: Form | None
    limit: int
    sampling: Sampling | None = None
    ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        is_guided = self.form in ("report", "boxes")
        self._state = ReportState(self.grammar, in_box=self.form == "boxes") if is_guided and self.grammar else None
        self._length = 0
        self._rng = None if self.sampling is None else np.random.default_rng(self.sampling.seed)
        self._uniforms: list[float] = []

    def uniform(self) -> float:
        """Return the random number of the next token; the same one if vLLM discards the token and repeats the step."""
        assert self._rng is not None
        self._uniforms += self._rng.random(max(len(self.ids) + 1 - len(self._uniforms), 0)).tolist()
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
        self._image_token = image_token

    def __call__(self, scores: Tensor, responses: Mapping[int, OpenResponse]) -> tuple[Tensor, Tensor]:
        """Set scores (rows, vocabulary) of tokens that may not follow to -inf, in place, without waiting for a GPU."""
        # Return which rows are broken, and of which the limit decides the token: (rows,) each.
        if self._image_token is not None:
            scores[:, self._image_token] = -torch.inf
        # Single values of -inf are legal: they mark tokens that may not come next.
        broken = ~scores.amax(-1).isfinite()
        cut = torch.zeros_like(broken)
        self._constrain(scores, responses, cut)
        sampled = {row: response for row, response in responses.items() if response.sampling is not None}
        if sampled:
            rows = copy_to_device(torch.tensor([*sampled]), scores.device)
            temperatures = [response.sampling.temperature for response in sampled.values() if response.sampling]
            uniforms = [response.uniform() for response in sampled.values()]
            drawn, log_probs = draw_tokens(scores[rows], temperatures, uniforms)
            scores.index_fill_(0, rows, -torch.inf)
            scores[rows, drawn] = log_probs.to(scores.dtype)
        return broken, cut

    def _constrain(self, scores: Tensor, responses: Mapping[int, OpenResponse], cut: Tensor) -> None:
        """Set scores of forbidden tokens to -inf, and mark the rows where the limit decides."""


class Constraints(TokenChoice):
    """Also constrains the scores of open responses by the grammar and the repetition guard."""

    def __init__(self, grammar: Grammar, image_token: int) -> None:
        super().__init__(image_token)
        self.grammar = grammar
        self._forbidden = torch.empty(0)
        marks = (".", "!", "?")
        self._sentence_ends = {i for i, t in enumerate(grammar.texts) if t.rstrip().endswith(marks) or "\n" in t}

    def _constrain(self, scores: Tensor, responses: Mapping[int, OpenResponse], cut: Tensor) -> None:
        guided = {row: state for row, response in responses.items() if (state := response.state()) is not None}
        if guided:
            left = {row: max(responses[row].limit - len(responses[row].ids), 1) for row in guided}
            self._apply_grammar(scores, guided, left, cut)
        for row, response in responses.items():
            if response.form == "narrative" and response.sampling is None and self._loops(response.ids, scores[row]):
                ends = copy_to_device(torch.tensor([*self.grammar.ends]), scores.device)
                kept = scores[row, ends].clamp(min=torch.finfo(scores.dtype).min)
                scores[row] = -torch.inf
                scores[row, ends] = kept

    def _apply_grammar(
        self, scores: Tensor, states: Mapping[int, ReportState], left: Mapping[int, int], cut: Tensor
    ) -> None:
        if self._forbidden.device != scores.device or self._forbidden.shape[-1] != scores.shape[1]:
            self._forbidden = copy_to_device(forbidden_table(self.grammar, scores.shape[1]), scores.device)
        choices = {row: state.choices(left[row]) for row, state in states.items()}
        unlimited = {row: state.choices() for row, state in states.items() if left[row] < _CLOSING}
        if decided := [row for row, (choice, _) in unlimited.items() if choice != choices[row][0]]:
            rows, limited = copy_to_device(torch.tensor([decided, [choices[row][0] for row in decided]]), scores.device)
            preferred = self._forbid(scores[rows], [unlimited[row] for row in decided]).argmax(-1)
            cut[rows] = self._forbidden[limited, preferred]
        rows = copy_to_device(torch.tensor([*states]), scores.device)
        # An allowed token with a score of -inf stays more likely than a forbidden one.
        likely = scores[rows].clamp(min=torch.finfo(scores.dtype).min)
        scores[rows] = self._forbid(likely, [*choices.values()])

    def _forbid(self, scores: Tensor, choices: Sequence[tuple[int, list[int]]]) -> Tensor:
        """Return scores (rows, vocabulary) with -inf for tokens that the choice of a row forbids."""
        allowed = copy_to_device(torch.tensor([choice for choice, _ in choices]), scores.device)
        scores = scores.masked_fill(self._forbidden[allowed], -torch.inf)
        if pairs := [(row, token) for row, (_, banned) in enumerate(choices) for token in banned]:
            rows, tokens = copy_to_device(torch.tensor([*zip(*pairs, strict=True)]), scores.device)
            # A number in place of a tensor would be copied to a GPU (torch 2.11).
            scores.index_put_((rows, tokens), scores.new_full((), -torch.inf))
        return scores

    def _loops(self, ids: Sequence[int], scores: Tensor) -> bool:
        """Return whether a narrative has just repeated a sentence for the third time."""
        if not ids or ids[-1] not in self._sentence_ends:
            return False
        text = str(self.grammar.decode([*ids], skip_special_tokens=True))
        if not is_loop(text, text):
            return False
        return is_loop(text, str(self.grammar.decode([*ids, int(scores.argmax())], skip_special_tokens=True)))


class BatchConstraints(LogitsProcessor):
    """A choice of tokens for one call of transformers' `generate` without beams, whose rows are the responses."""

    def __init__(self, constraints: TokenChoice, responses: Sequence[OpenResponse]) -> None:
        self._constraints, self._responses = constraints, dict(enumerate(responses))
        self._prompt_length: int | None = None
        self.is_broken: Tensor | bool = False

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores (rows, vocabulary) with -inf for tokens that may not follow `input_ids` (rows, length)."""
        if self._prompt_length is None:
            self._prompt_length = input_ids.shape[1]
        for row, ids in enumerate(input_ids[:, self._prompt_length :].tolist()):
            self._responses[row].ids = ids
        scores = scores.clone()
        self.is_broken = self._constraints(scores, self._responses)[0] | self.is_broken
        return scores


def forbidden_table(grammar: Grammar, size: int) -> Tensor:
    """Return (rows of `Allow`, size), whether a token may not come next, for a head with at least a row per token."""
    allowed = np.zeros((len(grammar.allowed), size), bool)
    allowed[:, : grammar.allowed.shape[1]] = grammar.allowed
    allowed[Allow.ANYTHING] = True
    return torch.from_numpy(~allowed)


def draw_tokens(scores: Tensor, temperatures: Sequence[float], uniforms: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Sample one token per row of scores (rows, vocabulary) by its temperature and random number in [0, 1)."""
    parameters = torch.tensor([temperatures, uniforms], dtype=torch.float64)
    divisors, numbers = copy_to_device(parameters, scores.device)[..., None]
    # In double precision, so that the sums of a large vocabulary keep its rare tokens.
    log_probs = (scores.double() / divisors).log_softmax(-1)
    cumulative = log_probs.exp().cumsum(-1)
    # The first token whose sum exceeds the number has a probability above 0.
    drawn = torch.searchsorted(cumulative, numbers * cumulative[:, -1:], right=True).clamp(max=scores.shape[1] - 1)
    return drawn[:, 0], log_probs.gather(-1, drawn)[:, 0]
