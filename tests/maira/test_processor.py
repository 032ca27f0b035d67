from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from error_checks import raises_code
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoProcessor, LlamaTokenizer, LlavaProcessor

from maira.data.images import Gray
from maira.model.convert import convert, standard_processor
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.parser import render_report
from maira.model.processor import DEVIATION, MEAN, MairaImageProcessor, MairaProcessor, pad
from maira.model.prompts import Context, Preset, Task, build_prompt, build_target
from maira.model.tokens import IMAGE, add_tokens
from maira.train.data.tokenizer import train_tokenizer
from radfact.errors import ErrorCode, InputError
from radfact.records import Box, Sentence

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<>"), min_size=1, max_size=30)
REPORT = render_report(
    [
        Sentence(text="The lungs are clear."),
        Sentence(text="Small left pleural effusion.", boxes=(Box(x_min=0.1, y_min=0.2, x_max=0.3, y_max=1),)),
    ]
)
SECTIONS: dict[str, Any] = {"indication": "Cough.", "technique": "PA view.", "comparison": "None.", "phrase": "Nodule."}
CONTEXTS = [
    Context(has_lateral=lateral, has_prior=prior, prior_report="Clear.", **SECTIONS)
    for lateral, prior in product((False, True), repeat=2)
]


def llama_tokenizer(*, legacy: bool) -> LlamaTokenizer:
    """transformers' own, with a few pieces and all bytes; only a legacy one puts a space behind an added token."""
    trained = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    sentences = [build_prompt("findings", Context()), " The lungs are clear.", " Small left pleural effusion."]
    trained.train_from_iterator(sentences * 3, trainers.BpeTrainer(vocab_size=420, special_tokens=special))
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = LlamaTokenizer(vocab=model["vocab"], merges=merges, legacy=legacy, pad_token="<unk>")
    add_tokens(tokenizer)
    return tokenizer


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest) -> MairaProcessor:
    """Return a processor with a tokenizer of the requested kind."""
    if request.param == "byte_level":
        shared: MairaProcessor = request.getfixturevalue("processor")
        return shared
    return MairaProcessor(MairaImageProcessor(size=32), llama_tokenizer(legacy=request.param == "legacy_llama"), 4)


KINDS = ["byte_level", "llama", "legacy_llama"]
every_kind = pytest.mark.parametrize("built", KINDS, indirect=True)


def test_llama_tokenizers_differ_in_the_space_after_an_added_token() -> None:
    variants = [llama_tokenizer(legacy=legacy).tokenize("a<obj>The lungs") for legacy in (False, True)]
    assert [tokens[tokens.index("<obj>") + 1][0] for tokens in variants] == ["T", "▁"]


def assert_together_they_are_the_whole_text(built: MairaProcessor, prompt: str, images: int, answer: str) -> None:
    target = build_target(answer)
    all_ids: list[int] = built.tokenizer(prompt + target, add_special_tokens=False)["input_ids"]
    start: list[int] = built.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    assert all_ids[: len(start)] == start
    repeats = {built.image_token_id: built.image_seq_length}
    expanded = [token for token in all_ids for _ in range(repeats.get(token, 1))]
    first, last = built.tokenizer.bos_token_id, built.tokenizer.eos_token_id
    assert [*built.encode_prompt(prompt, images), *built.encode_target(target)] == [first, *expanded, last]


@every_kind
@pytest.mark.parametrize("preset", ["release", "paper"])
@pytest.mark.parametrize("task", ["findings", "grounded", "phrase"])
def test_prompt_tokens_are_a_prefix_of_prompt_and_answer_tokens(
    built: MairaProcessor, task: Task, preset: Preset
) -> None:
    for context in CONTEXTS:
        prompt = build_prompt(task, context, preset)
        assert_together_they_are_the_whole_text(built, prompt, prompt.count(IMAGE), REPORT)


@every_kind
@pytest.mark.parametrize("answer", ["The lungs are clear.", "7", "é ü", "...", "\n", " two spaces", "<obj>", "肺"])
def test_prompt_and_answer_tokens_equal_those_of_the_joined_text(built: MairaProcessor, answer: str) -> None:
    assert_together_they_are_the_whole_text(built, build_prompt("findings", Context()), 1, answer)


