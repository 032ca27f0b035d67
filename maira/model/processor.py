"""Image preparation and tokenization of prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor, AutoProcessor, AutoTokenizer, BatchFeature, PreTrainedTokenizerFast
from transformers.image_processing_utils import BaseImageProcessor
from transformers.processing_utils import ProcessorMixin

from maira.data.images import Gray, gray_levels, load_gray, prepare
from maira.model.checkpoint import check_json, resolve_pretrained
from maira.model.config import MairaConfig
from maira.model.prompts import PROMPT_END
from maira.model.tokens import ADDED_TOKENS, IMAGE
from radfact.errors import ErrorCode, InputError
from radfact.io.hub import SETTINGS_FILES

MEAN, DEVIATION = 0.5307, 0.2583
"""Mean and standard deviation of the gray levels of RAD-DINO's training images, on a [0, 1] scale."""

PATCH = 14
"""Side of a patch of RAD-DINO in pixels."""

ImageInput: TypeAlias = Path | str | Image.Image | Gray
"""A file, an open image, or gray levels (height, width) on any scale."""

_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")

# Settings of transformers' own image processors. The preparation here is always the same, so they are ignored.
_IGNORED = frozenset(
    {
        "crop_size",
        "do_center_crop",
        "do_convert_rgb",
        "do_normalize",
        "do_rescale",
        "do_resize",
        "resample",
        "rescale_factor",
    }
)


class MairaImageProcessor(BaseImageProcessor):
    """Prepares images: gray levels, min-max, centered square, normalization, three equal channels.

    The settings of a standard image processor, as in released folders, are read too: a size by name and three equal
    means and deviations.

    Args:
        size: side of the square in pixels.
        image_mean, image_std: mean and standard deviation of gray levels on a [0, 1] scale.

    Raises:
        ValueError: the size is not square, or the channels have different statistics.
    """

    model_input_names = ["pixel_values"]  # noqa: RUF012

    def __init__(
        self,
        size: int | Mapping[str, int] = 518,
        image_mean: float | Sequence[float] = MEAN,
        image_std: float | Sequence[float] = DEVIATION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{name: value for name, value in kwargs.items() if name not in _IGNORED})
        self.size = int(_single_value("size", size.values() if isinstance(size, Mapping) else [size]))
        self.image_mean = _single_value("image_mean", image_mean if isinstance(image_mean, Sequence) else [image_mean])
        self.image_std = _single_value("image_std", image_std if isinstance(image_std, Sequence) else [image_std])

    def __call__(self, images: Sequence[ImageInput], **_: Any) -> BatchFeature:
        """Read and prepare images.

        Returns:
            `pixel_values` (images, 3, size, size).

        Raises:
            InputError: a file cannot be read as an image, or an image is not a radiograph.
        """
        squares = [prepare(_gray_levels(image), self.size) for image in images]
        pixels = (torch.from_numpy(np.stack(squares)) - self.image_mean) / self.image_std
        return BatchFeature({"pixel_values": pixels[:, None].expand(-1, 3, -1, -1)})


def _gray_levels(image: ImageInput) -> Gray:
    if isinstance(image, Image.Image):
        return gray_levels(image)
    return image if isinstance(image, np.ndarray) else load_gray(image)


def _single_value(name: str, values: Iterable[float]) -> float:
    distinct = set(values)
    if len(distinct) != 1:
        raise ValueError(f"{name}: expected one value for all channels and sides, found {sorted(distinct)}")
    return distinct.pop()


def load_tokenizer(folder: str | Path, **kwargs: Any) -> Any:
    """Load the tokenizer of a folder.

    A `tokenizer.json` is used unchanged, since transformers 5 would rebuild a Llama tokenizer, whose spaces after added
    tokens may differ from those in training. The tokenizer is built from `tokenizer.model` only without one.

    Args:
        folder: folder of the tokenizer.
        kwargs: arguments of `from_pretrained`.

    Raises:
        InputError: the folder has no tokenizer, or one that cannot be read.
        OSError: the folder does not exist.
    """
    path = Path(folder)
    if not path.is_dir():
        return AutoTokenizer.from_pretrained(folder, **kwargs)
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        raise InputError(
            "no tokenizer here: expected tokenizer.json or tokenizer.model", code=ErrorCode.FILE_NOT_FOUND, file=path
        )
    if (path / "tokenizer.json").is_file() and not (path / "tokenizer_config.json").is_file():
        message = "no such file; it names the tokenizer's tokens for begin, end and padding"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=path / "tokenizer_config.json")
    check_json(path, "tokenizer.json", "tokenizer_config.json")
    kind = PreTrainedTokenizerFast if (path / "tokenizer.json").is_file() else AutoTokenizer
    try:
        return kind.from_pretrained(folder, **kwargs)
    except Exception as error:  # tokenizers raises nothing narrower
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"the tokenizer cannot be read: {lines[0]}", code=ErrorCode.FILE_UNREADABLE, file=path
        ) from None


