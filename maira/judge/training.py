"""A causal language model trained as a judge, by the loop of `maira.train`."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from maira.judge.dataset import ChatDataset, open_chat_dataset
from maira.judge.run_config import JudgeTrainConfig, check_folder
from maira.model.checkpoint import fingerprint
from maira.train import attention, lora
from maira.train.components import weight_dtype
from maira.train.data.packing import PackedBatch, StepTotals
from maira.train.export import atomic_folder, gather_weights
from maira.train.logging import MetricsLogger
from maira.train.loop import TrainingSetup, attention_kernel, main_process_first, run_training
from maira.train.loss import Losses, PackedLossModel, answer_losses
from maira.train.parallel import DistributedContext, sharding
from maira.train.validation import Validator
from radfact.errors import InputError, RunError

_LAYOUT = ("intermediate_size", "num_key_value_heads", "max_position_embeddings", "rope_parameters")
"""Of the configuration of a Llama, what that of other causal language models may lack."""
_ALIKE = 2e-2
"""Most difference of logits that two ways to the same sum may have, as a share of their spread."""


class JudgeLossModel(PackedLossModel):
    """A causal language model that reads packed rows of conversations and returns the losses of their answers.

    Args:
        model: `AutoModelForCausalLM`.
        kernel: name of the attention within samples (`attention.choose`).
    """

    def __init__(self, model: Any, kernel: str = attention.SAMPLES) -> None:
        super().__init__()
        self.model, self.kernel = model, kernel
        attention.register()
        model.set_attn_implementation(kernel)

    def forward(self, batch: PackedBatch) -> Losses:
        """Losses of a packed row."""
        # (1, tokens, width)
        hidden = self.model.base_model(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            use_cache=False,
            **attention.packed(self.kernel, batch),
        ).last_hidden_state
        return answer_losses(hidden, self.model.get_output_embeddings(), batch)


def train_judge(config: JudgeTrainConfig, console: Console | None = None) -> Path:
    """Run a recipe of a judge to its end, from where it stopped if it was started before; returns the model's folder.

    Raises:
        InputError: the recipe, the model or a sample cannot be used, or the folder holds a run of another recipe.
        RunError: a fault of a step ended the run, it was told to stop (SIGTERM, Ctrl-C), or its end could not be
            saved.
    """
    return run_training(config, setup_judge_training, console)


def setup_judge_training(config: JudgeTrainConfig, context: DistributedContext, console: Console) -> TrainingSetup:
    """What a run of a judge begins with.

    Raises:
        InputError: the model or a sample cannot be used.
    """
    del console
    check_folder(config.model)
    tokenizer = _tokenizer(config.model)
    model = _load(config, empty=not context.is_main and sharding(config, context) == "fsdp")
    ends = stops(model, tokenizer)
    _check_layout(model, config.model)
    dataset = main_process_first(
        context,
        "reading conversations",
        lambda on_progress: open_chat_dataset(config, config.train, tokenizer, ends, on_progress),
    )
    _check_window(model.config, dataset)
    training = JudgeLossModel(model, attention_kernel(config, context))
    if config.lora:
        model.requires_grad_(False)
        lora.add(model, config.lora, torch.bfloat16 if config.weights == "bfloat16" else torch.float32)

    def make_validator(log: MetricsLogger, steps: int) -> Validator:
        return Validator(
            config, open_chat_dataset(config, config.validation.sources, tokenizer, ends), context, log, steps
        )

    return TrainingSetup(
        training,
        dataset,
        model.config,
        lambda folder: write_judge(model, config, context, folder),
        only_trained=True,
        origin={"model": fingerprint(config.model)} if context.is_main else {},
        make_validator=make_validator if config.validation.sources else None,
    )


def stops(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens at which a model stops to write, as servers read them from its folder."""
    known = getattr(model.generation_config, "eos_token_id", None)
    listed = known if isinstance(known, list) else [known]
    return frozenset(token for token in (*listed, tokenizer.eos_token_id) if token is not None)


def write_judge(model: Any, config: JudgeTrainConfig, context: DistributedContext, folder: Path) -> None:
    """Write a judge as a folder that transformers and vLLM read; all processes call this.

    Low-rank adapters are merged into the weights that the run started from, read anew in float32, and stand in `lora/`
    by themselves too.

    Args:
        model: in training, perhaps sharded.
        config: of the run.
        context: of the run.
        folder: to write to; one that is there is replaced.

    Raises:
        RunError: a trained weight has no place in the model.
    """
    weights = gather_weights(model, only_trained=True)
    if context.is_main:
        with atomic_folder(folder) as fresh:
            _write(config, weights, fresh)
    context.wait()


