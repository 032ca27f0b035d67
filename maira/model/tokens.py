"""The tokens that MAIRA-2 adds to a Llama tokenizer, and their order (specification, "Architecture")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maira.model.parser import BINS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OBJECT, OBJECT_END, BOX, BOX_END = "<obj>", "</obj>", "<box>", "</box>"
IMAGE = "<image>"
SPARE_IMAGE_TOKENS = ("<image_prior>", "<image_lateral>")
"""The release's tokenizer knows two more image tokens that its prompts never use."""

COORDINATES = tuple(f"<{axis}{i}>" for axis in "xy" for i in range(BINS))
ADDED_TOKENS = (OBJECT, OBJECT_END, *COORDINATES, BOX, BOX_END)
"""Added but not special, so that decoding with `skip_special_tokens` keeps them."""
NO_TEXT = ("<s>", "</s>", IMAGE, *SPARE_IMAGE_TOKENS, *ADDED_TOKENS)
"""What a tokenizer turns into a control token wherever it stands, so no narrative may contain it."""


def added_ids(image_token: int) -> range:
    """The ids of `ADDED_TOKENS`, which stand right before the image token's (`add_tokens`)."""
    return range(image_token - len(ADDED_TOKENS), image_token)


def add_tokens(tokenizer: PreTrainedTokenizerBase) -> int:
    """Add MAIRA-2's tokens to a tokenizer, in the order of the release, and return how many were added."""
    from transformers import AddedToken

    plain = [AddedToken(token, normalized=False, special=False) for token in ADDED_TOKENS]
    images = [AddedToken(token, normalized=False, special=True) for token in (IMAGE, *SPARE_IMAGE_TOKENS)]
    return int(tokenizer.add_tokens(plain)) + int(tokenizer.add_tokens(images, special_tokens=True))