def _check_processor(folder: Path) -> None:
    """Raise an InputError unless a folder has the files of a processor."""
    if not any((folder / name).is_file() for name in _PROCESSOR_FILES):
        raise InputError(
            f"no processor here: expected {' or '.join(_PROCESSOR_FILES)}", code=ErrorCode.FILE_NOT_FOUND, file=folder
        )
    check_json(folder, *_PROCESSOR_FILES)


def _check_tokens(tokenizer: Any, folder: Path | str) -> None:
    """Raise an InputError unless a folder's tokenizer has MAIRA-2's tokens and valid settings."""
    file = Path(folder) / "tokenizer_config.json"
    for name in ("bos_token", "eos_token", "pad_token"):
        if getattr(tokenizer, f"{name}_id") is None:
            raise InputError("expected a token, found none", code=ErrorCode.MISSING_FIELD, file=file, field=name)
    if not isinstance(tokenizer.model_max_length, int | float):
        found = type(tokenizer.model_max_length).__name__
        message = f"expected a number, found {found}"
        raise InputError(message, code=ErrorCode.INVALID_VALUE, file=file, field="model_max_length")
    vocabulary = tokenizer.get_vocab()
    if missing := [token for token in (IMAGE, *ADDED_TOKENS) if token not in vocabulary]:
        raise InputError(
            f"the tokenizer lacks {len(missing)} tokens of MAIRA-2, such as {missing[0]}; use the tokenizer that the "
            "model was trained with, not that of its language model",
            code=ErrorCode.MISMATCH,
            file=folder,
        )


