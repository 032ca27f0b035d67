"""Prompts word for word, and the processor that makes a model's inputs of prompts, answers and images."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from error_checks import raises_code
from hypothesis import given, settings
from hypothesis import strategies as st
from long_values import DATA
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoProcessor, LlamaTokenizer, LlavaProcessor

from maira.data.images import Gray
from maira.model.image_processor import DEVIATION, MEAN, MairaImageProcessor
from maira.model.parser import render_report
from maira.model.processor import MairaProcessor, UnusedInputWarning
from maira.model.prompts import NEW_TOKENS, TEMPLATE, Preset, Task, build_messages, build_target, render
from maira.model.tokens import add_tokens
from maira.train.components import train_tokenizer
from radfact.errors import ErrorCode
from radfact.records import Box, Sentence

WORDING: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("prompts.yaml").read_text("utf-8"))
BOTH = (False, True)
SECTIONS = WORDING["sections"]
each_preset = pytest.mark.parametrize("preset", ["release", "paper"])


def build_prompt(task: Task, preset: Preset = "release", **context: Any) -> str:
    """The prompt as text, by our chat template."""
    return render(build_messages(task, preset, **context))


@each_preset
def test_phrase_prompts_show_the_frontal_without_the_word_only(preset: Preset) -> None:
    expected = WORDING["head"] + WORDING[preset]["phrase"] + WORDING["tail"]
    for lateral, prior in product(BOTH, repeat=2):
        context = {"has_lateral": lateral, "has_prior": prior, **SECTIONS}
        assert build_prompt("phrase", preset, **context, phrase="Left nodule.") == expected


@pytest.mark.parametrize("missing", [None, "", " \n"])
@each_preset
@pytest.mark.parametrize("task", ["findings", "grounded"])
def test_every_combination_of_images_and_sections(preset: Preset, task: Task, missing: str | None) -> None:
    for lateral, prior, *present in product(BOTH, repeat=6):
        given = dict(zip(SECTIONS, present, strict=True))
        sections = {name: text if given[name] else missing for name, text in SECTIONS.items()}
        shown = {name: text if given[name] else "N/A" for name, text in SECTIONS.items()}
        images = " and ".join(["lateral"] * lateral + ["prior"] * prior) or "frontal"
        expected = (
            WORDING["head"]
            + WORDING[preset][images].replace("GIVEN REPORT", shown["prior_report"])
            + WORDING[preset]["instruction"]
            + WORDING["grounded"] * (task == "grounded")
            + " INDICATION: {indication} TECHNIQUE: {technique} COMPARISON: {comparison}".format(**shown)
            + WORDING["tail"]
        )
        assert build_prompt(task, preset, has_lateral=lateral, has_prior=prior, **sections) == expected


@pytest.mark.parametrize("phrase", [None, "", "  "])
def test_phrase_grounding_needs_a_phrase(phrase: str | None) -> None:
    with pytest.raises(ValueError, match="needs a phrase"):
        build_prompt("phrase", phrase=phrase)


def test_answers_are_as_long_as_those_of_the_release() -> None:
    assert NEW_TOKENS == {"findings": 300, "grounded": 450, "phrase": 150}


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<>"), min_size=1, max_size=30)
EFFUSION = Sentence(text="Small left pleural effusion.", boxes=(Box(x_min=0.1, y_min=0.2, x_max=0.3, y_max=1),))
REPORT = render_report([Sentence(text="The lungs are clear."), EFFUSION])


def llama_tokenizer(*, legacy: bool) -> LlamaTokenizer:
    """transformers' own, with a few pieces and all bytes; only a legacy one puts a space behind an added token."""
    trained = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    sentences = [build_prompt("findings"), " The lungs are clear.", " Small left pleural effusion."]
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


every_kind = pytest.mark.parametrize("built", ["byte_level", "llama", "legacy_llama"], indirect=True)


