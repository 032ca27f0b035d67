"""A training step on a GPU that exists only as the device of fake tensors: where tensors are, and what waits for it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from packed_rows import KINDS, make_sample, pack
from tiny_runs import CASES, minimal_config
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from maira.model.config import MairaConfig
from maira.model.grammar import Grammar
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.runtime.processes import DistributedContext
from maira.train import attention
from maira.train.config.run_config import DpoConfig, GrpoConfig, TrainConfig
from maira.train.data.packing import PolicyTargets, StepTotals
from maira.train.loop import Trainer
from maira.train.loss import MairaLossModel
from maira.train.parallel import ParallelModel, make_optimizer, prepare_blocks
from maira.train.post.dpo import DpoLoss, DpoObjective
from maira.train.post.grpo import PolicyLoss, RolloutSampler

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class Recorder(TorchDispatchMode):
    """Counts the numbers that are read from tensors, copies, and the tensors that operations make on other devices.

    Other operations that wait for a device, such as nonzero, are errors of fake tensors.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.read = device, 0
        self.elsewhere: Counter[str] = Counter()
        self.copies: list[bool] = []

    def __torch_dispatch__(self, operation: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if operation is torch.ops.aten._local_scalar_dense.default:
            self.read += 1
            return 1.0
        result = operation(*args, **kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        if operation is torch.ops.aten._to_copy.default and args[0].device != result.device:
            self.copies.append(kwargs.get("non_blocking", False))
        if any(tensor.device != self.device for tensor in tensors):
            self.elsewhere[str(operation)] += 1
        return result


def make_trainer(training: MairaLossModel, train_config: TrainConfig, device: torch.device) -> Trainer:
    """A run of which only the model, the optimizer and the numbers for them are real."""
    context = DistributedContext(0, 1, device)
    trainer = object.__new__(Trainer)
    vars(trainer).update(
        config=train_config,
        context=context,
        model=ParallelModel(training, training, context, autocast=device == CPU),
        optimizer=make_optimizer(training, train_config),
        lr_factor=lambda _: 1.0,
        schedule=SimpleNamespace(epoch=lambda _: 0),
        log=SimpleNamespace(count_row=lambda *_: None, log_step=lambda *_, **__: None),
        objective=None,
    )
    return trainer


def without_backward(model: ParallelModel, _loss: Tensor) -> None:
    """Gradients without the backward pass, which needs the driver of a GPU."""
    for parameter in model.training.parameters():
        parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None


def policy_targets(count: int) -> PolicyTargets:
    """Targets of sampled answers, of which one token was forbidden in addition to the grammar."""
    return PolicyTargets(
        advantages=torch.ones(count),
        log_probs=torch.full((count,), torch.nan),
        engine_log_probs=torch.full((count,), torch.nan),
        choices=torch.zeros(count, dtype=torch.long),
        banned=torch.tensor([[0, 5]]),
    )


@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
@pytest.mark.parametrize(("kernel", "checkpointing", "objective"), CASES["synchronization"])
def test_a_step_reads_its_losses_and_norm_only(
    kernel: str,
    checkpointing: str,
    objective: str | None,
    device: torch.device,
    config: MairaConfig,
    processor: MairaProcessor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train_config = minimal_config(precision="bf16", activation_checkpointing=checkpointing)
    totals = StepTotals(40, 4)
    rows = [pack([make_sample(config, n, 20, 9, seed=n) for n in (1, 2)], padding, totals) for padding in (5, 0)]
    policy: nn.Module | None = None
    statistics: Sequence[str] = ()
    if objective == "grpo":
        rows = [replace(row, policy=policy_targets(len(row.answers))) for row in rows]
        grammar = Grammar(processor.tokenizer, 2)
        policy = PolicyLoss(grammar, config.text_config.vocab_size, config.image_token_index, GrpoConfig())
        statistics = RolloutSampler.statistics
    elif objective == "dpo":
        rows = [replace(row, reference_log_probs=torch.zeros(2)) for row in rows]
        policy, statistics = DpoLoss(DpoConfig()), DpoObjective.statistics
    kinds, weight = (KINDS, 0.5) if policy is None else (0, 0.0)
    moved = [value for row in rows for part in (row, row.policy) if part for value in vars(part).values()]
    moved = [value for value in moved if isinstance(value, Tensor)]
    pinned: list[Tensor] = []
    # Pinning needs a GPU as well.
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)  # type: ignore[func-returns-value]
    # As does torch's kernel, whose signature test_loss.py checks.
    monkeypatch.setattr(attention, "varlen_attn", lambda query, key, value, *_, **__: query + key + value)
    if device == GPU:
        monkeypatch.setattr(ParallelModel, "backward", without_backward)
    with torch.device("meta"):
        model = MairaForConditionalGeneration(config)
        training = MairaLossModel(model, kinds, weight, kernel, policy).train()
    prepare_blocks(training, train_config)
    with FakeTensorMode(allow_non_fake_inputs=True):
        training.to_empty(device=device)
        trainer = make_trainer(training, train_config, device)
        if statistics:
            finish: Any = lambda loss, *_: {"loss": loss}  # noqa: E731
            trainer.objective = SimpleNamespace(statistics=statistics, after_backward=finish)
        with Recorder(device) as recorder:
            result = trainer._compute_gradient(rows, 0.0, {})
            # At the end of the step.
            assert recorder.read == len(("answer", "patches", *statistics, "norm"))
            trainer._update(result)
        assert recorder.read == len(("answer", "patches", *statistics, "norm"))
        assert all(parameter.grad is None for parameter in training.parameters())
        states = [value for state in trainer.optimizer.state.values() for value in state.values()]
        assert {tensor.device for tensor in states} == {device}
    assert not recorder.elsewhere
    assert [*map(id, pinned)] == ([*map(id, moved)] if device == GPU else [])
    assert recorder.copies == ([True] * len(moved) if device == GPU else [])
