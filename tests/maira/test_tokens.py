import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from maira.model.tokens import IMAGE, SPARE_IMAGE_TOKENS, add_tokens
from maira.train.components import train_tokenizer

# The ids of the release for the 32,000 tokens of Llama (specification, "Architecture").
RELEASE = {
    "<obj>": 32000,
    "</obj>": 32001,
    "<x0>": 32002,
    "<x99>": 32101,
    "<y0>": 32102,
    "<y99>": 32201,
    "<box>": 32202,
    "</box>": 32203,
    "<image>": 32204,
}


def test_ids_are_those_of_the_release() -> None:
    words = {f"w{i}": i for i in range(32000)}
    llama_sized = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")))
    assert add_tokens(llama_sized) == 207
    assert {token: llama_sized.convert_tokens_to_ids(token) for token in RELEASE} == RELEASE
    assert [llama_sized.convert_tokens_to_ids(token) for token in SPARE_IMAGE_TOKENS] == [32205, 32206]
    assert len(llama_sized) == 32207


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(["The lungs are clear. A nodule."], 300)


def test_only_image_tokens_are_special(tokenizer: PreTrainedTokenizerFast) -> None:
    special = set(tokenizer.all_special_tokens) | {
        token.content for token in tokenizer.added_tokens_decoder.values() if token.special
    }
    assert special == {"<unk>", "<s>", "</s>", IMAGE, *SPARE_IMAGE_TOKENS}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_encode_and_decode_round_trip(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