@every_kind
@settings(max_examples=50)
@given(texts, texts)
def test_a_prompt_is_a_prefix_of_itself_and_any_answer(built: MairaProcessor, indication: str, answer: str) -> None:
    prompt, target = build_prompt("findings", indication=indication), build_target(answer)
    all_ids: list[int] = built.tokenizer(prompt + target, add_special_tokens=False)["input_ids"]
    start: list[int] = built.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    assert all_ids[: len(start)] == start
    repeats = {built.image_token_id: built.image_seq_length}
    expanded = [token for token in all_ids for _ in range(repeats.get(token, 1))]
    first, last = built.tokenizer.bos_token_id, built.tokenizer.eos_token_id
    assert [*built.encode_prompt(prompt, 1), *built.encode_target(target)] == [first, *expanded, last]


@every_kind
def test_a_prompt_may_end_within_the_answer(built: MairaProcessor) -> None:
    """As for the completion of boxes, which conditions on the start of a report."""
    prompt = build_prompt("grounded")
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


def test_an_image_has_1369_tokens_by_default() -> None:
    built = MairaProcessor(MairaImageProcessor(), llama_tokenizer(legacy=False))
    prompt = build_prompt("grounded", has_lateral=True, has_prior=True)
    ids = built.encode_prompt(prompt, 3)
    assert ids.count(built.image_token_id) == 3 * 37 * 37
    # The tokens of each image replace its placeholder.
    starts = [i for i, token in enumerate(ids) if token == built.image_token_id and ids[i - 1] != token]
    assert len(starts) == 3
    assert all(set(ids[i : i + 1369]) == {built.image_token_id} for i in starts)
    with pytest.raises(ValueError, match=r"3 image placeholders .* found 2"):
        built.encode_prompt(prompt, 2)


