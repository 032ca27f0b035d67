"""Group-relative policy optimization (GRPO): sampled responses, their advantages, and the loss on packed rows of them.

docs/post-training.md explains why TRL's trainer is not used.
Source: GRPO: DeepSeekMath, section 4.1; clipping and normalization by the tokens of a step: DAPO, sections 3.1 and 3.3.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from maira.generate.constraints import forbidden_table
from maira.generate.drafts import make_draft, without_references
from maira.generate.engine import Engine, FailedRequest, GenerationRequest, Response, Sampling, report_request
from maira.model.config import context_window
from maira.model.grammar import Allow, Grammar, ReportState
from maira.model.processor import MairaProcessor
from maira.model.prompts import NEW_TOKENS
from maira.model.task_examples import make_example
from maira.runtime.processes import TerminationSignal
from maira.train.config.run_config import TASKS, GrpoConfig, TrainConfig
from maira.train.data.dataset import StudyDataset
from maira.train.data.packing import EncodedSample, PackedBatch, PolicyTargets, StepTotals, pack
from maira.train.data.schedule import DataSchedule, EncodedRow, SkippedSample, StepBatches, collate_row
from maira.train.data.sources import skipping_unreadable
from maira.train.logging import MetricsLogger
from maira.train.loss import Losses, sum_losses
from maira.train.parallel import ParallelModel
from maira.train.post.rewards import ReportReward, SampleReward
from maira.train.validation import evaluation_mode, generation_engine, shown_study
from radfact.records import Report

_STATISTICS = ("tokens", "clip_ratio", "kl", "entropy", "engine_tokens", "sampling_logp_difference")
"""Sums over the tokens of a row: their number, those whose gradient is clipped, the KL divergence from the policy that
sampled them, the entropy of the distribution that each is drawn from, in nats, the number of tokens with a
log-probability of the inference engine, and the absolute difference of that log-probability from the model's."""
_SEED_KEY = 2
"""Distinguishes the random numbers of the responses from others with a run's seed."""
_SAME = 1e-6
"""Rewards of a group that differ by less are the same."""


class PolicyLoss(nn.Module):
    """The clipped policy gradient of sampled tokens."""

    # A token's probability is that of the distribution it was drawn from: of the tokens that the grammar allows at its
    # place, at the temperature of the sampling. `size` is the number of rows of the head.
    forbidden: Tensor

    def __init__(self, grammar: Grammar, size: int, image_token: int, config: GrpoConfig) -> None:
        super().__init__()
        forbidden = forbidden_table(grammar, size)
        forbidden[:, image_token] = True  # never sampled
        self.register_buffer("forbidden", forbidden, persistent=False)
        self.temperature = config.temperature
        self.low = 1 - config.epsilon
        self.clip_max = config.importance_sampling_clip_max
        self.high = 1 + (config.epsilon if config.epsilon_high is None else config.epsilon_high)

    def forward(self, hidden: Tensor, head: nn.Module, batch: PackedBatch) -> Losses:
        """Compute the loss of a row of sampled answers; `hidden` is (1, tokens, width), `head` computes logits."""
        targets = batch.policy
        assert targets is not None
        # (answer tokens, vocabulary)
        scores = head(hidden[0].index_select(0, batch.answers)).float() / self.temperature
        forbidden = self.forbidden[targets.choices]
        forbidden.index_put_(targets.banned.unbind(1), forbidden.new_ones(()))  # = True would copy the value to the GPU
        distribution = scores.masked_fill(forbidden, -torch.inf).log_softmax(-1)
        # (answer tokens,)
        log_probs = distribution.gather(-1, batch.targets[:, None])[:, 0]
        sampled = torch.where(targets.log_probs.isnan(), log_probs.detach(), targets.log_probs)
        ratio = (log_probs - sampled).exp()
        clipped = ratio.clamp(self.low, self.high)
        gains = torch.where(targets.advantages > 0, torch.minimum(ratio, clipped), torch.maximum(ratio, clipped))
        logp_difference = sampled - targets.engine_log_probs
        weights = torch.ones_like(gains)
        if self.clip_max is not None:
            weights = logp_difference.exp().clamp(max=self.clip_max).nan_to_num(1.0)
        losses = -gains * weights * targets.advantages
        statistics = self._statistics(distribution.detach(), ratio.detach(), logp_difference, targets.advantages)
        return sum_losses(losses, batch)._replace(log_probs=log_probs.detach(), statistics=statistics)

    def _statistics(self, distribution: Tensor, ratio: Tensor, logp_difference: Tensor, advantages: Tensor) -> Tensor:
        clipped = ((advantages > 0) & (ratio > self.high)) | ((advantages < 0) & (ratio < self.low))
        # The k3 estimator (Schulman, "Approximating KL Divergence", 2020), whose terms are never negative.
        kl = ratio - 1 - ratio.log()
        entropy = -torch.where(distribution.isinf(), 0.0, distribution.exp() * distribution)
        difference = logp_difference.abs().nan_to_num(0.0)
        columns = (torch.ones_like(ratio), clipped, kl, entropy, ~logp_difference.isnan(), difference)
        return torch.stack([column.sum().double() for column in columns])