def _write(config: JudgeTrainConfig, weights: dict[str, Tensor], folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    whole = AutoModelForCausalLM.from_pretrained(config.model, dtype=torch.float32)
    own = dict(lora.merged(whole.state_dict().items(), weights, config.lora)) if config.lora else weights
    _check_places(lora.low_rank(weights) if config.lora else weights, whole)
    whole.load_state_dict(own, strict=False)
    whole.to(getattr(torch, config.checkpoint_dtype))
    whole.save_pretrained(folder)
    # The tokenizer's files as they are: with them the template, and all that a server reads.
    for file in sorted(config.model.iterdir()):
        if (
            file.is_file()
            and not (folder / file.name).exists()
            and file.suffix in (".json", ".jinja", ".model", ".txt")
        ):
            if file.name.endswith(".index.json"):
                continue
            shutil.copyfile(file, folder / file.name)
    if config.lora:
        lora.save_adapter(weights, config.lora, folder / "lora")


def _check_places(trained: Iterable[str], whole: Any) -> None:
    """See to it that a model has all weights, or layers with adapters, that were trained: others would be lost."""
    there = {name.removesuffix(".weight") for name in whole.state_dict()}
    strange = [name for name in trained if name.removesuffix(".weight") not in there]
    if strange:
        raise RunError(f"the model read anew has no {strange[0]}; {len(strange)} trained weights would be lost")


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise InputError(f"its tokenizer cannot be read: {_first_line(error)}", file=folder, field="model") from None
    if not tokenizer.chat_template:
        raise InputError("the tokenizer has no chat template; give a model tuned to chat", file=folder, field="model")
    return tokenizer


def _load(config: JudgeTrainConfig, *, empty: bool) -> Any:
    """The model in the type that it is held in; of an `empty` one names and shapes alone.

    Raises:
        InputError: it is no causal language model, or does not keep the samples of a row apart.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    dtype = weight_dtype(config, "language_model")
    try:
        if empty:
            with torch.device("meta"):
                return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config.model), dtype=dtype)
        model = AutoModelForCausalLM.from_pretrained(config.model, dtype=dtype)
    except (OSError, ValueError) as error:
        raise InputError(f"no causal language model: {_first_line(error)}", file=config.model, field="model") from None
    check_packing(model, config.model)
    return model


def _check_layout(model: Any, folder: Path) -> None:
    """See to it that a configuration says what a Llama's does: the costs and the longest sample are taken from it."""
    if missing := [name for name in _LAYOUT if not hasattr(model.config, name)]:
        raise InputError(
            f"a {type(model).__name__} is not laid out as Llama: its configuration has no {' and no '.join(missing)}",
            file=folder,
            field="model",
        )


def check_packing(model: Any, folder: Path) -> None:
    """See to it that a model keeps the samples of a packed row apart, by running two short ones both ways.

    Raises:
        InputError: it does not.
    """
    lengths = torch.tensor([0, 5, 12], dtype=torch.int32)
    ids = (torch.arange(12) % model.config.vocab_size)[None]
    positions = torch.cat([torch.arange(5), torch.arange(7)])[None]
    nothing = torch.zeros(0, dtype=torch.long)
    row: Any = PackedBatch(
        ids,
        positions,
        lengths,
        7,
        nothing,
        nothing,
        nothing,
        torch.zeros(0),
        nothing,
        None,
        (),
        (),
        totals=StepTotals(0, 0),
    )
    before = model.config._attn_implementation
    judge = JudgeLossModel(model.eval(), attention.SAMPLES)
    try:
        with torch.no_grad():
            collective_section = judge.model.base_model(
                input_ids=ids, position_ids=positions, use_cache=False, **attention.packed(attention.SAMPLES, row)
            ).last_hidden_state[0]
            apart = [judge.model.base_model(input_ids=part).last_hidden_state[0] for part in (ids[:, :5], ids[:, 5:])]
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"a {type(model).__name__} does not read packed rows: {_first_line(error)}", file=folder, field="model"
        ) from None
    finally:
        model.set_attn_implementation(before)
    alone = torch.cat(apart).float()
    if not (collective_section.float() - alone).abs().max() <= _ALIKE * alone.std():
        raise InputError(
            f"a {type(model).__name__} does not keep the samples of a packed row apart", file=folder, field="model"
        )


def _check_window(model_config: Any, dataset: ChatDataset) -> None:
    """Attention within samples is causal and sees all of a sample; a model with a sliding window must not need it."""
    layers = getattr(model_config, "layer_types", None) or ()
    window = getattr(model_config, "sliding_window", None)
    if window is None or (layers and "sliding_attention" not in layers):
        return
    longest = int((dataset.table["prompt"].astype(int) + dataset.table["answer"]).max())
    if longest > window:
        raise InputError(
            f"the model looks back {window} tokens, but the longest sample has {longest}; leave out what is longer",
            field="model",
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