@pytest.mark.parametrize(("text", "images", "options", "message"), DATA["unfit images"])
def test_unfit_images_and_unknown_arguments_are_refused(
    processor: MairaProcessor, radiographs: list[Gray], text: Any, images: list[int], options: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        processor([radiographs[:count] for count in images] or None, text, **options)


def test_a_tokenizer_without_the_image_token_is_refused() -> None:
    with pytest.raises(ValueError, match="has no token <image>"):
        MairaProcessor(MairaImageProcessor(), LlamaTokenizer())


@pytest.mark.parametrize("inputs", [["input_ids"], ["attention_mask", "input_ids"]])
def test_a_batch_is_padded_on_the_left(
    inputs: list[str], processor: MairaProcessor, radiographs: list[Gray], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A folder's tokenizer may name other inputs of its model.
    monkeypatch.setattr(processor.tokenizer, "model_input_names", inputs)
    batch = processor([radiographs[:1], radiographs[:2]], ["a <image>", "b <image> c <image>"])
    ids, mask = batch["input_ids"], batch["attention_mask"]
    assert batch["pixel_values"].shape == (3, 3, 32, 32)
    assert mask[:, -1].tolist() == [1, 1]
    assert mask[0].tolist() == sorted(mask[0].tolist())
    assert (ids[0][mask[0] == 0] == processor.tokenizer.pad_token_id).all()
    assert ids[0][mask[0] == 1].tolist() == processor.encode_prompt("a <image>", 1)


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


@pytest.mark.parametrize(("shape", "dtype", "low", "high", "size"), DATA["prepared images"])
def test_image_preparation_matches_a_reference_implementation(
    tmp_path: Path, shape: tuple[int, ...], dtype: str, low: int, high: int, size: int
) -> None:
    image = np.random.default_rng(0).integers(low, high, shape, getattr(np, dtype))
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


@every_kind
def test_save_and_load_keep_tensors(built: MairaProcessor, radiographs: list[Gray], tmp_path: Path) -> None:
    built.save_pretrained(tmp_path)
    loaded = AutoProcessor.from_pretrained(tmp_path)
    assert isinstance(loaded, MairaProcessor)
    inputs = [radiographs[:2]], [f"a <image> b <image>{REPORT}"]
    ours, theirs = built(*inputs), loaded(*inputs)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert loaded.encode_target(build_target(REPORT)) == built.encode_target(build_target(REPORT))


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A folder that names the released code's classes and a standard image processor, as inferred, not seen."""
    llama_tokenizer(legacy=False).save_pretrained(tmp_path)
    code = {"auto_map": {"AutoProcessor": "processing_maira2.Maira2Processor"}, "processor_class": "Maira2Processor"}
    sizes = {"size": {"shortest_edge": 518}, "crop_size": {"height": 518, "width": 518}, "resample": 3}
    levels = {"do_normalize": True, "image_mean": [0.5307] * 3, "image_std": [0.2583] * 3}
    image_processor = {"image_processor_type": "BitImageProcessor", **sizes, **levels}
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
    ids = MairaProcessor(MairaImageProcessor(), tokenizer).encode_prompt(build_prompt("findings"), 1)
    assert [i for i, token in enumerate(ids) if token == tokenizer.bos_token_id] == [0]
    assert tokenizer.eos_token_id not in ids


def test_classes_of_transformers_read_a_saved_processor(processor: MairaProcessor, checkpoint: Path) -> None:
    pytest.importorskip("torchvision")
    theirs: Any = LlavaProcessor.from_pretrained(checkpoint)
    assert type(theirs.image_processor).__name__ == "BitImageProcessor"
    # An image that spans all grey levels: the standard classes know no min-max step.
    radiograph = Image.fromarray(np.linspace(0, 255, 32 * 40).round().astype(np.uint8).reshape(40, 32))
    result = theirs(images=radiograph.convert("RGB"), text="a <image> b", return_tensors="pt")
    expected = processor([[radiograph]], ["a <image> b"])
    assert result["input_ids"].tolist() == expected["input_ids"].tolist()
    torch.testing.assert_close(result["pixel_values"], expected["pixel_values"])


def test_an_image_processor_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="image_mean: "):
        MairaImageProcessor(image_mean=[0.485, 0.456, 0.406])
    with pytest.raises(ValueError, match="size: "):
        MairaImageProcessor(size={"height": 224, "width": 336})


RELEASED_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}  USER:  {% endif %}"
    "{% for item in message['content'] %}{% if item['type'] == 'image' %}<image>{% else %}{{ item['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}  ASSISTANT: {% endif %}"
)
"""With the blanks of a public log of the released template."""


@pytest.fixture
def with_template(processor: MairaProcessor, tmp_path: Path) -> Path:
    processor.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": RELEASED_TEMPLATE}))
    return tmp_path


def test_prompts_come_from_the_chat_template_of_the_folder(with_template: Path, processor: MairaProcessor) -> None:
    loaded = MairaProcessor.from_pretrained(with_template)
    messages = build_messages("findings", indication="Cough.")
    ours, theirs = processor.render(messages), loaded.render(messages)
    assert " USER: Given" in ours
    assert ours.endswith(" COMPARISON: N/A ASSISTANT:")
    assert theirs == ours.replace(" USER: ", "  USER:  ").replace(" ASSISTANT:", "  ASSISTANT: ")
    loaded.save_pretrained(with_template / "copy")
    assert MairaProcessor.from_pretrained(with_template / "copy").render(messages) == theirs
    assert processor.encode_target(" Clear.") == loaded.encode_target(" Clear.")


