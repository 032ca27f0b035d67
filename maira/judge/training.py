"""Training of a causal language model as a judge, by the loop of `maira.train`."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from maira.judge.dataset import NO_IMAGES, ChatDataset, open_chat_dataset
from maira.judge.run_config import JudgeTrainConfig
from maira.model.checkpoint import checkpoint_folder, fingerprint
from maira.model.grammar import end_ids
from maira.model.weight_index import check_indexes
from maira.runtime.processes import DistributedContext
from maira.train import attention, lora
from maira.train.components import check_context, gather_weights, weight_dtype
from maira.train.data.packing import EncodedSample, PackedBatch, StepTotals, collate
from maira.train.logging import MetricsLogger
from maira.train.loop import TrainingSetup, attention_kernel
from maira.train.loss import Losses, PackedLossModel, answer_losses
from maira.train.parallel import main_process_first, sharding
from maira.train.validation import Validator
from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.download import file_sha256
from radfact.io.hub import first_line

_LAYOUT = ("intermediate_size", "num_key_value_heads", "max_position_embeddings", "rope_parameters")
"""Fields of a Llama's configuration that those of other causal language models may lack."""
_TOLERANCE = 2e-2
"""Maximum difference of the same hidden states computed in two ways, as a share of their standard deviation."""


class JudgeLossModel(PackedLossModel):
    """A causal language model (`AutoModelForCausalLM`) with its training losses."""

    def __init__(self, model: Any, kernel: str = attention.SAMPLES) -> None:
        super().__init__()
        self.model, self.kernel = model, kernel
        attention.register_kernels()
        model.set_attn_implementation(kernel)

    def forward(self, batch: PackedBatch) -> Losses:
        return answer_losses(self.hidden_states(batch), self.model.get_output_embeddings(), batch)

    def hidden_states(self, batch: PackedBatch) -> Tensor:
        """Return the hidden states of a packed row, (1, tokens, width)."""
        inputs = {"input_ids": batch.input_ids, "position_ids": batch.position_ids, "use_cache": False}
        outputs = self.model.base_model(**inputs, **attention.packed_kwargs(self.kernel, batch))
        states: Tensor = outputs.last_hidden_state
        return states


def setup_judge_training(config: JudgeTrainConfig, context: DistributedContext, console: Console) -> TrainingSetup:
    del console
    tokenizer = _load_tokenizer(config.model)
    model = _load_model(config, empty=not context.is_main and sharding(config, context) == "fsdp")
    ends = stops(model, tokenizer)
    open_conversations = partial(open_chat_dataset, config, config.train, tokenizer, ends)
    dataset = main_process_first(context, "reading conversations", open_conversations)
    check_context(dataset.table, model.config, dataset.sample_id)
    _check_window(model.config, dataset)
    training = JudgeLossModel(model, attention_kernel(config, context))
    if config.lora:
        model.requires_grad_(False)
        lora.add(model, config.lora, torch.bfloat16 if config.weights == "bfloat16" else torch.float32)

    def make_validator(log: MetricsLogger, steps: int) -> Validator:
        held_out = open_chat_dataset(config, config.validation.sources, tokenizer, ends)
        return Validator(config, held_out, context, log, steps)

    origin: dict[str, Any] = {}
    if context.is_main:
        origin = {"model": fingerprint(config.model), "train": [file_sha256(source.file) for source in config.train]}
    return TrainingSetup(
        training,
        dataset,
        partial(write_judge, model, config, context),
        only_trained=True,
        origin=origin,
        make_validator=make_validator if config.validation.sources else None,
    )


