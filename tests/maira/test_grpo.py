"""Group-relative policy optimization: sampling, advantages, loss and gradient, learning, resuming, and bad input."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from error_checks import raises
from packed_rows import answer_scores, encode_prompt, gradients
from PIL import Image
from test_train import Interrupted, interrupt_at, is_same, weights
from tiny_runs import CASES, Command, metrics, post_values, start

from maira.generate.constraints import BatchConstraints, Constraints, OpenResponse
from maira.generate.engine import EngineOptions, Sampling, report_request
from maira.generate.transformers_engine import TransformersEngine
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.model.task_examples import make_example
from maira.train.config.run_config import GrpoConfig, TrainConfig
from maira.train.data.packing import EncodedSample, StepTotals, collate
from maira.train.loss import MairaLossModel
from maira.train.post.grpo import compute_advantages, make_targets, policy_loss, replay_grammar
from maira.train.post.rewards import excess_length
from maira.train.validation import MONITORED, monitor_drafts
from radfact.errors import RunError
from radfact.records import Box, Pair, Sentence

TIMES = ("generation_seconds", "reward_seconds")
LIMIT = 24
TEMPERATURE = 0.7
Values = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def run_values(checkpoint: Path, phantoms: Path) -> Values:
    """Return a function that makes a config as YAML has it: 4 steps of 2 groups of 4 responses."""

    def make(out: Path, grpo: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
        reward = {"scores": {"reward_metrics:Brevity": 1.0}, "length_penalty": 0.0, "format_penalty": 0.0}
        options = {"num_generations": 4, "max_new_tokens": LIMIT, "reward": reward, **(grpo or {})}
        return post_values(checkpoint, phantoms, out, **({"grpo": options, "global_batch": 8} | changes))

    return make


def rows(out: Path) -> list[dict[str, Any]]:
    """The log of a run without times."""
    return [{key: value for key, value in row.items() if key not in TIMES} for row in metrics(out)]


@pytest.fixture(scope="module")
def samples(
    model: MairaForConditionalGeneration, processor: MairaProcessor, studies: Any
) -> tuple[TransformersEngine, list[EncodedSample]]:
    """An engine, and three sampled reports with their prompts and advantages."""
    engine = TransformersEngine.from_model(model, processor, EngineOptions(cache="dynamic"))
    requests = [report_request(make_example(study, "grounded"), LIMIT) for study in studies[:3]]
    requests = [replace(request, sampling=Sampling(TEMPERATURE, seed)) for seed, request in enumerate(requests)]
    responses: dict[int, Any] = dict(engine.generate(requests))
    encoded = []
    for index, (study, advantage) in enumerate(zip(studies[:3], (1.0, -0.5, 2.0), strict=True)):
        ids = responses[index].ids
        prompt, images = encode_prompt(study, processor)
        targets = make_targets(len(ids), advantage, (), *replay_grammar(engine.grammar, ids, LIMIT))
        encoded.append(EncodedSample(str(index), "grounded", [*prompt, *ids], len(prompt), images, policy=targets))
    return engine, encoded


def direct_log_probs(engine: TransformersEngine, sample: EncodedSample) -> torch.Tensor:
    """Log-probabilities of an answer by the model's plain forward pass and the engine's own grammar processor."""
    ids, prompt = sample.input_ids, sample.prompt_tokens
    scores = answer_scores(engine.model, ids, prompt, sample.images)
    constraints = Constraints(engine.grammar, engine.model.config.image_token_index)
    grammar, log_probs = BatchConstraints(constraints, [OpenResponse(engine.grammar, "report", LIMIT)]), []
    for place, token in enumerate(ids[prompt:]):
        masked = grammar(torch.tensor([ids[: prompt + place]]), scores[place : place + 1])
        log_probs.append((masked[0] / TEMPERATURE).log_softmax(-1)[token])
    return torch.stack(log_probs)


def make_loss(engine: TransformersEngine, **options: Any) -> MairaLossModel:
    config = GrpoConfig(temperature=TEMPERATURE, epsilon=0.1, epsilon_high=0.3, **options)
    policy = policy_loss(config, engine.model, engine.processor)
    return MairaLossModel(engine.model, 0, 0.0, policy=policy)


def test_draws_follow_the_distribution_and_the_seed(samples: Any) -> None:
    grammar = samples[0].grammar

    def draw(seeds: range) -> torch.Tensor:
        responses = [OpenResponse(grammar, None, LIMIT, Sampling(TEMPERATURE, seed)) for seed in seeds]
        scores = torch.tensor([[1.0, 0.0, -torch.inf, 2.0, 9.0]]).expand(len(seeds), -1)
        constraints = BatchConstraints(Constraints(grammar, 4), responses)
        return constraints(torch.zeros(len(seeds), 1), scores).argmax(-1)

    drawn = draw(range(4000))
    expected = (torch.tensor([1.0, 0.0, -torch.inf, 2.0, -torch.inf]) / TEMPERATURE).softmax(-1)
    torch.testing.assert_close(drawn.bincount(minlength=5) / 4000, expected, atol=0.025, rtol=0)
    assert draw(range(7, 8)).item() == drawn[7].item()


def test_a_response_does_not_depend_on_its_batch(samples: Any, studies: Any) -> None:
    engine, encoded = samples
    request = report_request(make_example(studies[1], "grounded"), LIMIT)
    ((_, response),) = engine.generate([replace(request, sampling=Sampling(TEMPERATURE, 1))])
    assert list(response.ids) == encoded[1].input_ids[encoded[1].prompt_tokens :]


def test_log_probabilities_of_packed_rows_are_those_of_the_sampled_distribution(samples: Any) -> None:
    engine, encoded = samples
    batch = collate(encoded, StepTotals(1, 1), 0, 64)
    with torch.no_grad():
        losses = make_loss(engine)(batch)
        expected = torch.cat([direct_log_probs(engine, sample) for sample in encoded])
    assert expected.isfinite().all()
    assert expected.unique().numel() > LIMIT  # not all tokens are determined by the grammar
    torch.testing.assert_close(losses.log_probs, expected, atol=1e-4, rtol=1e-4)
    tokens, clipped, kl, entropy, *mismatch = losses.statistics.tolist()
    assert (tokens, clipped, kl) == (len(expected), 0, 0)
    assert mismatch == [0, 0]
    assert entropy > 0


@pytest.mark.parametrize("is_fresh", [True, False])
def test_the_gradient_is_that_of_the_clipped_objective(samples: Any, is_fresh: bool) -> None:
    engine, encoded = samples
    batch = collate(encoded, StepTotals(1, 1), 0, 64)
    training = make_loss(engine)
    with torch.no_grad():
        current = training(batch).log_probs
    shift = torch.zeros_like(current) if is_fresh else torch.linspace(-0.5, 0.5, len(current))
    if not is_fresh:
        batch.policy.log_probs.copy_(current + shift)
    losses = training(batch)
    losses.answer.backward()
    ours = gradients(training)

    log_probs = torch.cat([direct_log_probs(engine, sample) for sample in encoded])
    advantages = torch.cat([sample.policy.advantages for sample in encoded])
    ratio = (log_probs - log_probs.detach() - shift).exp()
    bounded = ratio.detach().clamp(0.9, 1.3)
    # A token whose bounded gain is smaller has no gradient.
    is_clipped = bounded * advantages < ratio.detach() * advantages
    total = -(torch.where(is_clipped, bounded, ratio) * advantages).sum()
    total.backward()
    theirs = gradients(training)
    assert losses.answer.item() == pytest.approx(total.item(), rel=1e-4)
    assert losses.statistics[1] == is_clipped.sum()
    assert is_fresh == (not is_clipped.any())
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, atol=1e-4, rtol=2e-3, msg=name)


@pytest.mark.parametrize("cap", [None, 1.2])
def test_importance_weights_correct_the_probabilities_of_the_engine(samples: Any, cap: float | None) -> None:
    engine, encoded = samples
    batch = collate(encoded, StepTotals(1, 1), 0, 64)
    with torch.no_grad():
        plain = make_loss(engine)(batch)
        shift = torch.linspace(-0.5, 0.5, len(plain.log_probs))
        batch.policy.engine_log_probs.copy_(plain.log_probs - shift)
        # a token whose probability is unknown has the weight 1
        batch.policy.engine_log_probs[0] = shift[0] = torch.nan
        losses = make_loss(engine, importance_sampling_clip_max=cap)(batch)
    weights = torch.ones_like(shift) if cap is None else shift.exp().clamp(max=cap).nan_to_num(1.0)
    assert losses.answer.item() == pytest.approx(-(weights * batch.policy.advantages).sum().item(), rel=1e-5)
    *_, count, difference = losses.statistics.tolist()
    assert count == len(shift) - 1
    assert difference == pytest.approx(shift[1:].abs().sum().item(), rel=1e-4)
    assert losses.statistics[:4].tolist() == plain.statistics[:4].tolist()


def test_advantages_are_relative_to_the_group() -> None:
    nan = math.nan
    rewards = (1.0, 2.0, 3.0, nan, 5.0, 5.0, 5.0, 5.0, nan, nan, nan, 4.0)
    advantages, shares = compute_advantages(rewards, GrpoConfig(num_generations=4))
    deviation = math.sqrt(2 / 3)
    assert advantages == pytest.approx([-1 / deviation, 0, 1 / deviation, *[0] * 9])
    expected = (np.mean([1, 2, 3, 5, 5, 5, 5, 4]), deviation / 3, 2 / 3, 4 / 12)
    assert tuple(shares.values()) == pytest.approx(expected)
    unscaled, _ = compute_advantages(rewards, GrpoConfig(num_generations=4, scale_rewards=False))
    assert unscaled == pytest.approx([-1, 0, 1, *[0] * 9])
    assert all(map(math.isnan, compute_advantages([], GrpoConfig())[1].values()))


def test_only_longer_reports_are_penalized() -> None:
    assert [excess_length(words, 8) for words in (0, 8, 12, 14, 16, 80)] == [0, 0, 0, 0.5, 1, 1]
    assert excess_length(3, 0) == 1


@pytest.mark.slow
def test_the_policy_learns_what_is_rewarded(run_values: Values, tmp_path: Path) -> None:
    grpo = {"num_generations": 8, "max_new_tokens": 16}
    start(run_values(tmp_path, grpo, global_batch=16, passes=320, learning_rate=1e-2))
    reward = [row["reward"] for row in rows(tmp_path)]
    assert len(reward) == 20
    assert np.mean(reward[:2]) < 0.7
    assert np.mean(reward[-4:]) > 0.9


@pytest.fixture(scope="module")
def finished(run_values: Values, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of 4 steps with the responses of 2, never interrupted."""
    out = tmp_path_factory.mktemp("grpo")
    start(run_values(out, {"num_iterations": 2}, passes=16))
    return out