class MairaProcessor(ProcessorMixin):
    """Prepares images and encodes prompts, with placeholders for image tokens.

    Args:
        image_processor: image processor.
        tokenizer: tokenizer with MAIRA-2's tokens.
        image_seq_length: image tokens per image.

    Raises:
        ValueError: the tokenizer has no image token.
    """

    def __init__(
        self, image_processor: Any = None, tokenizer: Any = None, image_seq_length: int = 1369, **kwargs: Any
    ) -> None:
        self.image_seq_length = image_seq_length
        self.image_token_id = tokenizer.convert_tokens_to_ids(IMAGE)
        if self.image_token_id in (None, tokenizer.unk_token_id):
            raise ValueError(f"the tokenizer has no token {IMAGE}; add MAIRA-2's tokens to it")
        super().__init__(image_processor, tokenizer, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> MairaProcessor:
        """Read our own folder or the released one.

        The released one names a standard image processor, without the min-max step: its statistics are used, not its
        code. Without `image_seq_length`, as there, the length follows from the sizes of image and patch.

        Args:
            pretrained_model_name_or_path: folder, or ORG/NAME[@REVISION] on the Hub.
            kwargs: arguments of `from_pretrained`.

        Raises:
            InputError: the folder lacks files of a processor, one cannot be read, or its tokenizer lacks tokens.
            OSError: the folder does not exist.
        """
        # Passed on by AutoProcessor; code in the folder is never run.
        kwargs.pop("trust_remote_code", None)
        folder, kwargs = resolve_pretrained(pretrained_model_name_or_path, kwargs, SETTINGS_FILES)
        if folder.is_dir():
            _check_processor(folder)
        settings, kwargs = cls.get_processor_dict(folder, **kwargs)
        try:
            image_processor = MairaImageProcessor.from_pretrained(folder, **kwargs)
        except (ValueError, TypeError) as error:
            raise InputError(
                f"the image processor cannot be read: {error}", code=ErrorCode.INVALID_FORMAT, file=folder
            ) from None
        tokenizer = load_tokenizer(folder, **kwargs)
        _check_tokens(tokenizer, folder)
        patches = image_processor.size // settings.get("patch_size", PATCH)
        return MairaProcessor(image_processor, tokenizer, settings.get("image_seq_length", patches**2))

    def encode_prompt(self, prompt: str, images: int) -> list[int]:
        """Return the token ids of a prompt, after `<s>`, with one placeholder per image token.

        Args:
            prompt: prompt with one placeholder per image.
            images: number of images.

        Raises:
            ValueError: the number of placeholders differs from the number of images.
        """
        # `<s>` is added here, since the settings of the tokenizer's folder may differ.
        ids: list[int] = [self.tokenizer.bos_token_id, *self.tokenizer(prompt, add_special_tokens=False)["input_ids"]]
        placeholders = ids.count(self.image_token_id)
        if placeholders != images:
            raise ValueError(f"expected images for {placeholders} image placeholders of the prompt, found {images}")
        repeats = {self.image_token_id: self.image_seq_length}
        return [token for token in ids for _ in range(repeats.get(token, 1))]

    def encode_target(self, target: str) -> list[int]:
        """Return the token ids of the target that follows a prompt, with `</s>` at the end.

        Raises:
            ValueError: the tokenizer would merge the start of the target with the end of the prompt.
        """
        # Llama's tokenizer adds a space before a text of its own, so the target is encoded after the prompt's end.
        before: list[int] = self.tokenizer(PROMPT_END, add_special_tokens=False)["input_ids"]
        both: list[int] = self.tokenizer(PROMPT_END + target, add_special_tokens=False)["input_ids"]
        if both[: len(before)] != before:
            raise ValueError("expected a target that starts with a space; the tokenizer merges it with the prompt")
        return [*both[len(before) :], self.tokenizer.eos_token_id]

    def __call__(
        self, images: Sequence[Sequence[ImageInput]], text: Sequence[str], *, return_tensors: str = "pt"
    ) -> BatchFeature:
        """Prepare a batch for `generate`, padded on the left.

        Args:
            images: images of each prompt, in the order of the placeholders.
            text: prompts.
            return_tensors: "pt", the only choice.

        Returns:
            `input_ids` and `attention_mask` (batch, length), `pixel_values` (images, 3, size, size).

        Raises:
            ValueError: placeholders and images of a prompt do not match, or prompts and lists of images.
            InputError: a file cannot be read as an image, or an image is not a radiograph.
        """
        if return_tensors != "pt":
            raise ValueError(f"return_tensors: expected 'pt', found {return_tensors!r}")
        if isinstance(text, str) or len(text) != len(images) or not text:
            count = 1 if isinstance(text, str) else len(text)
            raise ValueError(f"expected a list of images for each of {count} prompts, found {len(images)}")
        ids = [self.encode_prompt(prompt, len(shown)) for prompt, shown in zip(text, images, strict=True)]
        tokens, mask = pad(ids, self.tokenizer.pad_token_id, left=True)
        flat = [image for shown in images for image in shown]
        pixels = self.image_processor(flat)["pixel_values"]
        return BatchFeature({"input_ids": tokens, "attention_mask": mask, "pixel_values": pixels})


def pad(rows: Sequence[Sequence[int]], value: int, *, left: bool = False, multiple: int = 1) -> tuple[Tensor, Tensor]:
    """Pad rows of token ids to one tensor.

    Args:
        rows: token ids of each row.
        value: id of the padding.
        left: whether to pad on the left.
        multiple: the length is rounded up to a multiple of this.

    Returns:
        Ids and mask (rows, length); the mask is 1 for tokens and 0 for padding.
    """
    length = -(-max(map(len, rows)) // multiple) * multiple
    ids = torch.full((len(rows), length), value, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        place = slice(length - len(row), None) if left else slice(0, len(row))
        ids[i, place] = torch.tensor(row, dtype=torch.long)
        mask[i, place] = 1
    return ids, mask


class Maira2Processor(MairaProcessor):
    """The processor by the name in released folders, by which AutoProcessor finds the class."""


AutoImageProcessor.register(MairaConfig, MairaImageProcessor)
AutoProcessor.register(MairaConfig, MairaProcessor)
# Found by its name only; no configuration refers to it.
AutoProcessor.register(Maira2Processor, Maira2Processor)