class SampledResponse(NamedTuple):
    """A response to a prompt, with log-probabilities if an inference engine sampled it, or the reason for none."""

    prompt_index: int
    row: int
    ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    reward: SampleReward | None = None
    reason: str = ""

    @property
    def total(self) -> float:
        """The reward, NaN if there is none."""
        return math.nan if self.reward is None or self.reward.total is None else self.reward.total


def policy_loss(config: GrpoConfig, model: Any, processor: MairaProcessor) -> PolicyLoss:
    grammar = Grammar(processor.tokenizer, model.generation_config.eos_token_id)
    return PolicyLoss(grammar, model.config.text_config.vocab_size, processor.image_token_id, config)


_Request = tuple[SampledResponse, Report, GenerationRequest]
"""A response to sample, the report of the study, and the request."""


@dataclass
class RolloutSampler:
    """GRPO objective: samples responses to the prompts of each step with the current weights."""

    # A response is a function of the weights, the run's seed, the step and its position in the step, so that a resumed
    # run samples the same ones, whatever the number of processes.
    config: TrainConfig
    dataset: StudyDataset
    processor: MairaProcessor
    reward: ReportReward
    model: ParallelModel
    schedule: DataSchedule
    log: MetricsLogger
    statistics: Sequence[str] = _STATISTICS

    def __post_init__(self) -> None:
        assert self.config.grpo is not None
        self._grpo, self._context, maira = self.config.grpo, self.model.context, self.model.training.model
        self._grammar = Grammar(self.processor.tokenizer, maira.generation_config.eos_token_id)
        self._window = context_window(maira.config.text_config)
        self._log_probs: Sequence[Tensor] = ()

    def iterate(self, first_step: int, termination: TerminationSignal) -> Generator[StepBatches]:
        del termination
        with self._engine_context() as open_engine:
            for step in range(first_step, self.schedule.steps, self._grpo.num_iterations):
                batches = self._draw(step, open_engine)
                yield batches
                following = range(step + 1, min(step + self._grpo.num_iterations, self.schedule.steps))
                # The log-probabilities of the sampled tokens are those of the first step.
                rows = list(map(_with_log_probs, batches.rows, self._log_probs)) if following else []
                for number in following:
                    yield batches._replace(number=number, rows=rows, skipped=[])

    def after_backward(
        self, loss: float, metrics: Mapping[str, float], statistics: Sequence[float], log_probs: Sequence[Tensor]
    ) -> dict[str, float]:
        """Return the metrics of a step; without a reward, its loss is not finite. See `maira.train.loop.Objective`."""
        self._log_probs = log_probs
        sums = dict(zip(_STATISTICS, statistics, strict=True))
        means = {name: sums[name] / max(1.0, sums["tokens"]) for name in ("clip_ratio", "kl", "entropy")}
        if self._grpo.engine == "vllm":
            means["sampling_logp_difference"] = sums["sampling_logp_difference"] / (sums["engine_tokens"] or math.nan)
        return {"loss": loss if math.isfinite(metrics["reward"]) else math.nan, **metrics, **means}

    @contextmanager
    def _engine_context(self) -> Iterator[Callable[[], AbstractContextManager[Engine]]]:
        """Yield a function that returns a context manager of an engine with the current weights."""
        if self._grpo.engine == "transformers":
            yield lambda: generation_engine(self.model, self.processor, self.config.faults.image_check)
            return
        from maira.train.post.rollout_engine import RolloutEngine

        with closing(RolloutEngine(self.config, self.model, self.processor)) as engine:
            yield engine.sync_weights

    def _draw(self, step: int, open_engine: Callable[[], AbstractContextManager[Engine]]) -> StepBatches:
        """Sample responses to the prompts of a step, in all processes together."""
        started = time.perf_counter()
        prompts = [int(row) for row in self.schedule.step_samples(step)]
        requests: list[_Request] = []
        skipped: list[SkippedSample] = []
        with TemporaryDirectory(prefix="maira-radiographs-") as folder:
            for index in range(self._context.rank, len(prompts), self._context.size):
                with skipping_unreadable(self.config.faults, "the training") as reasons:
                    requests += self._requests(step, index, prompts[index], Path(folder) / str(index))
                skipped += [SkippedSample(self.dataset.location(prompts[index]), 0, reason) for reason in reasons]
            self._context.wait()  # processes that have failed report it here
            with evaluation_mode(self.model.training), open_engine() as engine:
                responses = dict(engine.generate([request for *_, request in requests]))
        sampled_at = time.perf_counter()
        own = self._score(requests, [responses[index] for index in range(len(requests))])
        scored_at = time.perf_counter()
        parts = self._context.gather(own)
        # In the order of one process.
        ordered = sorted((response for part in parts for response in part), key=lambda response: response.prompt_index)
        advantages, metrics = compute_advantages([response.total for response in ordered], self._grpo)
        if failed := [response.reason for response in ordered if response.reason]:
            self.log.info(f"step {step + 1}: {len(failed)} responses failed; the first: {failed[0]}")
        if metrics["unscored"] == 1:
            self.log.info(f"step {step + 1}: none of {len(ordered)} responses has a reward")
        rewards = [response.reward for response in ordered if response.reward is not None]
        metrics |= {f"reward/{name}": _mean(reward.scores[name] for reward in rewards) for name in self.reward.names}
        metrics["words"] = _mean(reward.words for reward in rewards)
        metrics["answer_tokens"] = _mean(len(response.ids) for response in ordered if response.ids)
        metrics |= {"generation_seconds": sampled_at - started, "reward_seconds": scored_at - sampled_at}
        tokens = sum(len(response.ids) for response in ordered if not math.isnan(response.total))
        rows = self._pack(ordered, advantages, StepTotals(max(1, tokens), len(prompts)))
        return StepBatches(step, rows, skipped, metrics)

    def _requests(self, step: int, index: int, row: int, folder: Path) -> list[_Request]:
        """Return the requests of a prompt, whose images are written to a folder if they are in a shard."""
        lengths = self.dataset.table[row]
        source, task = self.dataset.sources[int(lengths["source"])], TASKS[int(lengths["task"])]
        study = shown_study(source.read(int(lengths["number"])), task, self.config, folder)
        example = make_example(without_references(study), task, preset=self.config.preset)
        reference = study.grounded_findings or study.findings or ""
        requests = []
        for number in range(self._grpo.num_generations):
            key = (self.config.seed, _SEED_KEY, step, index, number)
            seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
            request = report_request(example, self._grpo.max_new_tokens)
            request = replace(request, sampling=Sampling(self._grpo.temperature, seed))
            requests.append((SampledResponse(index, row), reference, request))
        return requests

    def _score(
        self, requests: Sequence[_Request], responses: Sequence[Response | FailedRequest]
    ) -> list[SampledResponse]:
        scored = []
        answered: list[tuple[dict[str, Any], Report]] = []
        for (sampled, reference, request), response in zip(requests, responses, strict=True):
            if isinstance(response, FailedRequest):
                scored.append(sampled._replace(reason=response.reason or "it failed"))
            else:
                scored.append(sampled._replace(ids=response.ids, log_probs=response.log_probs))
                answered.append((make_draft(request.example, response, "model"), reference))
        rewards = iter(self.reward([draft for draft, _ in answered], [reference for _, reference in answered]))
        return [sampled if sampled.reason else sampled._replace(reward=next(rewards)) for sampled in scored]

    def _pack(
        self, responses: Sequence[SampledResponse], advantages: Sequence[float], totals: StepTotals
    ) -> list[PackedBatch]:
        """Return the rows of this process; responses without an advantage have no gradient and are in none."""
        kept = [pair for pair in zip(responses, advantages, strict=True) if pair[1] != 0]
        lengths = [int(self.dataset.table[response.row]["prompt"]) + len(response.ids) for response, _ in kept]
        size = self._context.size
        if len(kept) < size:
            packed = [[index] for index in range(len(kept))] + [[] for _ in range(size - len(kept))]
        else:
            packed = pack(lengths, self.config.token_budget, size)
        encode = cache(self.dataset.encode)
        rows = []
        for row in packed[self._context.rank :: size]:
            samples = [self._with_response(encode(kept[index][0].row), *kept[index]) for index in row]
            batch = collate_row(EncodedRow(samples, []), totals, self.dataset)
            rows.append(batch if samples else replace(batch, policy=make_targets(0, 0.0, (), [], [])))
        return rows

    def _with_response(self, prompt: EncodedSample, response: SampledResponse, advantage: float) -> EncodedSample:
        """Return a sample with a response as its answer, and the tokens that the grammar allowed at each position."""
        if prompt.task == "findings":
            choices, banned = [int(Allow.ANYTHING)] * len(response.ids), list[tuple[int, int]]()
        else:
            limit = self._grpo.max_new_tokens or NEW_TOKENS["grounded"]
            limit = min(limit, self._window - prompt.prompt_tokens)
            choices, banned = replay_grammar(self._grammar, response.ids, limit)
        targets = make_targets(len(response.ids), advantage, response.log_probs, choices, banned)
        ids = [*prompt.input_ids[: prompt.prompt_tokens], *response.ids]
        return replace(prompt, input_ids=ids, policy=targets)


