"""Checkpoints of every layout: the logits of an independent assembly of transformers' parts, and refused if unfit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from error_checks import raises_code
from long_values import DATA
from peft import LoraConfig
from released import CONFIG, IMAGE_TOKEN, VISION, Assembly, in_transformers5, write_released
from safetensors import safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from maira.model.checkpoint import read_headers, release_names
from maira.model.config import MairaConfig
from maira.model.modeling import MairaForConditionalGeneration, expected_shapes
from radfact.errors import ErrorCode, InputError

TEXTS = (
    [1, 5, *[IMAGE_TOKEN] * 16, 8],
    [1, 7, 9, *[IMAGE_TOKEN] * 16, 11, *[IMAGE_TOKEN] * 16, 12, 13, 14],
    [1, *[IMAGE_TOKEN] * 32, 20, 21, *[IMAGE_TOKEN] * 16, 22],
)
"""Prompts with one, two and three images of 16 tokens."""


@pytest.fixture(scope="module")
def assembly() -> Assembly:
    return Assembly()


@pytest.fixture(scope="module")
def state(assembly: Assembly) -> dict[str, Tensor]:
    return assembly.on_disk()


@pytest.fixture(scope="module")
def folders(state: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same weights with the names of the release, both kinds of transformers 5's, and as we save them."""
    root = tmp_path_factory.mktemp("checkpoints")
    result = {
        "released": write_released(root / "released", state),
        "transformers5": write_released(root / "transformers5", in_transformers5(state)),
        "in memory": write_released(root / "in_memory", in_transformers5(state, in_memory_names=True)),
    }
    load(result["released"]).save_pretrained(root / "saved", max_shard_size="60KB")
    return result | {"saved": root / "saved"}


KINDS = ("released", "transformers5", "in memory", "saved")
Folders = dict[str, Path]
Images = list[Tensor]


@pytest.fixture(scope="module")
def pixels() -> Images:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(count, 3, 56, 56, generator=generator) for count in (1, 2, 3)]


def load(folder: Path, **options: Any) -> MairaForConditionalGeneration:
    model = MairaForConditionalGeneration.from_pretrained(folder, **options)
    assert isinstance(model, MairaForConditionalGeneration)
    return model


