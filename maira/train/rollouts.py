"""Sampled responses to the prompts of a step, their rewards and advantages, and the packed rows of them."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from maira.generate.drafts import make_draft, without_references
from maira.generate.engine import Engine, FailedRequest, GenerationRequest, Response, Sampling, report_request
from maira.model.config import context_window
from maira.model.grammar import Allow, Grammar, Vocabulary
from maira.model.processor import MairaProcessor
from maira.model.prompts import NEW_TOKENS
from maira.model.task_examples import Example, UnusedInputWarning, drop_inputs, make_example
from maira.runtime.signals import TerminationSignal
from maira.train.config.run_config import GrpoConfig, TrainConfig
from maira.train.data.batches import (
    EncodedRow,
    SkippedSample,
    StepBatches,
    collate_row,
    unreadable_sample_error,
)
from maira.train.data.dataset import StudyDataset
from maira.train.data.packing import (
    TASKS,
    EncodedSample,
    PackedBatch,
    PolicyTargets,
    StepTotals,
    pack,
    prompt_table,
)
from maira.train.data.schedule import DataSchedule
from maira.train.data.sources import UnreadableSample, check_images
from maira.train.generation import evaluation_mode, generation_engine, keep_task_report, study_on_disk
from maira.train.logging import MetricsLogger
from maira.train.parallel import DistributedContext, ParallelModel
from maira.train.policy import STATISTICS, PolicyLoss
from maira.train.rewards import ReportReward, SampleReward
from radfact.records import Report

_SEED_KEY = 2
"""Distinguishes the random numbers of the responses from others with a run's seed."""
_SAME = 1e-6
"""Rewards of a group that differ by less are the same."""


class SampledResponse(NamedTuple):
    """A response to a prompt.

    Attributes:
        prompt_index: index of its prompt in the step.
        row: row of its prompt in the table of samples.
        ids: tokens of the response; empty if there is none.
        reward: its reward; None without a response.
        reason: why there is no response.
        log_probs: log-probabilities of its tokens in the inference engine; empty if the model in training samples.
    """

    prompt_index: int
    row: int
    ids: tuple[int, ...]
    reward: SampleReward | None
    reason: str = ""
    log_probs: tuple[float, ...] = ()

    @property
    def total(self) -> float:
        """The reward, NaN if there is none."""
        return math.nan if self.reward is None or self.reward.total is None else self.reward.total


class PromptDataset:
    """Prompts of reports; the answers in its table are the limits of the responses.

    Args:
        answers: studies with their reports.
        config: options of the sampling.
        window: number of tokens of the context window.
    """

    def __init__(self, answers: StudyDataset, config: GrpoConfig, window: int) -> None:
        self.answers = answers
        self.table = prompt_table(answers.table, config, window)

    @property
    def pad_id(self) -> int:
        """Padding token."""
        return self.answers.pad_id

    def sample_id(self, row: int) -> str:
        """Return the name of the study of a sample."""
        return self.answers.sample_id(row)

    def location(self, row: int) -> str:
        """Return the location that the study of a sample is read from."""
        return self.answers.location(row)

    def encode(self, row: int) -> EncodedSample:
        """Return a sample with the prompt alone. See `StudyDataset.encode`."""
        sample = self.answers.encode(row)
        return replace(sample, input_ids=sample.input_ids[: sample.prompt_tokens])

    def blank(self) -> EncodedSample:
        """Return an empty image without a response."""
        return replace(self.answers.blank(), policy=_targets(0, 0.0, (), [], []))


def policy_loss(config: GrpoConfig, model: Any, processor: MairaProcessor) -> PolicyLoss:
    """Make the loss of a model's responses.

    Args:
        config: options of the objective.
        model: MAIRA-2.
        processor: processor of the model.
    """
    return PolicyLoss(_grammar(model, processor), model.config.text_config.vocab_size, processor.image_token_id, config)


def _grammar(model: Any, processor: MairaProcessor) -> Grammar:
    ends = model.generation_config.eos_token_id or []
    return Grammar(Vocabulary.from_tokenizer(processor.tokenizer, ends if isinstance(ends, list) else [ends]))


