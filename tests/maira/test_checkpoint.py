"""Checkpoints of every layout: the logits of an independent assembly of transformers' parts, and refused if unfit."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from error_checks import raises_code
from released import CONFIG, IMAGE_TOKEN, TEXT, VISION, Assembly, in_transformers5, write_released
from safetensors import safe_open
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner, Result

from maira.cli.main import app
from maira.model.checkpoint import LAYOUTS, Layout, detect_layout, fold_layers, names_for_layout, own_name, read_headers
from maira.model.config import MairaConfig
from maira.model.convert import convert
from maira.model.modeling import MairaForConditionalGeneration, expected_shapes
from maira.model.processor import pad
from maira.model.tokens import add_tokens
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
    """The same weights in the released layout, both ways of transformers 5's, and our own."""
    root = tmp_path_factory.mktemp("checkpoints")
    result = {
        "released": write_released(root / "released", state),
        "transformers5": write_released(root / "transformers5", in_transformers5(state)),
        "in memory": write_released(root / "in_memory", in_transformers5(state, in_memory_names=True)),
    }
    convert(result["released"], root / "own", "own", shard_size="60KB")
    return result | {"own": root / "own"}


KINDS = ("released", "transformers5", "in memory", "own")


@pytest.fixture(scope="module")
def pixels() -> list[Tensor]:
    """The images of each prompt."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(count, 3, 56, 56, generator=generator) for count in (1, 2, 3)]


def load(folder: Path, **options: Any) -> MairaForConditionalGeneration:
    model = MairaForConditionalGeneration.from_pretrained(folder, **options)
    assert isinstance(model, MairaForConditionalGeneration)
    return model


def batch(pixels: list[Tensor]) -> dict[str, Tensor]:
    ids, mask = pad(TEXTS, 0, left=True)
    return {"input_ids": ids, "attention_mask": mask, "pixel_values": torch.cat(pixels)}


def content(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Type and bytes of every tensor of a folder."""
    result = {}
    for name, place in read_headers(folder).items():
        with safe_open(place.file, framework="pt") as handle:
            result[name] = (place.dtype, handle.get_tensor(name).view(torch.uint8).numpy().tobytes())
    return result


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_logits_equal_the_assembly(
    folders: dict[str, Path], assembly: Assembly, pixels: list[Tensor], kind: str
) -> None:
    model = load(folders[kind])
    for ids, images in zip(TEXTS, pixels, strict=True):
        result = model(input_ids=torch.tensor([ids]), pixel_values=images).logits[0]
        torch.testing.assert_close(result, assembly.logits(ids, images), atol=1e-5, rtol=0)


@torch.no_grad()
def test_logits_of_a_padded_batch_equal_the_assembly(
    folders: dict[str, Path], assembly: Assembly, pixels: list[Tensor]
) -> None:
    together = load(folders["released"])(**batch(pixels)).logits
    for row, (ids, images) in enumerate(zip(TEXTS, pixels, strict=True)):
        torch.testing.assert_close(together[row, -len(ids) :], assembly.logits(ids, images), atol=1e-5, rtol=0)


def test_generation_token_by_token_equals_the_assembly(
    folders: dict[str, Path], assembly: Assembly, pixels: list[Tensor]
) -> None:
    inputs = batch(pixels)
    model = load(folders["released"])
    written = model.generate(**inputs, max_new_tokens=16, do_sample=False, eos_token_id=None)
    for row, (ids, images) in enumerate(zip(TEXTS, pixels, strict=True)):
        assert written[row, -16:].tolist() == assembly.greedy(ids, images, 16)


def test_released_tensor_names_match_the_specification(state: dict[str, Tensor]) -> None:
    assert "vision_tower.encoder.layer.2.attention.attention.query.weight" in state
    assert "multi_modal_projector.layers.6.bias" in state
    assert "language_model.lm_head.weight" in state


def test_the_release_has_522_tensors() -> None:
    names = [name for ours in expected_shapes(MairaConfig()) for name in names_for_layout(ours, "released")]
    assert len(names) == len(set(names)) == 522


