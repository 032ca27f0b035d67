from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoProcessor, PreTrainedTokenizerFast

from data.images import Gray
from maira.parse import render_report
from maira.processor import DEVIATION, MEAN, MairaImageProcessor, MairaProcessor, pad
from maira.prompts import Context, build_prompt, build_target
from maira.tokens import add_tokens
from maira.train.tokenizer import train_tokenizer
from radfact.errors import InputError
from radfact.report import Box, Sentence

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<>"), min_size=1, max_size=30)
REPORT = render_report(
    [
        Sentence(text="The lungs are clear."),
        Sentence(text="Small left pleural effusion.", boxes=(Box(x_min=0.1, y_min=0.2, x_max=0.3, y_max=1),)),
    ]
)


@pytest.fixture(scope="module")
def llama_like() -> MairaProcessor:
    """With a tokenizer of Llama's kind: spaces are part of the words, and one is put in front of every text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    sentences = [build_prompt("findings", Context()), " The lungs are clear.", " Small left pleural effusion."]
    tokenizer.train_from_iterator(sentences * 3, trainers.BpeTrainer(vocab_size=420, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<unk>"
    )
    add_tokens(fast)
    return MairaProcessor(MairaImageProcessor(size=32), fast, image_seq_length=1)


def test_a_tokenizer_of_llamas_kind_does_put_a_space_in_front(llama_like: MairaProcessor) -> None:
    def encode(text: str) -> list[int]:
        ids: list[int] = llama_like.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    assert encode("The lungs") == encode("x The lungs")[-len(encode("The lungs")) :]


@pytest.mark.parametrize("kind", ["processor", "llama_like"])
@pytest.mark.parametrize("answer", ["The lungs are clear.", REPORT, "7", "é ü", "...", "\n"])
def test_prompt_and_answer_are_together_what_the_whole_text_is(
    kind: str, answer: str, request: pytest.FixtureRequest
) -> None:
    made: MairaProcessor = request.getfixturevalue(kind)
    prompt, target = build_prompt("findings", Context()), build_target(answer)
    whole = made.tokenizer(prompt + target)["input_ids"]
    ids = made.encode_prompt(prompt, 1)
    position = ids.index(made.image_token_id)
    ids[position : position + made.image_seq_length] = [made.image_token_id]
    assert [*ids, *made.encode_target(target)] == [*whole, made.tokenizer.eos_token_id]


@settings(max_examples=100, deadline=None)
@given(texts, texts)
def test_a_prompt_is_a_prefix_of_prompt_and_answer_for_any_text(
    processor: MairaProcessor, indication: str, answer: str
) -> None:
    prompt, target = build_prompt("findings", Context(indication=indication)), build_target(answer)
    whole = processor.tokenizer(prompt + target)["input_ids"]
    assert [*processor.tokenizer(prompt)["input_ids"], *processor.encode_target(target)[:-1]] == whole


def test_an_answer_that_the_tokenizer_joins_to_the_prompt_is_refused() -> None:
    joining = train_tokenizer(["ASSISTANT:The"], 300)
    joining.add_tokens(["ASSISTANT:The"])
    made = MairaProcessor(MairaImageProcessor(size=32), joining, image_seq_length=1)
    with pytest.raises(ValueError, match="must start with a space"):
        made.encode_target("The lungs are clear.")


@pytest.mark.parametrize("images", [1, 2, 3])
def test_each_placeholder_becomes_as_many_as_an_image_has_tokens(processor: MairaProcessor, images: int) -> None:
    context = Context(has_lateral=images > 1, has_prior=images > 2)
    ids = processor.encode_prompt(build_prompt("findings", context), images)
    assert ids.count(processor.image_token_id) == images * processor.image_seq_length
    assert ids[0] == processor.tokenizer.bos_token_id


def test_placeholders_and_images_that_do_not_match_fail_with_both_numbers(processor: MairaProcessor) -> None:
    with pytest.raises(ValueError, match="1 image placeholders and there are 2 images"):
        processor.encode_prompt("a <image> b", 2)


def test_a_batch_is_padded_on_the_left(processor: MairaProcessor, films: list[Gray]) -> None:
    batch = processor([films[:1], films[:2]], ["a <image>", "b <image> c <image>"])
    ids, mask = batch["input_ids"], batch["attention_mask"]
    assert batch["pixel_values"].shape == (3, 3, 32, 32)
    assert mask[:, -1].tolist() == [1, 1]
    assert mask[0].tolist() == sorted(mask[0].tolist())
    assert (ids[0][mask[0] == 0] == processor.tokenizer.pad_token_id).all()
    assert ids[0][mask[0] == 1].tolist() == processor.encode_prompt("a <image>", 1)


def test_images_of_a_batch_are_in_the_order_of_the_placeholders(processor: MairaProcessor, films: list[Gray]) -> None:
    batch = processor([[films[2]], [films[0], films[1]]], ["a <image>", "b <image> c <image>"])
    expected = processor.image_processor([films[2], films[0], films[1]])["pixel_values"]
    assert torch.equal(batch["pixel_values"], expected)


def test_pixels_are_scaled_normalised_and_equal_in_three_channels(tmp_path: Path) -> None:
    levels = np.linspace(20, 220, 32 * 32).round().astype(np.uint8).reshape(32, 32)
    Image.fromarray(levels).save(tmp_path / "a.png")
    (pixels,) = MairaImageProcessor(size=32)([tmp_path / "a.png"])["pixel_values"]
    shares = (levels.astype(np.float32) - 20) / 200
    # Mean 0.5307 and deviation 0.2583 on a [0, 1] scale (specification, "Image preparation").
    for channel in pixels:
        np.testing.assert_allclose(channel.numpy(), (shares - 0.5307) / 0.2583, atol=1e-5)


def test_the_statistics_can_be_changed(films: list[Gray]) -> None:
    plain = MairaImageProcessor(size=32, image_mean=0, image_std=1)(films)["pixel_values"]
    usual = MairaImageProcessor(size=32)(films)["pixel_values"]
    torch.testing.assert_close(usual, (plain - MEAN) / DEVIATION)


def test_an_image_of_any_shape_becomes_a_square(processor: MairaProcessor) -> None:
    shapes = [(32, 32), (64, 40), (20, 90)]
    images = [np.random.default_rng(0).random(shape, np.float32) for shape in shapes]
    assert processor.image_processor(images)["pixel_values"].shape == (3, 3, 32, 32)


def test_a_file_that_is_not_there_is_named(processor: MairaProcessor, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.png: no such file"):
        processor([[tmp_path / "none.png"]], ["a <image>"])


def test_saved_and_loaded_it_gives_the_same_tensors(
    processor: MairaProcessor, films: list[Gray], tmp_path: Path
) -> None:
    processor.save_pretrained(tmp_path)
    loaded = AutoProcessor.from_pretrained(tmp_path)
    assert isinstance(loaded, MairaProcessor)
    inputs = [films[:2]], [f"a <image> b <image>{REPORT}"]
    ours, theirs = processor(*inputs), loaded(*inputs)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert loaded.encode_target(REPORT) == processor.encode_target(REPORT)


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=9), min_size=1, max_size=5), st.booleans())
def test_padding_keeps_every_row(rows: list[list[int]], left: bool) -> None:
    ids, mask = pad(rows, 0, left=left, multiple=4)
    assert ids.shape == mask.shape
    assert ids.shape[1] % 4 == 0
    assert ids.shape[1] - max(map(len, rows)) < 4
    for row, found, counted in zip(rows, ids, mask, strict=True):
        assert found[counted == 1].tolist() == row
        assert found[counted == 0].unique().tolist() in ([], [0])
        first, last = int(counted[0]), int(counted[-1])
        assert (last if left else first) == 1
