"""The parts of a model in training: dtypes, gradients and saved weights; low-rank adapters and their merging."""

import copy
import json
import shutil
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packed_rows import gradients, make_sample, pack
from peft import PeftModel
from safetensors.torch import load_file
from tiny_runs import CASES, minimal_config
from transformers import LlamaConfig, LlamaForCausalLM

from maira.generate.vllm_parts import write_settings
from maira.model.config import MairaConfig
from maira.model.modeling import MODULES, MairaForConditionalGeneration, modules_of
from maira.model.processor import MairaProcessor
from maira.model.tokens import ADDED_TOKENS
from maira.runtime.processes import DistributedContext
from maira.train.components import check_context, load_model, set_trainable, write_checkpoint
from maira.train.config.run_config import TrainConfig
from maira.train.data.packing import SAMPLE_LENGTHS
from maira.train.loss import MairaLossModel
from maira.train.parallel import make_optimizer
from maira.train.post.rollout_engine import language_model_layers
from radfact.errors import InputError

HERE = DistributedContext(0, 1, torch.device("cpu"))
LORA = {"rank": 4, "alpha": 8, "targets": ["q_proj", "down_proj"]}


def make_config(model: Path, **options: Any) -> TrainConfig:
    return minimal_config(**{"model": model, "precision": "no"} | options)