@every_kind
@settings(max_examples=50, deadline=None)
@given(texts, texts)
def test_a_prompt_is_a_prefix_of_prompt_and_answer_for_any_text(
    built: MairaProcessor, indication: str, answer: str
) -> None:
    prompt = build_prompt("findings", Context(indication=indication))
    assert_together_they_are_the_whole_text(built, prompt, 1, answer)


@every_kind
def test_a_prompt_may_end_within_the_answer(built: MairaProcessor) -> None:
    """As for the completion of boxes, which conditions on the start of a report."""
    prompt = build_prompt("grounded", Context())
    start, box, rest = build_target(REPORT).partition("<box>")
    all_ids = [*built.encode_prompt(prompt, 1), *built.encode_target(start + box + rest)]
    condition = built.encode_prompt(prompt + start + box, 1)
    assert all_ids[: len(condition)] == condition
    assert all_ids[len(condition)] == built.tokenizer.convert_tokens_to_ids("<x10>")


def test_an_answer_merged_with_the_prompt_by_the_tokenizer_is_refused() -> None:
    joining = train_tokenizer(["ASSISTANT:The"], 300)
    joining.add_tokens(["ASSISTANT:The"])
    built = MairaProcessor(MairaImageProcessor(size=32), joining, image_seq_length=1)
    with pytest.raises(ValueError, match="starts with a space"):
        built.encode_target("The lungs are clear.")


@pytest.mark.parametrize("images", [1, 2, 3])
def test_placeholders_expand_to_the_tokens_of_an_image(processor: MairaProcessor, images: int) -> None:
    context = Context(has_lateral=images > 1, has_prior=images > 2)
    ids = processor.encode_prompt(build_prompt("findings", context), images)
    assert ids.count(processor.image_token_id) == images * processor.image_seq_length
    assert ids[0] == processor.tokenizer.bos_token_id


def test_an_image_has_1369_tokens_by_default() -> None:
    built = MairaProcessor(MairaImageProcessor(), llama_tokenizer(legacy=False))
    context = Context(has_lateral=True, has_prior=True)
    ids = built.encode_prompt(build_prompt("grounded", context), 3)
    assert ids.count(built.image_token_id) == 3 * 37 * 37
    # The tokens of each image replace its placeholder.
    starts = [i for i, token in enumerate(ids) if token == built.image_token_id and ids[i - 1] != token]
    assert len(starts) == 3
    assert all(set(ids[i : i + 1369]) == {built.image_token_id} for i in starts)


@pytest.mark.parametrize(("prompt", "placeholders", "images"), [("a <image> b", 1, 2), ("a <image> b <image>", 2, 1)])
def test_mismatched_placeholders_and_images_are_an_error_with_both_numbers(
    processor: MairaProcessor, radiographs: list[Gray], prompt: str, placeholders: int, images: int
) -> None:
    message = f"{placeholders} image placeholders .* found {images}"
    with pytest.raises(ValueError, match=message):
        processor.encode_prompt(prompt, images)
    with pytest.raises(ValueError, match=message):
        processor([radiographs[:images]], [prompt])