def compute_advantages(rewards: Sequence[float], config: GrpoConfig) -> tuple[list[float], dict[str, float]]:
    """Return the advantage of each response over the mean reward of its group, and metrics of the rewards."""
    # The rewards, NaN for a response without one, are in groups of `num_generations`. An advantage is 0 without a
    # reward and in a group whose rewards are all the same. The metrics are `reward` and `reward_std` (within groups),
    # NaN if there is none, and the shares `frac_reward_zero_std` and `unscored`.
    #
    # Source: DeepSeekMath, section 4.1.
    groups = np.array(rewards, np.float64).reshape(-1, config.num_generations)
    is_scored = ~np.isnan(groups)
    spread = [float(np.nanstd(group)) for group in groups[is_scored.any(1)]]
    is_varied = np.fmax.reduce(groups, 1) - np.fmin.reduce(groups, 1) >= _SAME
    advantages = np.zeros_like(groups)
    if is_varied.any():
        varied = groups[is_varied]
        centered = varied - np.nanmean(varied, 1, keepdims=True)
        scale = np.nanstd(varied, 1, keepdims=True) if config.scale_rewards else 1.0
        advantages[is_varied] = np.nan_to_num(centered / scale)
    metrics = {
        "reward": _mean(groups[is_scored]),
        "reward_std": _mean(spread),
        "frac_reward_zero_std": _mean(~is_varied),
        "unscored": _mean(~is_scored.ravel()),
    }
    return advantages.ravel().tolist(), metrics