def content(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Type and bytes of every tensor of a folder."""
    result = {}
    for stored in read_headers(folder):
        with safe_open(stored.file, framework="pt") as handle:
            content = handle.get_tensor(stored.name).view(torch.uint8).numpy().tobytes()
        result[stored.name] = (stored.dtype, content)
    return result


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_logits_equal_the_assembly(folders: Folders, assembly: Assembly, pixels: Images, kind: str) -> None:
    model = load(folders[kind])
    for ids, images in zip(TEXTS, pixels, strict=True):
        result = model(input_ids=torch.tensor([ids]), pixel_values=images).logits[0]
        torch.testing.assert_close(result, assembly.logits(ids, images), atol=1e-5, rtol=0)


def test_generation_token_by_token_equals_the_assembly(folders: Folders, assembly: Assembly, pixels: Images) -> None:
    longest = max(map(len, TEXTS))
    ids = torch.tensor([[0] * (longest - len(text)) + text for text in TEXTS])
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long(), "pixel_values": torch.cat(pixels)}
    written = load(folders["released"]).generate(**inputs, max_new_tokens=16, do_sample=False, eos_token_id=None)
    for row, text, images in zip(written, TEXTS, pixels, strict=True):
        assert row[-16:].tolist() == assembly.greedy(text, images, 16)


def test_the_release_has_522_tensors() -> None:
    names = [name for ours in expected_shapes(MairaConfig()) for name in release_names(ours)]
    assert len(names) == len(set(names)) == 522


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@torch.no_grad()
def test_every_dtype_is_read_unchanged_or_converted_on_request(
    state: dict[str, Tensor], tmp_path: Path, pixels: Images, dtype: torch.dtype
) -> None:
    name = str(dtype).removeprefix("torch.")
    stored = {key: tensor.to(dtype) for key, tensor in state.items()}
    folder = write_released(tmp_path, stored, CONFIG | {"torch_dtype": name})
    model = load(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert model(input_ids=torch.tensor([TEXTS[0]]), pixel_values=pixels[0]).logits.isfinite().all()
    assert {parameter.dtype for parameter in load(folder, dtype=torch.float32).parameters()} == {torch.float32}


def test_offloaded_models_run_and_are_saved(
    folders: Folders, assembly: Assembly, pixels: Images, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"device_map": "auto", "max_memory": {"cpu": 200_000}, "offload_folder": tmp_path / "off"}
    model = load(folders["released"], **options)
    assert set(model.hf_device_map.values()) == {"cpu", "disk"}
    with torch.no_grad():
        result = model(input_ids=torch.tensor([TEXTS[2]]), pixel_values=pixels[2]).logits[0]
    torch.testing.assert_close(result, assembly.logits(TEXTS[2], pixels[2]), atol=1e-5, rtol=0)
    model.save_pretrained(tmp_path / "saved")
    assert content(tmp_path / "saved") == content(folders["released"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_saved_as_the_release(folders: Folders, tmp_path: Path, kind: str) -> None:
    load(folders[kind]).save_pretrained(tmp_path)
    assert content(tmp_path) == content(folders["released"])
    config = json.loads((tmp_path / "config.json").read_text())
    assert "auto_map" not in config
    vision = {name: config["vision_config"][name] for name in VISION.keys() - {"reshape_hidden_states"}}
    assert vision.items() <= VISION.items()
    assert config["text_config"]["rope_scaling"]["factor"] == 1.5
    same = ("architectures", "model_type", "image_seq_length", "vision_feature_layer", "torch_dtype")
    assert [config[name] for name in same] == [CONFIG[name] for name in same]


def test_adapters_are_saved_and_read_as_by_transformers(folders: Folders, tmp_path: Path) -> None:
    model = load(folders["released"])
    model.add_adapter(LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    model.save_pretrained(tmp_path)
    again = load(folders["released"])
    again.load_adapter(tmp_path)
    expected = {name: tensor for name, tensor in model.state_dict().items() if ".lora_" in name}
    assert len(expected) == 4
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in expected.items())


def test_vocabulary_and_head_are_resized_together(folders: Folders, pixels: Images, tmp_path: Path) -> None:
    model = load(folders["released"])
    rows = model.get_input_embeddings().weight.shape[0]
    model.resize_token_embeddings(rows + 3)
    model.save_pretrained(tmp_path)
    wider = load(tmp_path)
    assert wider.config.text_config.vocab_size == rows + 3
    assert wider(input_ids=torch.tensor([TEXTS[0]]), pixel_values=pixels[0]).logits.shape[-1] == rows + 3


@pytest.mark.parametrize("kind", ["released", "transformers5"])
def test_missing_unexpected_and_reshaped_tensors_are_errors(
    state: dict[str, Tensor], folders: Folders, tmp_path: Path, kind: str
) -> None:
    """The key and the value are parts of a fused projection in memory."""
    tensors = {"released": state, "transformers5": in_transformers5(state)}[kind]
    attention = "layer.0.attention.attention"
    lost = ("layers.1.mlp.up_proj.weight", f"{attention}.key.weight", f"{attention}.value.weight")
    wrong = {name: tensor for name, tensor in tensors.items() if not name.endswith(lost)}
    wrong["vision_tower.pooler.weight"] = torch.zeros(3)
    cut = next(name for name in tensors if name.endswith("layers.4.bias"))
    wrong[cut] = torch.zeros(31)
    folder = write_released(tmp_path, wrong, json.loads((folders[kind] / "config.json").read_text()))
    with pytest.raises(InputError) as caught:
        load(folder)
    message = str(caught.value)
    encoder = f"vision_tower.encoder.{attention}"
    missing = (f"{encoder}.key.weight", f"{encoder}.value.weight", "language_model.model.layers.1.mlp.up_proj.weight")
    assert {*message.partition("missing: ")[2].partition(";")[0].split(", ")} == {*missing}
    assert "unexpected: vision_tower.pooler.weight;" in message
    assert message.endswith("layers.4.bias (expected [32], found [31])")


def test_loading_faults_reported_by_transformers_are_errors(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a version of transformers that does not rename as requested would leave random weights."""
    monkeypatch.setattr("maira.model.modeling.CheckpointWeights", lambda *_: None)
    config = MairaConfig.from_pretrained(folders["released"])
    config.projector_n_layers = 5
    with pytest.raises(InputError, match=r"missing: model\.multi_modal_projector\.layers\.8\.bias"):
        load(folders["released"], config=config)


@pytest.mark.parametrize(("change", "message"), DATA["configurations of another model"])
def test_a_configuration_of_another_model_is_refused(change: dict[str, Any], message: str) -> None:
    vision = VISION | change.get("vision_config", {})
    with pytest.raises(ValueError, match=message):
        MairaConfig(**{k: v for k, v in (CONFIG | change).items() if k != "model_type"} | {"vision_config": vision})


@pytest.mark.parametrize("size", [None, 100])
def test_a_missing_or_damaged_shard_is_named(state: dict[str, Tensor], tmp_path: Path, size: int | None) -> None:
    folder = write_released(tmp_path / "in", state)
    (shard,) = folder.glob("model-00002*")
    if size is None:
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:size])
    with raises_code(ErrorCode.FILE_NOT_FOUND if size is None else ErrorCode.FILE_UNREADABLE, file=shard):
        load(folder)


@pytest.mark.parametrize("auto_class", [AutoModelForCausalLM, AutoModelForImageTextToText])
def test_the_auto_classes_read_the_release_without_its_code(folders: Folders, auto_class: Any) -> None:
    """Its configuration names `configuration_maira2.py`, which the folder does not have."""
    model = auto_class.from_pretrained(folders["released"], trust_remote_code=True)
    assert type(model) is MairaForConditionalGeneration