@pytest.mark.parametrize("layout", LAYOUTS)
def test_name_mapping_round_trips(layout: Layout) -> None:
    for ours in expected_shapes(MairaConfig()):
        names = names_for_layout(ours, layout)
        thirds = [None] if len(names) == 1 else [0, 1, 2]
        assert [own_name(name, layout) for name in names] == [(ours, third) for third in thirds]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@torch.no_grad()
def test_every_dtype_is_read_unchanged_or_converted_on_request(
    state: dict[str, Tensor], tmp_path: Path, pixels: list[Tensor], dtype: torch.dtype
) -> None:
    name = str(dtype).removeprefix("torch.")
    stored = {key: tensor.to(dtype) for key, tensor in state.items()}
    folder = write_released(tmp_path, stored, CONFIG | {"torch_dtype": name})
    model = load(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert model(input_ids=torch.tensor([TEXTS[0]]), pixel_values=pixels[0]).logits.isfinite().all()
    assert {parameter.dtype for parameter in load(folder, dtype=torch.float32).parameters()} == {torch.float32}


@torch.no_grad()
def test_a_device_map_with_parts_on_disk_gives_the_same_logits(
    folders: dict[str, Path], assembly: Assembly, pixels: list[Tensor], tmp_path: Path
) -> None:
    places = {
        "vision_tower": "disk",
        "multi_modal_projector": "cpu",
        "language_model.model.embed_tokens": "cpu",
        "language_model.model.rotary_emb": "cpu",
        "language_model.model.layers.0": "cpu",
        "language_model.model.layers.1": "disk",
        "language_model.model.norm": "cpu",
        "language_model.lm_head": "disk",
    }
    model = load(folders["released"], device_map=places, offload_folder=tmp_path)
    result = model(input_ids=torch.tensor([TEXTS[2]]), pixel_values=pixels[2]).logits[0]
    torch.testing.assert_close(result, assembly.logits(TEXTS[2], pixels[2]), atol=1e-5, rtol=0)


def test_device_map_auto_is_supported(
    folders: dict[str, Path], assembly: Assembly, pixels: list[Tensor], tmp_path: Path
) -> None:
    model = load(folders["released"], device_map="auto", max_memory={"cpu": 200_000}, offload_folder=tmp_path)
    assert set(model.hf_device_map.values()) == {"cpu", "disk"}
    with torch.no_grad():
        result = model(input_ids=torch.tensor([TEXTS[2]]), pixel_values=pixels[2]).logits[0]
    torch.testing.assert_close(result, assembly.logits(TEXTS[2], pixels[2]), atol=1e-5, rtol=0)


def test_a_model_read_in_another_layout_is_saved_in_ours(folders: dict[str, Path], tmp_path: Path) -> None:
    load(folders["released"]).save_pretrained(tmp_path)
    assert detect_layout(read_headers(tmp_path)) == "own"
    assert content(tmp_path) == content(folders["own"])
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())