def replay_grammar(grammar: Grammar, ids: Sequence[int], limit: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the row of `Grammar.allowed` at each position of a report, and (position, token) forbidden, too."""
    state, choices, banned = ReportState(grammar), list[int](), list[tuple[int, int]]()
    for position, token in enumerate(ids):
        choice, forbidden = state.choices(limit - position)
        choices.append(int(choice))
        banned += [(position, other) for other in forbidden]
        state.advance(token)
    return choices, banned


def make_targets(
    count: int,
    advantage: float,
    engine_log_probs: Sequence[float],
    choices: Sequence[int],
    banned: Sequence[tuple[int, int]],
) -> PolicyTargets:
    """Return the targets of a response of `count` tokens, whose log-probabilities are those of the current weights."""
    return PolicyTargets(
        advantages=torch.full((count,), advantage),
        log_probs=torch.full((count,), math.nan),
        engine_log_probs=torch.tensor(engine_log_probs or [math.nan] * count, dtype=torch.float32),
        choices=torch.tensor(choices, dtype=torch.long),
        banned=torch.tensor(banned, dtype=torch.long).reshape(-1, 2),
    )


def _with_log_probs(batch: PackedBatch, log_probs: Tensor) -> PackedBatch:
    assert batch.policy is not None
    return replace(batch, policy=replace(batch.policy, log_probs=log_probs.cpu()))


def _mean(values: Iterable[float | None]) -> float:
    """Return the mean of the known values; NaN without any."""
    known = np.array([value for value in values if value is not None], np.float64)
    return float(known.mean()) if len(known) else math.nan