def test_further_steps_reuse_the_responses(finished: Path) -> None:
    first, second, third, fourth = rows(finished)
    sampled = ("reward", "reward_std", "words", "answer_tokens")
    assert [first[name] for name in sampled] == [second[name] for name in sampled]
    assert [third[name] for name in sampled] == [fourth[name] for name in sampled]
    assert [first["reward"] == third["reward"], first["kl"], third["kl"]] == [False, 0, 0]
    assert min(second["kl"], fourth["kl"]) > 0


def test_a_resumed_run_equals_an_uninterrupted_one(
    run_values: Values, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run_values(tmp_path, {"num_iterations": 2}, passes=16)
    interrupt_at(monkeypatch, 3)
    with pytest.raises(Interrupted):
        start(config)
    monkeypatch.undo()
    start(config)
    assert rows(tmp_path) == rows(finished)
    assert is_same(weights(tmp_path), weights(finished))


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_train_as_one(parallel: str, run_values: Values, finished: Path, tmp_path: Path) -> None:
    command = Command(tmp_path, 2, **run_values(tmp_path / "out", {"num_iterations": 2}, passes=16, parallel=parallel))
    assert command.end() == [0, 0], command.said
    for one, two in zip(rows(finished), rows(tmp_path / "out"), strict=True):
        assert {**two, "epoch": 0} == pytest.approx({**one, "epoch": 0}, rel=1e-3, abs=1e-5)


def test_a_constant_reward_has_no_gradient(run_values: Values, tmp_path: Path) -> None:
    grpo = {"reward": {"scores": {"reward_metrics:Constant": 1.0}, "length_penalty": 0, "format_penalty": 0}}
    start(run_values(tmp_path, grpo, passes=8))
    (row,) = rows(tmp_path)
    assert (row["frac_reward_zero_std"], row["grad_norm"], row["loss"], row["reward"]) == (1, 0, 0, 1)


def test_a_step_without_rewards_follows_the_fault_policy(run_values: Values, checkpoint: Path, tmp_path: Path) -> None:
    grpo = {"reward": {"scores": {"reward_metrics:Nothing": 1.0}}}
    with pytest.raises(RunError, match="the loss is nan"):
        start(run_values(tmp_path / "stop", grpo, passes=8))
    output = start(run_values(tmp_path / "skip", grpo, passes=8, faults={"not_finite": "skip"}))
    assert "none of 8 responses has a reward" in output
    assert is_same(weights(tmp_path / "skip"), MairaForConditionalGeneration.from_pretrained(checkpoint).state_dict())


@pytest.mark.parametrize(("scores", "options", "error"), CASES["rewards"])
def test_an_unusable_reward_is_refused_before_the_first_step(
    scores: dict[str, float], options: dict[str, Any], error: str, run_values: Values, tmp_path: Path
) -> None:
    with raises(f"grpo.reward.{error}"):
        start(run_values(tmp_path / "out", {"reward": {"scores": scores, "options": options}}))
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


def test_signs_of_other_means_are_counted() -> None:
    box = Box(x_min=0.1, y_min=0.1, x_max=0.4, y_max=0.4)
    grounded = [Sentence(text="No pleural effusion."), *[Sentence(text="There is a mass.", boxes=(box,))] * 3]
    pairs = [Pair("a", grounded, "There is a mass."), Pair("b", "The lungs are clear. No mass.", "There is a mass.")]
    values = monitor_drafts(pairs)
    assert tuple(values) == MONITORED
    assert 0 < (values["drafts/findings"] or 0) < 1
    expected = {"words": 21 / 2, "normal_sentence_share": 3 / 6, "repeated_sentence_share": 2 / 6}
    expected |= {"boxes_per_sentence": 3 / 6}
    assert {name: values[f"drafts/{name}"] for name in expected} == expected


@pytest.mark.slow
def test_a_validation_logs_what_is_not_rewarded(run_values: Values, phantoms: Path, tmp_path: Path) -> None:
    validation = {"sources": [{"manifest": str(phantoms)}], "every": 1, "samples": 2, "drafts_every": 1, "drafts": 2}
    start(run_values(tmp_path, passes=8, validation=validation))
    (row,) = [row for row in rows(tmp_path) if "epoch" not in row]
    assert {"loss/all", "drafts/logical_f1", *MONITORED} <= row.keys()
    assert row["drafts/words"] >= 0
    with Image.open(tmp_path / "rewards.png") as plot:
        assert plot.getcolors(1 << 20) is not None


@pytest.mark.parametrize(("changes", "message"), CASES["post-training"])
def test_an_inconsistent_config_is_refused(changes: dict[str, Any], message: str, checkpoint: Path) -> None:
    changes = {"global_batch": 8, **changes}
    with pytest.raises(ValueError, match=message):
        TrainConfig.model_validate(post_values(checkpoint, Path("none.jsonl"), Path("out"), **changes))