@pytest.mark.parametrize("kind", ["released", "transformers5", "own"])
def test_missing_unexpected_and_reshaped_tensors_are_errors(
    state: dict[str, Tensor], folders: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    tensors = {"released": state, "transformers5": in_transformers5(state)}.get(kind)
    if tensors is None:
        tensors = {name: tensor.clone() for name, tensor in load(folders["own"]).state_dict().items()}
    wrong = dict(tensors)
    lost = next(name for name in tensors if name.endswith("layers.1.mlp.up_proj.weight"))
    del wrong[lost]
    wrong["vision_tower.pooler.weight"] = torch.zeros(3)
    cut = next(name for name in tensors if name.endswith("layers.4.bias"))
    wrong[cut] = torch.zeros(31)
    folder = write_released(tmp_path, wrong, json.loads((folders[kind] / "config.json").read_text()))
    with pytest.raises(InputError) as caught:
        load(folder)
    message = str(caught.value)
    assert f"missing: {lost};" in message
    assert "unexpected: vision_tower.pooler.weight;" in message
    assert message.endswith("layers.4.bias (expected [32], found [31])")


def test_a_missing_part_of_a_fused_projection_is_named(state: dict[str, Tensor], tmp_path: Path) -> None:
    lost = {"attention.attention.query.weight", "attention.attention.value.weight"}
    folder = write_released(tmp_path, {n: t for n, t in state.items() if n.split("layer.0.")[-1] not in lost})
    with pytest.raises(InputError) as caught:
        load(folder)
    prefix = "vision_tower.encoder.layer.0.attention.attention"
    assert str(caught.value).endswith(f"missing: {prefix}.query.weight, {prefix}.value.weight")


def test_loading_faults_reported_by_transformers_are_errors(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a version of transformers that does not rename as requested would leave random weights."""
    import maira.model.modeling as module

    monkeypatch.setattr(module, "match_weights", lambda *_, **__: {})
    config = MairaConfig.from_pretrained(folders["released"])
    config.projector_n_layers = 5
    with pytest.raises(InputError, match=r"missing: multi_modal_projector\.layers\.8\.bias"):
        load(folders["released"], config=config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vision_feature_layer": -2}, "vision_feature_layer: .* found -2"),
        ({"image_seq_length": 576}, "image_seq_length: expected 16 .* found 576"),
        ({"vision_config": VISION | {"use_swiglu_ffn": True}}, "use_swiglu_ffn: .* found True"),
        ({"vision_config": VISION | {"out_features": ["stage2"]}}, "out_features"),
    ],
)
def test_a_configuration_of_another_model_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MairaConfig(**{k: v for k, v in (CONFIG | change).items() if k != "model_type"})


def test_the_released_rotary_configuration_is_supported(folders: dict[str, Path]) -> None:
    text = MairaConfig.from_pretrained(folders["released"]).text_config
    assert text.rope_parameters["factor"] == TEXT["rope_scaling"]["factor"]
    assert text.rope_parameters["rope_type"] == "linear"


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_conversion_round_trip_keeps_every_byte(
    folders: dict[str, Path], tmp_path: Path, source: str, layout: Layout
) -> None:
    written = convert(folders[source], tmp_path / "there", layout, shard_size="60KB")
    there = content(tmp_path / "there")
    assert written == len(there)
    convert(tmp_path / "there", tmp_path / "back", "released")
    assert content(tmp_path / "back") == content(folders["released"])
    assert len(list((tmp_path / "there").glob("*.safetensors"))) > 2
    assert len(list((tmp_path / "back").glob("*.safetensors"))) == 1
    expected = {"released": folders["released"], "transformers5": folders["transformers5"], "own": folders["own"]}
    assert there == content(expected[layout])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_converted_configuration_describes_the_same_model(
    folders: dict[str, Path], tmp_path: Path, layout: Layout
) -> None:
    convert(folders["released"], tmp_path / "there", layout)
    result, expected = (MairaConfig.from_pretrained(folder) for folder in (tmp_path / "there", folders["released"]))
    assert result.text_config.to_dict() == expected.text_config.to_dict()
    assert result.vision_config.encoder_options() == expected.vision_config.encoder_options()
    assert result.image_token_index == IMAGE_TOKEN
    assert result.dtype == expected.dtype


def test_a_released_configuration_suits_the_code_of_the_release(folders: dict[str, Path], tmp_path: Path) -> None:
    convert(folders["own"], tmp_path / "there", "released")
    config = json.loads((tmp_path / "there" / "config.json").read_text())
    assert {name: config["vision_config"][name] for name in VISION} == VISION
    assert config["text_config"]["rope_scaling"]["factor"] == 1.5
    same = ("architectures", "model_type", "image_seq_length", "vision_feature_layer", "torch_dtype")
    assert [config[name] for name in same] == [CONFIG[name] for name in same]


def test_a_model_that_a_layout_cannot_represent_is_refused(tmp_path: Path) -> None:
    shipped = Path(__file__).resolve().parents[2] / "checkpoints" / "phantom"
    with raises_code(ErrorCode.CONFLICTING_OPTIONS, match="2 x 2 patches"):
        convert(shipped, tmp_path / "out", "released")
    assert list(tmp_path.iterdir()) == []


def test_documents_are_copied_and_code_is_not(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["released"], tmp_path / "released")
    texts = {name: f"{name}\n" for name in ("LICENSE", "LICENSE.md", "README.md", "NOTICE", "USE_POLICY.md")}
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "processing_maira2.py").write_text("raise RuntimeError('was run')")
    for name in ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json"):
        (folder / name).write_text(json.dumps({"auto_map": {"AutoProcessor": "processing_maira2.P"}, "size": 56}))
    convert(folder, tmp_path / "out", "released")
    built = {path.name: path for path in (tmp_path / "out").iterdir()}
    assert {name: built[name].read_text() for name in texts} == texts
    assert [name for name, path in built.items() if path.suffix == ".py" or b"auto_map" in path.read_bytes()] == []
    assert json.loads(built["processor_config.json"].read_text()) == {"size": 56}


def test_a_folder_in_use_is_not_overwritten(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with raises_code(ErrorCode.OUTPUT_CONFLICT):
        convert(folders["released"], tmp_path, "own")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("size", ["much", "0GB", "5", "-1GB"])
def test_an_invalid_shard_size_is_refused(folders: dict[str, Path], tmp_path: Path, size: str) -> None:
    with raises_code(ErrorCode.INVALID_OPTION, field="shard_size"):
        convert(folders["released"], tmp_path / "out", "own", shard_size=size)


def test_an_unsupported_dtype_is_refused(state: dict[str, Tensor], tmp_path: Path) -> None:
    folder = write_released(
        tmp_path / "in", state | {"language_model.model.norm.weight": torch.ones(32, dtype=torch.int8)}
    )
    with raises_code(ErrorCode.INVALID_FORMAT, match="I8", field="language_model.model.norm.weight"):
        convert(folder, tmp_path / "out", "own")


@pytest.mark.parametrize("size", [None, 100])
def test_a_missing_or_damaged_shard_is_named(state: dict[str, Tensor], tmp_path: Path, size: int | None) -> None:
    folder = write_released(tmp_path / "in", state)
    shard = sorted(folder.glob("model-00002*"))[0]
    content = shard.read_bytes()
    shard.unlink()
    if size is not None:
        shard.write_bytes(content[:size])
    with raises_code(ErrorCode.FILE_NOT_FOUND if size is None else ErrorCode.FILE_UNREADABLE, file=shard):
        convert(folder, tmp_path / "out", "own")
    assert not (tmp_path / "out").exists()


def test_names_across_layers_are_grouped() -> None:
    names = [f"a.layers.{i}.w" for i in (0, 1, 2, 5)] + ["a.layers.3.b", "head"]
    assert fold_layers(names) == ["a.layers.3.b", "a.layers.{0-2,5}.w", "head"]


@pytest.mark.slow
def test_the_auto_classes_read_a_registered_checkpoint(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["released"], tmp_path / "released")
    llama_tokenizer(folder)
    settings = {"image_processor_type": "BitImageProcessor", "processor_class": "Maira2Processor"}
    settings |= {"size": {"shortest_edge": 56}, "image_mean": [0.5307] * 3, "image_std": [0.2583] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    auto = {"auto_map": {"AutoProcessor": "processing_maira2.Maira2Processor"}, "processor_class": "Maira2Processor"}
    (folder / "processor_config.json").write_text(json.dumps(auto))
    code = (
        "import sys, maira; maira.register()\n"
        "from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor\n"
        "for kind in (AutoConfig, AutoModelForImageTextToText, AutoProcessor):\n"
        "    print(type(kind.from_pretrained(sys.argv[1])).__name__)"
    )
    process = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False)
    assert process.stdout.split() == ["MairaConfig", "MairaForConditionalGeneration", "MairaProcessor"], process.stderr


def llama_tokenizer(folder: Path) -> None:
    """The smallest tokenizer that has MAIRA-2's tokens."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocabulary, [])), **special)
    add_tokens(tokenizer)
    tokenizer.save_pretrained(folder)


def maira(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_a_full_disk_is_one_error_and_leaves_nothing(folders: dict[str, Path], tmp_path: Path) -> None:
    """A limit of the size of files stands for the end of the disk: the weights reach it, the configuration does not."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            convert(folders["own"], tmp_path / "out", "transformers5")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert Path(caught.value.filename).is_relative_to(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_command_converts(folders: dict[str, Path], tmp_path: Path) -> None:
    result = maira("convert", folders["own"], "--to", "transformers5", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert content(tmp_path / "out") == content(folders["transformers5"])


def test_the_command_refuses_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    error = maira("convert", tmp_path, "--out", tmp_path / "out").exception
    assert isinstance(error, InputError)
    assert (error.code, error.file) == (ErrorCode.FILE_NOT_FOUND, tmp_path)
