"""From images and report sections to the tensors that the model reads."""

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

from data.images import Gray, gray_levels, load_gray, prepare
from maira.model.checkpoint import check_json
from maira.model.config import MairaConfig
from maira.model.prompts import PROMPT_END
from maira.model.tokens import ADDED_TOKENS, IMAGE
from radfact.errors import InputError

MEAN, DEVIATION = 0.5307, 0.2583
"""Grey level statistics of RAD-DINO's training images on a [0, 1] scale (specification, "Image preparation")."""

PATCH = 14
"""Side of a patch of RAD-DINO, pixels."""

ImageInput: TypeAlias = Path | str | Image.Image | Gray
"""A file, an open image, or grey levels (height, width) on any scale."""

_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")

# Settings of transformers' own image processors that are no choice here: the preparation is always the same.
_FIXED = frozenset(
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
    """Grey, min-max, centred square, normalised, three equal channels.

    The settings of a standard image processor are understood too, as released folders have them: a size by name and
    three equal means and deviations.

    Args:
        size: side of the square, pixels.
        image_mean, image_std: of grey levels on a [0, 1] scale.

    Raises:
        ValueError: the size is no square, or the channels have different statistics.
    """

    model_input_names = ["pixel_values"]  # noqa: RUF012

    def __init__(
        self,
        size: int | Mapping[str, int] = 518,
        image_mean: float | Sequence[float] = MEAN,
        image_std: float | Sequence[float] = DEVIATION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{name: value for name, value in kwargs.items() if name not in _FIXED})
        self.size = int(_the_one("size", size.values() if isinstance(size, Mapping) else [size]))
        self.image_mean = _the_one("image_mean", image_mean if isinstance(image_mean, Sequence) else [image_mean])
        self.image_std = _the_one("image_std", image_std if isinstance(image_std, Sequence) else [image_std])

    def __call__(self, images: Sequence[ImageInput], **_: Any) -> BatchFeature:
        """Read and prepare images.

        Returns:
            `pixel_values` (images, 3, size, size).

        Raises:
            InputError: a file cannot be read as an image, or an image is no radiograph.
        """
        squares = [prepare(_levels(image), self.size) for image in images]
        pixels = (torch.from_numpy(np.stack(squares)) - self.image_mean) / self.image_std
        return BatchFeature({"pixel_values": pixels[:, None].expand(-1, 3, -1, -1)})


def _levels(image: ImageInput) -> Gray:
    if isinstance(image, Image.Image):
        return gray_levels(image)
    return image if isinstance(image, np.ndarray) else load_gray(image)


def _the_one(name: str, values: Iterable[float]) -> float:
    found = set(values)
    if len(found) != 1:
        raise ValueError(f"{name} must be one number, or the same for all channels and sides, not {sorted(found)}")
    return found.pop()


def load_tokenizer(folder: str | Path, **kwargs: Any) -> Any:
    """The tokenizer of a folder.

    A `tokenizer.json` is taken as it is, since transformers 5 would build a Llama tokenizer anew and may put spaces
    behind added tokens, or leave them out, other than the one that the model was trained with. Only without one is it
    built from `tokenizer.model`.

    Args:
        folder: with the tokenizer's files.
        kwargs: as for any `from_pretrained`.

    Raises:
        InputError: the folder has none, or one that cannot be read.
        OSError: there is no such folder.
    """
    path = Path(folder)
    if not path.is_dir():
        return AutoTokenizer.from_pretrained(folder, **kwargs)
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        raise InputError("no tokenizer here: expected tokenizer.json or tokenizer.model", file=path)
    check_json(path, "tokenizer.json", "tokenizer_config.json")
    kind = PreTrainedTokenizerFast if (path / "tokenizer.json").is_file() else AutoTokenizer
    try:
        return kind.from_pretrained(folder, **kwargs)
    except Exception as error:  # the library of tokenizers raises nothing narrower
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"the tokenizer cannot be read: {said[0]}", file=path) from None


def _check_processor(folder: Path) -> None:
    """Raise an InputError unless a folder has the files of a processor."""
    if not any((folder / name).is_file() for name in _PROCESSOR_FILES):
        raise InputError(f"no processor here: expected {' or '.join(_PROCESSOR_FILES)}", file=folder)
    check_json(folder, *_PROCESSOR_FILES)


def _check_tokens(tokenizer: Any, folder: Path | str) -> None:
    """Raise an InputError unless a folder's tokenizer has MAIRA-2's tokens."""
    known = tokenizer.get_vocab()
    if lacking := [token for token in (IMAGE, *ADDED_TOKENS) if token not in known]:
        raise InputError(
            f"the tokenizer lacks MAIRA-2's tokens ({lacking[0]}{_others(len(lacking) - 1)}): expected the one that "
            "the model was trained with, which is not that of its language model",
            file=folder,
        )


def _others(count: int) -> str:
    return f" and {count} more" if count else ""