@pytest.mark.parametrize("trained", CASES["trained parts"], ids=len)
def test_only_trained_parts_receive_gradients(checkpoint: Path, config: MairaConfig, trained: list[str]) -> None:
    model, _ = load_model(train_config := make_config(checkpoint, trained=trained), [])
    set_trainable(model, train_config)
    model.train()
    assert model.model.vision_tower.training == ("encoder" in trained)
    row = pack([make_sample(config, 2, 5, 6, seed=1)])
    MairaLossModel(model, 0, 0.0)(row).answer.backward()
    named_gradients = gradients(model)
    assert {part for part, names in MODULES.items() for name in named_gradients if name.startswith(names)} == {*trained}
    assert set(named_gradients) == {name for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize(("options", "halved"), CASES["halved parts"])
@pytest.mark.parametrize("empty", [False, True], ids=["read", "empty"])
def test_each_part_has_its_dtype(checkpoint: Path, options: Any, halved: list[str], empty: bool) -> None:
    model, _ = load_model(make_config(checkpoint, **options), [], empty=empty)
    for part in MODULES:
        dtypes = {parameter.dtype for module in modules_of(model, part) for parameter in module.parameters()}
        assert dtypes == {torch.bfloat16 if part in halved else torch.float32}, part


def test_frozen_weights_are_saved_unchanged(checkpoint: Path, tmp_path: Path) -> None:
    model, processor = load_model(train_config := make_config(checkpoint, precision="bf16", trained=["adapter"]), [])
    set_trainable(model, train_config)
    with torch.no_grad():
        for parameter in model.model.multi_modal_projector.parameters():
            parameter.add_(1)
    write_checkpoint(model, processor, train_config, HERE, tmp_path / "checkpoint")
    before, after = (load_file(folder / "model.safetensors") for folder in (checkpoint, tmp_path / "checkpoint"))
    for name, weight in before.items():
        assert torch.equal(after[name], weight + 1 if name.startswith("multi_modal_projector.") else weight), name


def test_a_sample_that_exceeds_the_context_window_is_named() -> None:
    config = MairaConfig()
    table = np.zeros(3, SAMPLE_LENGTHS)
    table["prompt"], table["answer"] = [100, 6000, 50], 144
    check_context(table, config, str)
    table["answer"][1] += 1
    with pytest.raises(InputError, match=r"6144 tokens.*6145 tokens in sample '1'"):
        check_context(table, config, str)


Trained = tuple[MairaForConditionalGeneration, MairaProcessor, float]


def trained(train_config: TrainConfig, config: MairaConfig, answer: list[int] | None = None) -> Trained:
    """Return a model after three steps, its processor and its loss on the training answer."""
    model, processor = load_model(train_config, [])
    torch.manual_seed(0)
    set_trainable(model, train_config)
    training = MairaLossModel(model, 0, 0.0).to("cpu")
    optimizer = make_optimizer(training, train_config)
    samples = [make_sample(config, 1, 5, 8, seed=i) for i in range(2)]
    if answer:
        samples = [replace(one, input_ids=[*one.input_ids[: one.prompt_tokens], *answer, 2]) for one in samples]
    row = pack(samples)
    for _ in range(3):
        training(row).total(row.totals, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        training.eval()
        return model, processor, training(row).total(row.totals, 0).item()


def loss_of(model: MairaForConditionalGeneration, config: MairaConfig) -> float:
    """Of the same samples."""
    row = pack([make_sample(config, 1, 5, 8, seed=i) for i in range(2)])
    with torch.no_grad():
        return MairaLossModel(model.eval(), 0, 0.0)(row).total(row.totals, 0).item()


def test_only_adapters_of_the_targets_are_trained(checkpoint: Path) -> None:
    model, _ = load_model(train_config := make_config(checkpoint, lora=LORA), [])
    with pytest.raises(InputError, match=r"no layer 'query'; there are down_proj, "):
        set_trainable(model, make_config(checkpoint, lora={"targets": ["query"]}))
    set_trainable(model, train_config)
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    language = {name for name in names if name.startswith(("model.language_model.", "lm_head."))}
    adapters = {name for name in language if ".lora_" in name}
    assert {name.split(".")[-4] for name in adapters} == {"q_proj", "down_proj"}
    assert len(adapters) == 2 * 2 * 2
    tokens = {name.split(".token_adapter.")[0] for name in language - adapters}
    assert tokens == {"model.language_model.embed_tokens", "lm_head"}
    assert {name.split(".")[1] for name in names - language} == {"multi_modal_projector"}


@pytest.mark.parametrize("quantize", [None, "nf4"])
def test_a_newly_assembled_model_learns_its_tokens(
    quantize: str | None, model: Any, config: MairaConfig, processor: Any, tmp_path: Path
) -> None:
    """All of which are embedded alike at the start; the rows of the language model's own tokens stay as they were."""
    if quantize:
        pytest.importorskip("bitsandbytes")
    ids = processor.tokenizer.convert_tokens_to_ids(list(ADDED_TOKENS))
    fresh = copy.deepcopy(model)
    layers = "model.embed_tokens.weight", "lm_head.weight"
    with torch.no_grad():
        for layer in layers:
            weight = fresh.get_parameter(layer.replace("model.", "model.language_model."))
            weight[ids] = weight.mean(0)
    fresh.save_pretrained(tmp_path / "fresh")
    processor.save_pretrained(tmp_path / "fresh")
    lora = {"rank": 4, "quantize": quantize}
    train_config = make_config(tmp_path / "fresh", lora=lora, learning_rate=0.05)
    learnt, _, _ = trained(train_config, config, [ids[3], ids[5]])
    write_checkpoint(learnt, processor, train_config, HERE, tmp_path / "checkpoint")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("fresh", "checkpoint"))
    for layer in layers:
        old, new = (weights[f"language_model.{layer}"] for weights in (before, after))
        assert not torch.equal(new[ids[3]], new[ids[5]])
        assert torch.equal(old[: ids[0]], new[: ids[0]])
        assert torch.equal(old[ids[-1] + 1 :], new[ids[-1] + 1 :])


def test_misplaced_format_tokens_are_an_error(checkpoint: Path, tmp_path: Path) -> None:
    """Of a checkpoint of another's making; other rows would be trained in their stead."""
    copied = tmp_path / "other"
    shutil.copytree(checkpoint, copied)
    names = json.loads((copied / "config.json").read_text(encoding="utf-8"))
    (copied / "config.json").write_text(json.dumps(names | {"image_token_index": 250}), encoding="utf-8")
    with pytest.raises(InputError, match=r"<obj> to </box> do not stand in order before <image>"):
        load_model(make_config(copied, lora=LORA), [])


def test_checkpoint_and_engine_get_the_trained_model(config: MairaConfig, checkpoint: Path, tmp_path: Path) -> None:
    model, processor, loss = trained(train_config := make_config(checkpoint, lora=LORA, learning_rate=0.05), config)
    write_checkpoint(model, processor, train_config, HERE, tmp_path / "checkpoint")
    merged = MairaForConditionalGeneration.from_pretrained(tmp_path / "checkpoint")
    start = MairaForConditionalGeneration.from_pretrained(checkpoint)
    assert loss_of(merged, config) == pytest.approx(loss, rel=1e-4)
    assert loss_of(start, config) != pytest.approx(loss, rel=0.05)
    write_settings(tmp_path, config.text_config, processor.tokenizer, [2], torch.float32)
    embeddings = torch.randn(1, 7, config.text_config.hidden_size, generator=torch.Generator().manual_seed(0))
    llama = LlamaForCausalLM(LlamaConfig.from_pretrained(tmp_path))
    for trained_model, options in ((start, None), (model, train_config.lora)):
        layers = [*language_model_layers(trained_model, options)]
        assert len(layers) == config.text_config.num_hidden_layers + 3
        llama.load_state_dict(dict(chain(*layers)))
        with torch.no_grad():
            logits = llama(inputs_embeds=embeddings).logits
            expected = trained_model(inputs_embeds=embeddings).logits
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
        assert torch.equal(llama.lm_head.weight, start.lm_head.weight) == (options is None)
    adapted = PeftModel.from_pretrained(start, tmp_path / "checkpoint" / "lora").merge_and_unload()
    for name, weight in merged.state_dict().items():
        if "multi_modal_projector" not in name:
            torch.testing.assert_close(adapted.state_dict()[name], weight, atol=1e-5, rtol=1e-5)
    settings = json.loads((tmp_path / "checkpoint" / "lora" / "adapter_config.json").read_text(encoding="utf-8"))
    assert (settings["r"], settings["lora_alpha"]) == (4, 8)


def test_four_bit_adapters_are_merged_into_full_weights(config: MairaConfig, checkpoint: Path, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    lora = {"rank": 4, "alpha": 8, "quantize": "nf4", "targets": ["q_proj"]}
    model, processor, loss = trained(train_config := make_config(checkpoint, lora=lora, learning_rate=0.05), config)
    assert model.model.language_model.layers[0].mlp.up_proj.weight.dtype == torch.uint8
    write_checkpoint(model, processor, train_config, HERE, tmp_path / "checkpoint")
    before, after = (load_file(folder / "model.safetensors") for folder in (checkpoint, tmp_path / "checkpoint"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    unfrozen = {name for name in changed if name.startswith("multi_modal_projector.")}
    # No sample has any of the added tokens for an input.
    assert {name.split(".")[-2] for name in changed - unfrozen} == {"q_proj", "lm_head"}
    merged = MairaForConditionalGeneration.from_pretrained(tmp_path / "checkpoint")
    # Rounding to 4 bits is all the difference.
    assert loss_of(merged, config) == pytest.approx(loss, rel=0.2)