class RolloutSampler:
    """Samples responses to the prompts of each step with the current weights.

    A response is a function of the weights, the run's seed, the step and its position in the step, so that a resumed
    run samples the same ones, whatever the number of processes.

    Args:
        config: run config.
        dataset: prompts.
        schedule: order of the prompts.
        model: model in training.
        processor: processor of the model.
        reward: reward of reports.
        log: receives messages.
    """

    statistics: Sequence[str] = STATISTICS

    def __init__(
        self,
        config: TrainConfig,
        dataset: PromptDataset,
        schedule: DataSchedule,
        model: ParallelModel,
        processor: MairaProcessor,
        reward: ReportReward,
        log: MetricsLogger,
    ) -> None:
        if config.grpo is None:
            raise ValueError("expected a configuration with grpo")
        self._config, self._grpo, self._dataset, self._schedule = config, config.grpo, dataset, schedule
        self._model, self._processor, self._reward, self._log = model, processor, reward, log
        self._context: DistributedContext = model.context
        self._grammar = _grammar(model.training.model, processor)
        self._window = context_window(model.training.model.config.text_config)
        self._rows: list[PackedBatch] = []

    def iterate(self, first_step: int, termination: TerminationSignal) -> Generator[StepBatches]:
        """Yield the steps of a run with the rows of this process.

        Args:
            first_step: from 0, the first one with its responses.
            termination: unused; there is no work before the first step.

        Raises:
            InputError: a sample cannot be read, or vLLM refuses an argument.
            RunError: a metric of the reward fails, or vLLM.
        """
        del termination
        with self._engine_context() as open_engine:
            for step in range(first_step, self._schedule.steps, self._grpo.num_iterations):
                batches = self._draw(step, open_engine)
                self._rows = batches.rows
                yield batches
                for following in range(step + 1, min(step + self._grpo.num_iterations, self._schedule.steps)):
                    yield batches._replace(number=following, rows=self._rows, skipped=[])
                self._rows = []

    @contextmanager
    def _engine_context(self) -> Iterator[Callable[[], AbstractContextManager[Engine]]]:
        """Yield a function that returns a context manager of an engine with the current weights."""
        if self._grpo.engine == "transformers":
            yield lambda: generation_engine(self._model, self._processor, self._config.faults.image_check)
            return
        from maira.train.rollout_engine import RolloutEngine

        with closing(RolloutEngine(self._config, self._model, self._processor, self._grammar.vocabulary)) as engine:
            yield engine.sync_weights

    def after_backward(
        self,
        loss: float,
        metrics: Mapping[str, float],
        statistics: Sequence[float],
        log_probs: Sequence[torch.Tensor],
    ) -> dict[str, float]:
        """Return the metrics of a step; without a reward, its loss is not finite. See `maira.train.loop.Objective`."""
        self._record(log_probs)
        sums = dict(zip(STATISTICS, statistics, strict=True))
        means = {name: sums[name] / max(1.0, sums["tokens"]) for name in ("clip_ratio", "kl", "entropy")}
        if self._grpo.engine == "vllm":
            means["sampling_logp_difference"] = sums["sampling_logp_difference"] / (sums["engine_tokens"] or math.nan)
        return {"loss": loss if math.isfinite(metrics["reward"]) else math.nan, **metrics, **means}

    def _record(self, log_probs: Sequence[torch.Tensor]) -> None:
        """Keep the log-probabilities of the sampled tokens for the further steps with the same responses."""
        rows = []
        for batch, own in zip(self._rows, log_probs, strict=True):
            targets = batch.policy
            if targets is None or not bool(targets.log_probs.isnan().all()):
                return
            rows.append(replace(batch, policy=replace(targets, log_probs=own.cpu())))
        self._rows = rows

    def _draw(self, step: int, open_engine: Callable[[], AbstractContextManager[Engine]]) -> StepBatches:
        """Sample responses to the prompts of a step, in all processes together."""
        started = time.perf_counter()
        prompts = [int(row) for row in self._schedule.step_samples(step)]
        skipped: list[SkippedSample] = []
        with TemporaryDirectory(prefix="maira-radiographs-") as folder:
            requests: list[_Request] = []
            for index in range(self._context.rank, len(prompts), self._context.size):
                try:
                    example, reference = self._example(prompts[index], Path(folder) / str(index))
                except UnreadableSample as error:
                    if self._config.faults.unreadable == "stop":
                        raise unreadable_sample_error(error, "a sample of the training") from None
                    skipped.append(SkippedSample(self._dataset.location(prompts[index]), 0, str(error)))
                    continue
                requests += [
                    _Request(index, prompts[index], reference, self._request(example, step, index, number))
                    for number in range(self._grpo.num_generations)
                ]
            self._context.wait()  # processes that have failed report it here
            with evaluation_mode(self._model.training), open_engine() as engine:
                responses = dict(engine.generate([request.request for request in requests]))
        sampled_at = time.perf_counter()
        own = self._score(requests, [responses[index] for index in range(len(requests))])
        scored_at = time.perf_counter()
        parts = self._context.gather(own)
        # In the order of one process.
        ordered = sorted((response for part in parts for response in part), key=lambda response: response.prompt_index)
        advantages, metrics = compute_advantages(ordered, self._grpo)
        self._report(ordered, metrics, step)
        metrics |= _means(ordered, self._reward.names)
        metrics |= {"generation_seconds": sampled_at - started, "reward_seconds": scored_at - sampled_at}
        rows = self._pack(ordered, advantages, StepTotals(_token_count(ordered), len(prompts)))
        return StepBatches(step, rows, skipped, metrics)

    def _example(self, row: int, folder: Path) -> tuple[Example, Report]:
        """Return the prompt of a sample, with its images as files, and the report of the study."""
        lengths = self._dataset.table[row]
        source, task = self._dataset.answers.sources[int(lengths["source"])], TASKS[int(lengths["task"])]
        study = keep_task_report(study_on_disk(source.read(int(lengths["number"])), folder), task)
        shown = drop_inputs(study, self._config.drop)
        if errors := check_images(shown)[1]:
            raise errors[0]
        with warnings.catch_warnings(action="ignore", category=UnusedInputWarning):
            example = make_example(without_references(shown), task, preset=self._config.preset)
        return example, study.grounded_findings or study.findings or ""

    def _request(self, example: Example, step: int, prompt_index: int, number: int) -> GenerationRequest:
        key = (self._config.seed, _SEED_KEY, step, prompt_index, number)
        seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
        request = report_request(example, self._grpo.max_new_tokens)
        return replace(request, sampling=Sampling(self._grpo.temperature, seed))

    def _score(
        self, requests: Sequence[_Request], responses: Sequence[Response | FailedRequest]
    ) -> list[SampledResponse]:
        """Return the responses of this process with their rewards."""
        answered = [
            (request, response)
            for request, response in zip(requests, responses, strict=True)
            if isinstance(response, Response)
        ]
        drafts = [make_draft(request.request.example, response, "model") for request, response in answered]
        rewards = iter(self._reward(drafts, [request.reference for request, _ in answered]))
        return [
            SampledResponse(request.prompt_index, request.row, (), None, response.reason)
            if isinstance(response, FailedRequest)
            else SampledResponse(
                request.prompt_index, request.row, response.ids, next(rewards), log_probs=response.log_probs
            )
            for request, response in zip(requests, responses, strict=True)
        ]

    def _report(self, responses: Sequence[SampledResponse], metrics: dict[str, float], step: int) -> None:
        failed = [response.reason for response in responses if response.reason]
        if failed:
            self._log.info(f"step {step + 1}: {len(failed)} responses failed; the first: {failed[0]}")
        if responses and metrics["unscored"] == 1:
            self._log.info(f"step {step + 1}: none of {len(responses)} responses has a reward")

    def _pack(
        self, responses: Sequence[SampledResponse], advantages: Sequence[float], totals: StepTotals
    ) -> list[PackedBatch]:
        """Return the rows of this process; responses without an advantage have no gradient and are in none."""
        kept = [index for index, advantage in enumerate(advantages) if advantage != 0]
        lengths = [int(self._dataset.table[responses[i].row]["prompt"]) + len(responses[i].ids) for i in kept]
        size = self._context.size
        if len(kept) < size:
            packed = [[index] for index in range(len(kept))] + [[] for _ in range(size - len(kept))]
        else:
            packed = pack(lengths, self._config.token_budget, size)
        prompts: dict[int, EncodedSample] = {}
        rows = []
        for row in packed[self._context.rank :: size]:
            samples = []
            for index in row:
                response, advantage = responses[kept[index]], advantages[kept[index]]
                if response.row not in prompts:
                    prompts[response.row] = self._dataset.encode(response.row)
                samples.append(self._with_response(prompts[response.row], response, advantage))
            rows.append(collate_row(EncodedRow(samples, []), totals, self._dataset))
        return rows

    def _with_response(self, prompt: EncodedSample, response: SampledResponse, advantage: float) -> EncodedSample:
        """Return a prompt with a response, and the tokens that the grammar allowed at each position."""
        task = prompt.task
        if task == "findings":
            choices, banned = [int(Allow.ANYTHING)] * len(response.ids), list[tuple[int, int]]()
        else:
            limit = self._grpo.max_new_tokens or NEW_TOKENS["grounded"]
            limit = min(limit, self._window - prompt.prompt_tokens)
            choices, banned = replay_grammar(self._grammar, response.ids, limit)
        targets = _targets(len(response.ids), advantage, response.log_probs, choices, banned)
        return replace(prompt, input_ids=[*prompt.input_ids, *response.ids], policy=targets)