class MairaProcessor(ProcessorMixin):
    """Image preparation and tokenizer in one; prompts become token ids with room for the images.

    Args:
        image_processor: prepares the images.
        tokenizer: with MAIRA-2's tokens.
        image_seq_length: tokens an image takes.

    Raises:
        ValueError: the tokenizer has no image token.
    """

    def __init__(
        self, image_processor: Any = None, tokenizer: Any = None, image_seq_length: int = 1369, **kwargs: Any
    ) -> None:
        self.image_seq_length = image_seq_length
        self.image_token_id = tokenizer.convert_tokens_to_ids(IMAGE)
        if self.image_token_id in (None, tokenizer.unk_token_id):
            raise ValueError(f"the tokenizer has no token {IMAGE}; MAIRA-2's tokens must be added to it")
        super().__init__(image_processor, tokenizer, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> MairaProcessor:
        """Read our own folder or the released one.

        The released one names a standard image processor, which leaves out the min-max step: its statistics are taken,
        not its code. Where no length of an image is given, as there, it follows from the sizes of image and patch.

        Args:
            pretrained_model_name_or_path: folder.
            kwargs: as for any `from_pretrained`.

        Raises:
            InputError: the folder lacks files of a processor, one cannot be read, or its tokenizer lacks tokens.
            OSError: there is no such folder.
        """
        # AutoProcessor passes it on, and code of the folder is never run.
        kwargs.pop("trust_remote_code", None)
        folder = Path(pretrained_model_name_or_path)
        if folder.is_dir():
            _check_processor(folder)
        settings, kwargs = cls.get_processor_dict(pretrained_model_name_or_path, **kwargs)
        try:
            image_processor = MairaImageProcessor.from_pretrained(pretrained_model_name_or_path, **kwargs)
        except (ValueError, TypeError) as error:
            raise InputError(f"the image processor cannot be read: {error}", file=folder) from None
        tokenizer = load_tokenizer(pretrained_model_name_or_path, **kwargs)
        _check_tokens(tokenizer, folder)
        patches = image_processor.size // settings.get("patch_size", PATCH)
        return MairaProcessor(image_processor, tokenizer, settings.get("image_seq_length", patches**2))

    def encode_prompt(self, prompt: str, images: int) -> list[int]:
        """Token ids of a prompt, `<s>` in front and every placeholder as often as an image has tokens.

        Raises:
            ValueError: the prompt has another number of placeholders than there are images.
        """
        # Not left to the tokenizer, whose folder may say otherwise.
        ids: list[int] = [self.tokenizer.bos_token_id, *self.tokenizer(prompt, add_special_tokens=False)["input_ids"]]
        wanted = ids.count(self.image_token_id)
        if wanted != images:
            raise ValueError(f"the prompt has {wanted} image placeholders and there are {images} images")
        repeats = {self.image_token_id: self.image_seq_length}
        return [token for token in ids for _ in range(repeats.get(token, 1))]

    def encode_target(self, target: str) -> list[int]:
        """Token ids of what follows a prompt, with `</s>` at the end; appended to the prompt's, they are the sample.

        Raises:
            ValueError: the tokenizer would join the start of the target to the end of the prompt.
        """
        # Llama's tokenizer puts a space in front of a text that stands alone, so the target is cut off a longer one.
        before: list[int] = self.tokenizer(PROMPT_END, add_special_tokens=False)["input_ids"]
        both: list[int] = self.tokenizer(PROMPT_END + target, add_special_tokens=False)["input_ids"]
        if both[: len(before)] != before:
            raise ValueError(
                f"the tokenizer joins the prompt's end to the answer; it must start with a space: {target!r:.40}"
            )
        return [*both[len(before) :], self.tokenizer.eos_token_id]

    def __call__(
        self, images: Sequence[Sequence[ImageInput]], text: Sequence[str], *, return_tensors: str = "pt"
    ) -> BatchFeature:
        """A batch for `generate`, padded on the left.

        Args:
            images: for each prompt its images, in the order of the placeholders.
            text: the prompts.
            return_tensors: "pt"; there are no others.

        Returns:
            `input_ids` and `attention_mask` (batch, length), `pixel_values` (images, 3, size, size).

        Raises:
            ValueError: placeholders and images of a prompt do not match, or prompts and lists of images.
            InputError: a file cannot be read as an image, or an image is no radiograph.
        """
        if return_tensors != "pt":
            raise ValueError(f"tensors are PyTorch's ('pt'), not {return_tensors!r}")
        if isinstance(text, str) or len(text) != len(images) or not text:
            count = 1 if isinstance(text, str) else len(text)
            raise ValueError(f"a list of prompts needs as many lists of images: {count} and {len(images)} were given")
        ids = [self.encode_prompt(prompt, len(shown)) for prompt, shown in zip(text, images, strict=True)]
        tokens, mask = pad(ids, self.tokenizer.pad_token_id, left=True)
        flat = [image for shown in images for image in shown]
        pixels = self.image_processor(flat)["pixel_values"]
        return BatchFeature({"input_ids": tokens, "attention_mask": mask, "pixel_values": pixels})


def pad(rows: Sequence[Sequence[int]], value: int, *, left: bool = False, multiple: int = 1) -> tuple[Tensor, Tensor]:
    """Rows of ids as one tensor (rows, longest, rounded up to a multiple) and its mask, 1 where a row has a token."""
    length = -(-max(map(len, rows)) // multiple) * multiple
    ids = torch.full((len(rows), length), value, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        place = slice(length - len(row), None) if left else slice(0, len(row))
        ids[i, place] = torch.tensor(row, dtype=torch.long)
        mask[i, place] = 1
    return ids, mask


class Maira2Processor(MairaProcessor):
    """The same by the name that a released folder gives it, which is how AutoProcessor finds the class."""


AutoImageProcessor.register(MairaConfig, MairaImageProcessor)
AutoProcessor.register(MairaConfig, MairaProcessor)
# No configuration leads to this one: only the name does.
AutoProcessor.register(Maira2Processor, Maira2Processor)
