"""A training step on a GPU that exists only as the device of fake tensors: where tensors are, and what waits for it."""

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from packed_rows import KINDS, make_sample, pack
from tiny_runs import CASES, minimal_config
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.nn.attention import SDPBackend
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from maira.data.study import Study
from maira.generate.engine import EngineOptions, Response, Sampling, report_request
from maira.generate.transformers_engine import Prompt, TransformersEngine
from maira.model.config import MairaConfig
from maira.model.grammar import Grammar
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.model.task_examples import make_example
from maira.runtime import processes
from maira.runtime.processes import DistributedContext
from maira.train.attention import VARLEN
from maira.train.config.run_config import DpoConfig, GrpoConfig, TrainConfig
from maira.train.data.packing import PolicyTargets, StepTotals
from maira.train.loop import Trainer
from maira.train.loss import MairaLossModel
from maira.train.parallel import ParallelModel, init_distributed, make_optimizer, prepare_blocks
from maira.train.post.dpo import DpoLoss, DpoObjective
from maira.train.post.grpo import PolicyLoss, RolloutSampler

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
FLASH = int(SDPBackend.FLASH_ATTENTION)


class Recorder(TorchDispatchMode):
    """Counts the numbers that are read from tensors, copies, and other operations with tensors on other devices.

    Other operations that wait for a device, such as nonzero, are errors of fake tensors.
    """

    def __init__(self, device: torch.device, number: float = 1.0) -> None:
        super().__init__()
        self.device, self.read, self.number = device, 0, number
        self.elsewhere: Counter[str] = Counter()
        self.copies: list[bool] = []
        self.varlen: list[int] = []  # backends that torch chose

    def __torch_dispatch__(self, operation: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if operation is torch.ops.aten._local_scalar_dense.default:
            self.read += 1
            return self.number
        result = operation(*args, **kwargs)
        tensors = [result]
        if operation is torch.ops.aten._to_copy.default and args[0].device != result.device:
            self.copies.append(kwargs.get("non_blocking", False))
        else:
            tensors += [args, kwargs]
        # torch.utils.checkpoint makes tensors without elements.
        leaves = [leaf for leaf in pytree.tree_leaves(tensors) if isinstance(leaf, Tensor) and leaf.numel()]
        if any(leaf.device != self.device for leaf in leaves):
            self.elsewhere[str(operation)] += 1
        if operation.name() == "torch_attn::_varlen_attn":
            names = [argument.name for argument in operation._schema.arguments]
            self.varlen.append((dict(zip(names, args, strict=False)) | kwargs).get("backend", FLASH))
        return result


@pytest.fixture
def context(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Iterator[DistributedContext]:
    """The process of a run, whose GPU would be an H100 with a recent cuDNN."""
    monkeypatch.setattr("torch.nn.attention.varlen._should_use_cudnn", lambda _: True, raising=False)
    version = "torch.nn.attention.varlen._cudnn_version_and_major_capability"
    monkeypatch.setattr(version, lambda _: (92400, 9), raising=False)
    monkeypatch.setattr(processes, "_group", None)
    driver = {"is_available": lambda: device == GPU, "device_count": lambda: 1, "set_device": lambda _: None}
    with patch.multiple(torch.cuda, **driver):
        context = init_distributed()
    yield context
    torch.backends.cuda.enable_cudnn_sdp(True)


def make_trainer(training: MairaLossModel, train_config: TrainConfig, context: DistributedContext) -> Trainer:
    """A run of which only the model, the optimizer and the numbers for them are real."""
    trainer = object.__new__(Trainer)
    vars(trainer).update(
        config=train_config,
        context=context,
        model=ParallelModel(training, training, context, autocast=context.device == CPU),
        optimizer=make_optimizer(training, train_config),
        lr_factor=lambda _: 1.0,
        schedule=SimpleNamespace(steps_per_epoch=1),
        log=SimpleNamespace(count_row=lambda *_: None, log_step=lambda *_, **__: None),
        objective=None,
    )
    return trainer


def without_backward(model: ParallelModel, _loss: Tensor) -> None:
    """Gradients without the backward pass, which needs the driver of a GPU."""
    for parameter in model.training.parameters():
        parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None


@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
@pytest.mark.parametrize(("kernel", "checkpointing", "objective"), CASES["synchronization"])
def test_a_step_reads_its_losses_and_norm_only(
    kernel: str,
    checkpointing: str,
    objective: str | None,
    device: torch.device,
    context: DistributedContext,
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
        # Of one token that was forbidden in addition to the grammar.
        ones, banned = torch.ones(len(rows[0].answers)), torch.tensor([[0, 5]])
        targets = PolicyTargets(ones, torch.nan * ones, torch.nan * ones, torch.zeros_like(ones).long(), banned)
        rows = [replace(row, policy=replace(targets)) for row in rows]
        grammar = Grammar(processor.tokenizer, 2)
        policy = PolicyLoss(grammar, config.text_config.vocab_size, config.image_token_index, GrpoConfig())
        statistics = RolloutSampler.statistics
    elif objective == "dpo":
        rows = [replace(row, reference_log_probs=torch.zeros(2)) for row in rows]
        policy, statistics = DpoLoss(DpoConfig()), DpoObjective.statistics
    monkeypatch.setattr(config.text_config, "num_key_value_heads", 1)
    kinds, weight = (KINDS, 0.5) if policy is None else (0, 0.0)
    moved = [value for row in rows for part in (row, row.policy) if part for value in vars(part).values()]
    moved = [value for value in moved if isinstance(value, Tensor)]
    pinned: list[Tensor] = []
    # Pinning needs a GPU as well.
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)  # type: ignore[func-returns-value]
    attend, allowed = F.scaled_dot_product_attention, list[bool]()
    cudnn = torch.backends.cuda.cudnn_sdp_enabled
    spy: Any = lambda *args, **options: (allowed.append(cudnn()), attend(*args, **options))[1]  # noqa: E731
    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    if device == GPU:
        monkeypatch.setattr(ParallelModel, "backward", without_backward)
    with torch.device("meta"):
        model = MairaForConditionalGeneration(config)
        training = MairaLossModel(model, kinds, weight, kernel, policy).train().to(torch.bfloat16)
    prepare_blocks(training, train_config)
    with FakeTensorMode(allow_non_fake_inputs=True):
        training.to_empty(device=device)
        trainer = make_trainer(training, train_config, context)
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
    assert set(recorder.varlen) == ({FLASH} if kernel == VARLEN else set())
    assert set(allowed) == {device == CPU}
    assert [*map(id, pinned)] == ([*map(id, moved)] if device == GPU else [])
    assert recorder.copies == ([True] * len(moved) if device == GPU else [])


@pytest.mark.parametrize("variable", ["OTHER", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_memory_grows_in_segments_unless_the_user_configures_it(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "max_split_size_mb:512")
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    processes.use_gpu(GPU)
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    torch.backends.cuda.enable_cudnn_sdp(True)
    assert settings["expandable_segments"] == (variable == "OTHER")


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_generated_token_waits_for_the_device_once(
    config: MairaConfig, processor: MairaProcessor, studies: list[Study], monkeypatch: pytest.MonkeyPatch, cache: Any
) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)
    examples = [make_example(study, "grounded") for study in studies[:3]]
    requests = [replace(report_request(example, 9), sampling=Sampling(1.0, n)) for n, example in enumerate(examples)]
    requests += [report_request(example, 9) for example in examples]
    ids = [array("i", processor.encode_example(example)) for example in examples] * 2
    prompts = sorted(map(Prompt, range(6), requests, ids), key=lambda prompt: -len(prompt.ids))
    patches = (config.vision_config.image_size // config.vision_config.patch_size) ** 2
    with torch.device("meta"):
        model = MairaForConditionalGeneration(config)
    with FakeTensorMode(allow_non_fake_inputs=True):
        engine = TransformersEngine.from_model(model.to_empty(device=GPU), processor, EngineOptions(cache=cache))
        tokens = torch.empty(patches, config.vision_config.hidden_size, device=GPU)
        images = {image: tokens for each in examples for image in each.images}
        for _ in range(2):  # a static cache is made once
            with Recorder(GPU, number=0) as recorder:
                responses = engine._generate(prompts, images)
                engine._constraints._forbid(torch.empty(1, config.text_config.vocab_size, device=GPU), [(0, [5])])
    assert [len(response.ids) for response in responses if isinstance(response, Response)] == [9] * 6
    assert recorder.copies.count(False) == 9  # the tokens of a step; copies to the device wait for nothing
    assert "aten.index_put_.default" not in recorder.elsewhere