class _Request(NamedTuple):
    """A request with the index of its prompt in the step and its row in the table, and the report of the study."""

    prompt_index: int
    row: int
    reference: Report
    request: GenerationRequest


@dataclass(frozen=True)
class _Group:
    """Rewards of the responses to a prompt, NaN for those without one."""

    rewards: npt.NDArray[np.float64]

    @property
    def is_constant(self) -> bool:
        scored = self.rewards[~np.isnan(self.rewards)]
        return len(scored) < 2 or bool(np.ptp(scored) < _SAME)

    def advantages(self, *, scaled: bool) -> npt.NDArray[np.float64]:
        """Return the advantages, 0 for responses without a reward or of a constant group."""
        if self.is_constant:
            return np.zeros(len(self.rewards))
        centered = self.rewards - np.nanmean(self.rewards)
        return np.nan_to_num(centered / np.nanstd(self.rewards) if scaled else centered)


def compute_advantages(
    responses: Sequence[SampledResponse], config: GrpoConfig
) -> tuple[list[float], dict[str, float]]:
    """Compute the advantage of each response over the mean reward of its group.

    Args:
        responses: group by group.
        config: size of a group, and whether advantages are scaled.

    Returns:
        The advantages, 0 for a response without a reward or of a group whose rewards are all the same; and `reward`
        and `reward_std` (within groups), NaN without a reward, and the shares `frac_reward_zero_std` and `unscored`.

    Source:
        DeepSeekMath, section 4.1.
    """
    size = config.num_generations
    rewards = np.array([response.total for response in responses], np.float64)
    groups = [_Group(rewards[start : start + size]) for start in range(0, len(rewards), size)]
    scored = rewards[~np.isnan(rewards)]
    spread = [float(np.nanstd(group.rewards)) for group in groups if not np.isnan(group.rewards).all()]
    metrics = {
        "reward": float(scored.mean()) if len(scored) else math.nan,
        "reward_std": float(np.mean(spread)) if spread else math.nan,
        "frac_reward_zero_std": float(np.mean([group.is_constant for group in groups])) if groups else math.nan,
        "unscored": 1 - len(scored) / len(rewards) if len(rewards) else math.nan,
    }
    advantages = [float(a) for group in groups for a in group.advantages(scaled=config.scale_rewards)]
    return advantages, metrics