@pytest.mark.parametrize(
    ("images", "text", "tensors", "message"),
    [
        (1, ["a <image>", "b <image>"], "pt", "2 prompts, found 1"),
        (9, "a <image>", "pt", "found 9"),
        (1, ["a <image>"], "np", "found 'np'"),
    ],
)
def test_unknown_arguments_are_refused(
    processor: MairaProcessor, radiographs: list[Gray], images: int, text: Any, tensors: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        processor([radiographs[:1]] * images, text, return_tensors=tensors)


def test_a_tokenizer_without_the_image_token_is_refused() -> None:
    with pytest.raises(ValueError, match="has no token <image>"):
        MairaProcessor(MairaImageProcessor(), LlamaTokenizer())


def test_a_batch_is_padded_on_the_left(processor: MairaProcessor, radiographs: list[Gray]) -> None:
    batch = processor([radiographs[:1], radiographs[:2]], ["a <image>", "b <image> c <image>"])
    ids, mask = batch["input_ids"], batch["attention_mask"]
    assert batch["pixel_values"].shape == (3, 3, 32, 32)
    assert mask[:, -1].tolist() == [1, 1]
    assert mask[0].tolist() == sorted(mask[0].tolist())
    assert (ids[0][mask[0] == 0] == processor.tokenizer.pad_token_id).all()
    assert ids[0][mask[0] == 1].tolist() == processor.encode_prompt("a <image>", 1)


def test_batch_images_follow_placeholder_order(processor: MairaProcessor, radiographs: list[Gray]) -> None:
    batch = processor([[radiographs[2]], [radiographs[0], radiographs[1]]], ["a <image>", "b <image> c <image>"])
    expected = processor.image_processor([radiographs[2], radiographs[0], radiographs[1]])["pixel_values"]
    assert torch.equal(batch["pixel_values"], expected)


def test_pixels_are_scaled_normalized_and_equal_in_three_channels(tmp_path: Path) -> None:
    levels = np.linspace(20, 220, 32 * 32).round().astype(np.uint8).reshape(32, 32)
    Image.fromarray(levels).save(tmp_path / "a.png")
    (pixels,) = MairaImageProcessor(size=32)([tmp_path / "a.png"])["pixel_values"]
    shares = (levels.astype(np.float32) - 20) / 200
    # Mean 0.5307 and deviation 0.2583 on a [0, 1] scale (specification, "Image preparation").
    for channel in pixels:
        np.testing.assert_allclose(channel.numpy(), (shares - 0.5307) / 0.2583, atol=1e-5)


def bicubic(side: int, target: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(target, side) weights of Keys' kernel with a = -0.5, widened by the scale where the image shrinks."""
    scale = side / target
    width = max(scale, 1.0)
    middles = (np.arange(target)[:, None] + 0.5) * scale
    x = np.abs((np.arange(side)[None] + 0.5 - middles) / width)
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    weights = np.where(x < 1, near, np.where(x < 2, far, 0))
    return weights / weights.sum(1, keepdims=True)


def plain_preparation(image: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Image preparation as the specification words it, in double precision: 8 bit grey levels, (size, size)."""
    gray = image.astype(np.float64)
    if gray.ndim == 3:
        gray = np.round(gray @ [0.299, 0.587, 0.114])  # ITU-R BT.601, stored as 8 bit
    height, width = gray.shape
    if min(height, width) != size:
        low, high = gray.min(), gray.max()
        target = (size * height // min(height, width), size * width // min(height, width))
        gray = np.clip(bicubic(height, target[0]) @ gray @ bicubic(width, target[1]).T, low, high)
    low, high = gray.min(), gray.max()
    levels = np.zeros(gray.shape) if low == high else (gray - low) / (high - low) * 255
    top, left = ((side - size) // 2 for side in gray.shape)
    return levels[top : top + size, left : left + size].round().astype(np.uint8)


@pytest.mark.parametrize(
    ("shape", "dtype", "low", "high", "size"),
    [
        ((518, 518), np.uint8, 0, 255, 518),
        ((640, 518), np.uint8, 0, 255, 518),
        ((700, 853), np.uint8, 30, 90, 518),
        ((300, 211), np.uint16, 0, 65535, 518),  # 16 bit, as of PadChest
        ((300, 211), np.uint16, 31000, 31900, 518),
        ((90, 75, 3), np.uint8, 0, 255, 64),  # a photo
        ((64, 64), np.uint8, 7, 8, 64),  # constant
        ((90, 75), np.uint16, 40000, 40001, 64),  # constant
        ((1, 1), np.uint8, 0, 255, 64),
        ((2, 3), np.uint8, 0, 255, 64),
        ((12, 700), np.uint8, 0, 255, 64),  # very elongated, either way
        ((1900, 31), np.uint16, 0, 65535, 64),
    ],
)
def test_image_preparation_matches_a_reference_implementation(
    tmp_path: Path, shape: tuple[int, ...], dtype: type[np.uint8 | np.uint16], low: int, high: int, size: int
) -> None:
    image = np.random.default_rng(0).integers(low, high, shape, dtype)
    Image.fromarray(image).save(tmp_path / "a.png")
    (pixels,) = MairaImageProcessor(size=size)([tmp_path / "a.png"])["pixel_values"]
    levels = (pixels.numpy() * 0.2583 + 0.5307) * 255
    expected = plain_preparation(image, size)
    for channel in levels:
        assert np.abs(channel - expected).max() <= 1


@pytest.mark.parametrize("mode", ["L", "I;16", "RGB", "RGBA"])
def test_an_open_image_and_its_file_give_equal_pixels(tmp_path: Path, mode: str) -> None:
    shape = (40, 32, *{"RGB": (3,), "RGBA": (4,)}.get(mode, ()))
    dtype = np.uint16 if mode == "I;16" else np.uint8
    image = Image.fromarray(np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype))
    image.save(tmp_path / "a.png")
    prepare = MairaImageProcessor(size=32)
    assert torch.equal(prepare([image])["pixel_values"], prepare([tmp_path / "a.png"])["pixel_values"])


def test_normalization_statistics_are_configurable(radiographs: list[Gray]) -> None:
    plain = MairaImageProcessor(size=32, image_mean=0, image_std=1)(radiographs)["pixel_values"]
    usual = MairaImageProcessor(size=32)(radiographs)["pixel_values"]
    torch.testing.assert_close(usual, (plain - MEAN) / DEVIATION)


def test_an_image_of_any_shape_becomes_a_square(processor: MairaProcessor) -> None:
    shapes = [(32, 32), (64, 40), (20, 90)]
    images = [np.random.default_rng(0).random(shape, np.float32) for shape in shapes]
    assert processor.image_processor(images)["pixel_values"].shape == (3, 3, 32, 32)


def test_a_missing_file_is_named(processor: MairaProcessor, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.png: no such file"):
        processor([[tmp_path / "none.png"]], ["a <image>"])


def test_save_and_load_keep_tensors(processor: MairaProcessor, radiographs: list[Gray], tmp_path: Path) -> None:
    processor.save_pretrained(tmp_path)
    loaded = AutoProcessor.from_pretrained(tmp_path)
    assert isinstance(loaded, MairaProcessor)
    inputs = [radiographs[:2]], [f"a <image> b <image>{REPORT}"]
    ours, theirs = processor(*inputs), loaded(*inputs)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert loaded.encode_target(REPORT) == processor.encode_target(REPORT)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_saved_llama_tokenizer_keeps_tokens(tmp_path: Path, legacy: bool) -> None:
    built = MairaProcessor(MairaImageProcessor(size=32), llama_tokenizer(legacy=legacy), image_seq_length=4)
    built.save_pretrained(tmp_path)
    text = build_prompt("grounded", Context()) + build_target(REPORT)
    assert AutoProcessor.from_pretrained(tmp_path).encode_prompt(text, 1) == built.encode_prompt(text, 1)


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A folder that names the released code's classes and a standard image processor, as inferred, not seen."""
    llama_tokenizer(legacy=False).save_pretrained(tmp_path)
    code = {"auto_map": {"AutoProcessor": "processing_maira2.Maira2Processor"}, "processor_class": "Maira2Processor"}
    image_processor = {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": 518},
        "crop_size": {"height": 518, "width": 518},
        "do_normalize": True,
        "image_mean": [0.5307] * 3,
        "image_std": [0.2583] * 3,
        "resample": 3,
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(code | image_processor))
    (tmp_path / "processor_config.json").write_text(json.dumps(code | {"image_token": "<image>", "patch_size": 14}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "maira2"}))
    return tmp_path


def test_a_released_folder_loads_our_processor_without_remote_code(released: Path) -> None:
    (released / "processing_maira2.py").write_text("raise RuntimeError('was run')")
    loaded = AutoProcessor.from_pretrained(released, trust_remote_code=True)
    assert type(loaded) is MairaProcessor
    assert type(loaded.image_processor) is MairaImageProcessor
    assert loaded.image_seq_length == 1369
    assert vars(loaded.image_processor).items() >= {"size": 518, "image_mean": 0.5307, "image_std": 0.2583}.items()


@pytest.mark.parametrize("setting", ["add_bos_token", "add_eos_token"])
def test_prompts_have_one_start_token_and_no_end_token(released: Path, setting: str) -> None:
    tokenizer = AutoProcessor.from_pretrained(released).tokenizer
    setattr(tokenizer, setting, setting == "add_eos_token")
    ids = MairaProcessor(MairaImageProcessor(), tokenizer).encode_prompt(build_prompt("findings", Context()), 1)
    assert [i for i, token in enumerate(ids) if token == tokenizer.bos_token_id] == [0]
    assert tokenizer.eos_token_id not in ids


def test_a_folder_without_a_processor_is_an_error(tmp_path: Path) -> None:
    with raises_code(ErrorCode.FILE_NOT_FOUND, file=tmp_path):
        MairaProcessor.from_pretrained(tmp_path)


def test_a_released_folder_is_saved_in_our_layout(released: Path, tmp_path: Path) -> None:
    AutoProcessor.from_pretrained(released).save_pretrained(tmp_path / "ours")
    loaded = AutoProcessor.from_pretrained(tmp_path / "ours")
    assert type(loaded) is MairaProcessor
    assert loaded.image_processor.to_dict().keys().isdisjoint({"crop_size", "do_normalize", "resample"})


@pytest.fixture
def converted(processor: MairaProcessor, model: MairaForConditionalGeneration, tmp_path: Path) -> Path:
    """Our own checkpoint, written as the release's."""
    for part in (model, processor):
        part.save_pretrained(tmp_path / "own")
    convert(tmp_path / "own", tmp_path / "released", "released")
    return tmp_path / "released"


def test_a_converted_processor_gives_equal_tensors(
    processor: MairaProcessor, converted: Path, radiographs: list[Gray]
) -> None:
    loaded = AutoProcessor.from_pretrained(converted)
    assert type(loaded) is MairaProcessor
    ours, theirs = processor([radiographs[:1]], ["a <image>"]), loaded([radiographs[:1]], ["a <image>"])
    assert torch.equal(ours["input_ids"], theirs["input_ids"])
    assert torch.equal(ours["pixel_values"], theirs["pixel_values"])


def test_classes_of_transformers_read_a_converted_processor(processor: MairaProcessor, converted: Path) -> None:
    pytest.importorskip("torchvision")
    theirs: Any = LlavaProcessor.from_pretrained(converted)
    assert type(theirs.image_processor).__name__ == "BitImageProcessor"
    # An image that spans all grey levels: the standard classes know no min-max step.
    radiograph = Image.fromarray(np.linspace(0, 255, 32 * 40).round().astype(np.uint8).reshape(40, 32))
    result = theirs(images=radiograph.convert("RGB"), text="a <image> b", return_tensors="pt")
    expected = processor([[radiograph]], ["a <image> b"])
    assert result["input_ids"].tolist() == expected["input_ids"].tolist()
    torch.testing.assert_close(result["pixel_values"], expected["pixel_values"])


def test_a_foreign_processor_is_converted_unchanged(released: Path) -> None:
    before = {path.name: path.read_bytes() for path in released.iterdir()}
    standard_processor(released, 14)
    assert {path.name: path.read_bytes() for path in released.iterdir()} == before


def test_an_image_processor_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="image_mean: "):
        MairaImageProcessor(image_mean=[0.485, 0.456, 0.406])
    with pytest.raises(ValueError, match="size: "):
        MairaImageProcessor(size={"height": 224, "width": 336})


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=9), min_size=1, max_size=5), st.booleans())
def test_padding_keeps_every_row(rows: list[list[int]], left: bool) -> None:
    ids, mask = pad(rows, 0, left=left, multiple=4)
    assert ids.shape == mask.shape
    assert ids.shape[1] % 4 == 0
    assert ids.shape[1] - max(map(len, rows)) < 4
    for row, result, counted in zip(rows, ids, mask, strict=True):
        assert result[counted == 1].tolist() == row
        assert result[counted == 0].unique().tolist() in ([], [0])
        first, last = int(counted[0]), int(counted[-1])
        assert (last if left else first) == 1