def test_a_template_of_the_tokenizer_is_used_too(with_template: Path) -> None:
    (with_template / "chat_template.json").unlink()
    settings = json.loads((with_template / "tokenizer_config.json").read_text())
    (with_template / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": RELEASED_TEMPLATE}))
    assert MairaProcessor.from_pretrained(with_template).chat_template == RELEASED_TEMPLATE
    assert MairaProcessor.from_pretrained(with_template, chat_template=TEMPLATE).chat_template == TEMPLATE


@pytest.mark.parametrize("template", WORDING["templates that lose parts"])
def test_a_template_that_loses_parts_of_a_prompt_is_an_error(with_template: Path, template: str) -> None:
    (with_template / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    with raises_code(ErrorCode.INVALID_FORMAT, file=with_template):
        MairaProcessor.from_pretrained(with_template)


@pytest.mark.parametrize(("prior", "grounded"), list(product(BOTH, repeat=2)))
def test_a_study_is_prepared_as_by_the_released_processor(
    processor: MairaProcessor, radiographs: list[Gray], prior: bool, grounded: bool
) -> None:
    frontal, lateral, prior_frontal = radiographs
    sections = {"indication": "Cough.", "technique": "PA view.", "prior_report": "Clear." if prior else None}
    options: dict[str, Any] = {"comparison": None, "return_tensors": "pt", "get_grounding": grounded}
    images = {"current_lateral": lateral, "prior_frontal": prior_frontal if prior else None}
    result = processor.format_and_preprocess_reporting_input(current_frontal=frontal, **images, **options, **sections)
    prompt = build_prompt("grounded" if grounded else "findings", has_lateral=True, has_prior=prior, **sections)
    expected = processor([radiographs[: 2 + prior]], [prompt])
    assert all(torch.equal(result[name], expected[name]) for name in expected)


def test_phrases_and_responses_are_prepared_as_by_the_released_processor(
    processor: MairaProcessor, radiographs: list[Gray]
) -> None:
    phrase = processor.format_and_preprocess_phrase_grounding_input(radiographs[0], "Nodule.", return_tensors="pt")
    expected = processor([radiographs[:1]], [build_prompt("phrase", phrase="Nodule.")])
    assert torch.equal(phrase["input_ids"], expected["input_ids"])
    texts = {"prior_report": "Clear.", "assistant_text": "Clear."}
    with pytest.warns(UnusedInputWarning):  # a prior report without a prior image
        result = processor.format_and_preprocess_reporting_input(radiographs[0], **texts)
    assert result["input_ids"][0].tolist() == processor.encode_prompt(f"{build_prompt('findings')} Clear.", 1)


def test_responses_are_converted_as_by_the_released_processor(processor: MairaProcessor) -> None:
    convert = processor.convert_output_to_plaintext_or_grounded_sequence
    assert convert("The lungs are clear.") == "The lungs are clear."
    text = "<obj>Nodule.<box><x10><y20><x30><y40></box><box><x0><y0><x1><y1></box></obj><obj>Clear.</obj>"
    boxes = [pytest.approx((0.105, 0.205, 0.305, 0.405)), pytest.approx((0.005, 0.005, 0.015, 0.015))]
    assert convert(text) == [("Nodule.", boxes), ("Clear.", None)]
    assert convert("<obj>Nodule.<box><x10><y20>") == [("Nodule.", None)]


def test_a_box_is_converted_to_the_original_image(processor: MairaProcessor) -> None:
    """The crop of 200 x 100 pixels is the square from 50 to 150."""
    box = processor.adjust_box_for_original_image_size((0.0, 0.5, 1.0, 1.0), 200, 100)
    assert box == pytest.approx((0.25, 0.5, 0.75, 1.0))


def test_texts_and_images_are_taken_in_every_form(processor: MairaProcessor, radiographs: list[Gray]) -> None:
    expected = processor([radiographs[:1], radiographs[1:]], ["a <image>", "b <image> <image>"])
    flat = processor(text=["a <image>", "b <image> <image>"], images=radiographs)
    assert all(torch.equal(flat[name], expected[name]) for name in expected)
    alone = processor(text="a <image>", images=radiographs[0])
    assert torch.equal(alone["pixel_values"], expected["pixel_values"][:1])
    assert isinstance(processor(text="a b", return_tensors=None)["input_ids"], list)
    assert "pixel_values" not in processor(text="no image", videos=None)
    with pytest.raises(ValueError, match="3 image placeholders of the prompts, found 2"):
        processor(text=["a <image>", "b <image> <image>"], images=radiographs[:2])