def replay_grammar(grammar: Grammar, ids: Sequence[int], limit: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Return which tokens the grammar allowed at each position of a report.

    Args:
        grammar: grammar of the report.
        ids: tokens of the report.
        limit: maximum number of its tokens when it was sampled.

    Returns:
        For each position a row of `Grammar.allowed`; and pairs of position and token id: tokens forbidden in addition.
    """
    state, choices, banned = grammar.start(), list[int](), list[tuple[int, int]]()
    for position, token in enumerate(ids):
        choice, forbidden = state.choices(limit - position)
        choices.append(int(choice))
        banned += [(position, other) for other in forbidden]
        state.advance(token)
    return choices, banned


def _targets(
    count: int,
    advantage: float,
    engine_log_probs: Sequence[float],
    choices: Sequence[int],
    banned: Sequence[tuple[int, int]],
) -> PolicyTargets:
    return PolicyTargets(
        advantages=torch.full((count,), advantage),
        log_probs=torch.full((count,), math.nan),
        engine_log_probs=torch.tensor(engine_log_probs or [math.nan] * count, dtype=torch.float32),
        choices=torch.tensor(choices, dtype=torch.long),
        banned=torch.tensor(banned, dtype=torch.long).reshape(-1, 2),
    )


def _token_count(responses: Sequence[SampledResponse]) -> int:
    """Return the tokens of the responses with a reward, at least 1."""
    return max(1, sum(len(response.ids) for response in responses if not math.isnan(response.total)))


def _means(responses: Sequence[SampledResponse], names: Sequence[str]) -> dict[str, float]:
    """Return the mean of each score, and of the lengths in words and tokens; NaN without a value."""
    rewards = [response.reward for response in responses if response.reward is not None]
    columns: dict[str, list[float | None]] = {
        f"reward/{name}": [reward.scores[name] for reward in rewards] for name in names
    }
    columns |= {
        "words": [float(reward.words) for reward in rewards],
        "answer_tokens": [float(len(response.ids)) for response in responses if response.ids],
    }
    known = {name: [value for value in column if value is not None] for name, column in columns.items()}
    return {name: float(np.mean(column)) if column else math.nan for name, column in known.items()}