def stops(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the stop tokens of a model, as servers read them from its folder."""
    return end_ids(tokenizer, getattr(model.generation_config, "eos_token_id", None)) - {None}


def write_judge(model: Any, config: JudgeTrainConfig, context: DistributedContext, folder: Path) -> None:
    """Write a judge as a folder that transformers and vLLM read; adapters are merged, and also saved to `lora/`."""
    weights = gather_weights(model, only_trained=True)
    if context.is_main:
        with checkpoint_folder(folder) as temporary:
            _write(config, weights, temporary)
    context.wait()


def _write(config: JudgeTrainConfig, weights: dict[str, Tensor], folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(config.model, dtype=torch.float32)
    merged = dict(lora.merged(model.state_dict().items(), weights, config.lora)) if config.lora else weights
    layers = {name.removesuffix(".weight") for name in model.state_dict()}
    trained = lora.low_rank(weights) if config.lora else weights
    if unknown := [name for name in trained if name.removesuffix(".weight") not in layers]:
        raise RunError(f"the model has no weight {unknown[0]}; {len(unknown)} trained weights would be lost")
    model.load_state_dict(merged, strict=False)
    model.to(getattr(torch, config.checkpoint_dtype)).save_pretrained(folder)
    # The tokenizer's files with the chat template, and all that a server reads.
    for file in sorted(config.model.iterdir()):
        is_copied = file.suffix in (".json", ".jinja", ".model", ".txt") and not file.name.endswith(".index.json")
        if is_copied and file.is_file() and not (folder / file.name).exists():
            shutil.copyfile(file, folder / file.name)
    if config.lora:
        lora.save_adapter(weights, config.lora, folder / "lora")


def _load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    if not (folder / "config.json").is_file():
        message = "expected a language model, found no config.json"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=folder, field="model")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # tokenizers raises nothing narrower
        message = f"the tokenizer cannot be read: {first_line(error)}"
        raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=folder, field="model") from None
    if not tokenizer.chat_template:
        message = "the tokenizer has no chat template; use a chat model"
        raise InputError(message, code=ErrorCode.MISSING_REQUIREMENT, file=folder, field="model")
    return tokenizer


def _load_model(config: JudgeTrainConfig, *, empty: bool) -> Any:
    """Load a model in the type of its weights, and check that it can be trained; an `empty` one has only shapes."""
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM

    check_indexes(config.model)
    dtype = weight_dtype(config, "language_model")
    try:
        if empty:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config.model), dtype=dtype)
        else:
            model = AutoModelForCausalLM.from_pretrained(config.model, dtype=dtype)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        message = f"not a causal language model: {first_line(error)}"
        raise InputError(message, file=config.model, field="model") from None
    if not empty:
        check_packing(model, config.model)
    # FLOPs and the context window are computed from these fields.
    if missing := [name for name in _LAYOUT if not hasattr(model.config, name)]:
        found = f"found a {type(model).__name__} with no {' and no '.join(missing)}"
        raise InputError(f"expected a model with a Llama's configuration, {found}", file=config.model, field="model")
    return model


def check_packing(model: Any, folder: Path) -> None:
    """Check that a model keeps the samples of a packed row apart, by computing two short ones together and alone."""
    ids = (torch.arange(12) % model.config.vocab_size).tolist()
    samples = [EncodedSample("", "vert", part, len(part), NO_IMAGES) for part in (ids[:5], ids[5:])]
    before = model.config._attn_implementation
    judge = JudgeLossModel(model.eval(), attention.SAMPLES)
    try:
        with torch.no_grad():
            together = judge.hidden_states(collate(samples, StepTotals(1, 1), 0))[0].float()
            alone = [model.base_model(input_ids=torch.tensor([part.input_ids])) for part in samples]
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"a {type(model).__name__} does not read packed rows: {first_line(error)}"
        raise InputError(message, file=folder, field="model") from None
    finally:
        model.set_attn_implementation(before)
    apart = torch.cat([output.last_hidden_state[0] for output in alone]).float()
    if not (together - apart).abs().max() <= _TOLERANCE * apart.std():
        message = f"a {type(model).__name__} does not keep the samples of a packed row apart"
        raise InputError(message, file=folder, field="model")


def _check_window(model_config: Any, dataset: ChatDataset) -> None:
    """Refuse samples longer than a model's sliding window, since the kernels attend to all of a sample."""
    layers = getattr(model_config, "layer_types", None) or ()
    window = getattr(model_config, "sliding_window", None)
    if window is None or (layers and "sliding_attention" not in layers):
        return
    longest = int((dataset.table["prompt"].astype(int) + dataset.table["answer"]).max())
    if longest > window:
        message = f"the model has a sliding window of {window} tokens, but the longest sample has {longest}"
        raise InputError(f"{message}; exclude longer samples", field="model")
