"""Tokens that MAIRA-2 adds to a Llama tokenizer, in the order of the released one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maira.model.parser import BINS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OBJECT, OBJECT_END, BOX, BOX_END = "<obj>", "</obj>", "<box>", "</box>"
IMAGE = "<image>"
SPARE_IMAGE_TOKENS = ("<image_prior>", "<image_lateral>")
"""Further image tokens of the released tokenizer, which no prompt uses."""

ADDED_TOKENS = (OBJECT, OBJECT_END, *(f"<{axis}{i}>" for axis in "xy" for i in range(BINS)), BOX, BOX_END)
"""Not special tokens, so that decoding with `skip_special_tokens` keeps them."""
NO_TEXT = ("<s>", "</s>", IMAGE, *SPARE_IMAGE_TOKENS, *ADDED_TOKENS)
"""Texts that a tokenizer turns into control tokens anywhere, so that no narrative may contain them."""


def added_ids(image_token: int) -> range:
    """Return the ids of `ADDED_TOKENS`, which directly precede the image token (see `add_tokens`)."""
    return range(image_token - len(ADDED_TOKENS), image_token)


def add_tokens(tokenizer: PreTrainedTokenizerBase) -> int:
    """Add MAIRA-2's tokens to a tokenizer in the order of the released one, and return the number of added tokens."""
    from transformers import AddedToken

    plain = [AddedToken(token, normalized=False, special=False) for token in ADDED_TOKENS]
    images = [AddedToken(token, normalized=False, special=True) for token in (IMAGE, *SPARE_IMAGE_TOKENS)]
    return int(tokenizer.add_tokens(plain)) + int(tokenizer.add_tokens(images, special_tokens=True))
