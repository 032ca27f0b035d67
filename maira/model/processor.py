"""The processor: prompts as tokens with placeholders for image tokens, and images."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from transformers import AutoProcessor, AutoTokenizer, BatchFeature, PreTrainedTokenizerFast
from transformers.processing_utils import ProcessorMixin

from maira.data.images import CropMap
from maira.model.checkpoint import check_files, check_json, resolve_pretrained
from maira.model.config import MairaConfig
from maira.model.image_processor import ImageInput, MairaImageProcessor
from maira.model.parser import parse_report
from maira.model.prompts import TEMPLATE, Messages, build_messages, render
from maira.model.task_examples import PRIOR_REPORT_UNUSED, Example
from maira.model.tokens import ADDED_TOKENS, IMAGE
from radfact.errors import ErrorCode, InputError
from radfact.io.hub import SETTINGS_FILES, first_line
from radfact.io.jsonl import read_json
from radfact.records import Box

PATCH = 14
"""Side of a patch of RAD-DINO in pixels."""

GroundedText: TypeAlias = tuple[str, list[tuple[float, float, float, float]] | None]
"""A sentence and its boxes."""

_BEFORE_TARGET = "ASSISTANT:"
_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")


def load_tokenizer(folder: str | Path, **kwargs: Any) -> Any:
    """Load the tokenizer of a folder, from `tokenizer.json` if there is one."""
    # It is used unchanged: transformers 5 would rebuild a Llama tokenizer, with other spaces after added tokens.
    path = Path(folder)
    if not path.is_dir():
        return AutoTokenizer.from_pretrained(folder, **kwargs)
    check_files(path, "tokenizer", "tokenizer.json", "tokenizer.model")
    kind: Any = AutoTokenizer
    if (path / "tokenizer.json").is_file():
        kind = PreTrainedTokenizerFast
        check_files(path, "tokens for begin, end and padding", "tokenizer_config.json")
    check_json(path, "tokenizer.json", "tokenizer_config.json")
    try:
        return kind.from_pretrained(folder, **kwargs)
    except Exception as error:  # tokenizers raises nothing narrower
        message = f"the tokenizer cannot be read: {first_line(error)}"
        raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=path) from None


def _check_tokens(tokenizer: Any, folder: Path) -> None:
    """Raise an InputError unless a folder's tokenizer has MAIRA-2's tokens and valid settings."""
    file, vocabulary = folder / "tokenizer_config.json", tokenizer.get_vocab()
    for name in ("bos_token", "eos_token", "pad_token"):
        if getattr(tokenizer, f"{name}_id") is None:
            raise InputError("expected a token, found none", code=ErrorCode.MISSING_FIELD, file=file, field=name)
    if not isinstance(found := tokenizer.model_max_length, int | float):
        message = f"expected a number, found {type(found).__name__}"
        raise InputError(message, code=ErrorCode.INVALID_VALUE, file=file, field="model_max_length")
    if missing := [token for token in (IMAGE, *ADDED_TOKENS) if token not in vocabulary]:
        hint = "use the tokenizer that the model was trained with, not that of its language model"
        message = f"the tokenizer lacks {len(missing)} tokens of MAIRA-2, such as {missing[0]}; {hint}"
        raise InputError(message, code=ErrorCode.MISMATCH, file=folder)


class UnusedInputWarning(UserWarning):
    """An input of a study is not used."""


class MairaProcessor(ProcessorMixin):
    """Prepares images and encodes prompts, with placeholders for image tokens.

    It has the methods of the released processor under their names.

    Args:
        image_processor: image processor.
        tokenizer: tokenizer with MAIRA-2's tokens.
        image_seq_length: image tokens per image.
        chat_template: template of the prompts (Jinja); None for `maira.model.prompts.TEMPLATE`.
    """

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        image_seq_length: int = 1369,
        chat_template: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.image_seq_length = image_seq_length
        self.image_token_id = tokenizer.convert_tokens_to_ids(IMAGE)
        if self.image_token_id in (None, tokenizer.unk_token_id):
            raise ValueError(f"the tokenizer has no token {IMAGE}; add MAIRA-2's tokens to it")
        super().__init__(image_processor, tokenizer, chat_template=chat_template or TEMPLATE, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> MairaProcessor:
        """Read the processor of a checkpoint.

        The released one names a standard image processor, without the min-max step: its statistics are used, not its
        code. Without `image_seq_length`, as there, the length follows from the sizes of image and patch.

        Args:
            pretrained_model_name_or_path: folder, or ORG/NAME[@REVISION] on the Hub.
            kwargs: arguments of `from_pretrained`.

        Raises:
            InputError: files are missing or unfit, or the chat template does not render a prompt.
        """
        # Passed on by AutoProcessor; code in the folder is never run.
        kwargs.pop("trust_remote_code", None)
        template = kwargs.pop("chat_template", None)
        folder, kwargs = resolve_pretrained(pretrained_model_name_or_path, kwargs, SETTINGS_FILES)
        model_config = folder / "config.json"
        if folder.is_dir():
            check_files(folder, "processor", *_PROCESSOR_FILES)
            check_json(folder, *_PROCESSOR_FILES, "chat_template.json", model_config.name)
        settings, kwargs = cls.get_processor_dict(folder, **kwargs)
        try:
            image_processor = MairaImageProcessor.from_pretrained(folder, **kwargs)
        except (ValueError, TypeError) as error:
            message = f"the image processor cannot be read: {error}"
            raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=folder) from None
        tokenizer = load_tokenizer(folder, **kwargs)
        _check_tokens(tokenizer, folder)
        length = settings.get("image_seq_length", (image_processor.size // settings.get("patch_size", PATCH)) ** 2)
        expected = read_json(model_config).get("image_seq_length") if model_config.is_file() else None
        if expected not in (None, length):
            message = f"expected {expected} image tokens, as of the model in config.json, found {length}"
            file = folder / _PROCESSOR_FILES[0]
            raise InputError(message, code=ErrorCode.MISMATCH, file=file, field="image_seq_length")
        # transformers 4 may have saved it with the tokenizer.
        template = template or settings.get("chat_template") or tokenizer.chat_template
        if isinstance(template, list):
            template = {named["name"]: named["template"] for named in template}
        if isinstance(template, dict):
            if "default" not in template:
                message = f"expected a chat template named 'default', found {', '.join(template)}"
                raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=folder, field="chat_template")
            template = template["default"]
        processor = MairaProcessor(image_processor, tokenizer, length, chat_template=template)
        _check_template(processor, folder)
        return processor

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> list[str]:
        """Write the processor's files as the release has them, so that transformers' `LlavaProcessor` can read them.

        That the release names it and `BitImageProcessor` is an assumption. Their pixels are equal only for images that
        span all gray levels.

        See `transformers.ProcessorMixin.save_pretrained`.
        """
        folder = Path(save_directory)
        files = list(self.tokenizer.save_pretrained(folder, **kwargs))
        tokenizer = folder / "tokenizer_config.json"
        settings = {name: value for name, value in read_json(tokenizer).items() if name != "chat_template"}
        if settings.get("tokenizer_class") == "TokenizersBackend":
            # The name of the class in transformers 4; transformers 5 knows both.
            settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        name = {"processor_class": "Maira2Processor"}
        processor = {
            # A patch is what becomes one image token. The class token counts, which "default" removes again.
            "patch_size": self.image_processor.size // math.isqrt(self.image_seq_length),
            "image_seq_length": self.image_seq_length,
            "image_token": IMAGE,
            "num_additional_image_tokens": 1,
            "vision_feature_select_strategy": "default",
        }
        for file, values in (
            (tokenizer, settings),
            (folder / "preprocessor_config.json", self.image_processor.released_settings()),
            (folder / "processor_config.json", processor),
        ):
            file.write_text(json.dumps(values | name, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        (folder / "chat_template.jinja").write_text(self.chat_template, encoding="utf-8")
        return files

    def render(self, messages: Messages) -> str:
        """Return the text of a prompt, up to where the response begins, by the chat template."""
        text = render(messages, self.chat_template, **self.tokenizer.special_tokens_map)
        # `encode_prompt` adds it.
        return text.removeprefix(self.tokenizer.bos_token)

    def encode_example(self, example: Example) -> list[int]:
        """Return the token ids of the prompt of an example and of the start of its response."""
        ids = self.encode_prompt(self.render(example.messages), len(example.images))
        return [*ids, *self.encode_target(example.answer_start)[:-1]] if example.answer_start else ids

    def encode_prompt(self, prompt: str, images: int) -> list[int]:
        """Return the token ids of a prompt, after `<s>`, with one placeholder per image token. See `__call__`."""
        # `<s>` is added here, since the settings of the tokenizer's folder may differ.
        ids: list[int] = [self.tokenizer.bos_token_id, *self.tokenizer(prompt, add_special_tokens=False)["input_ids"]]
        placeholders = ids.count(self.image_token_id)
        if placeholders != images:
            raise ValueError(f"expected images for {placeholders} image placeholders of the prompt, found {images}")
        return [token for token in ids for _ in range(self.image_seq_length if token == self.image_token_id else 1)]

    def pad(self, rows: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Pad token ids on the left: `input_ids` and `attention_mask` (rows, length)."""
        # The tokenizer's own method gives what the settings of its folder name, perhaps without a mask.
        pads = [[self.tokenizer.pad_token_id] * (max(map(len, rows)) - len(row)) for row in rows]
        ids = torch.tensor([[*pad, *row] for pad, row in zip(pads, rows, strict=True)])
        mask = torch.tensor([[0] * len(pad) + [1] * len(row) for pad, row in zip(pads, rows, strict=True)])
        return {"input_ids": ids, "attention_mask": mask}

    def encode_target(self, target: str) -> list[int]:
        """Return the token ids of the target that follows a prompt, with `</s>` at the end."""
        # Llama's tokenizer adds a space before a text of its own, so the target is encoded after the end of a prompt.
        before: list[int] = self.tokenizer(_BEFORE_TARGET, add_special_tokens=False)["input_ids"]
        both: list[int] = self.tokenizer(_BEFORE_TARGET + target, add_special_tokens=False)["input_ids"]
        if both[: len(before)] != before:
            raise ValueError("expected a target that starts with a space; the tokenizer merges it with the prompt")
        return [*both[len(before) :], self.tokenizer.eos_token_id]

    def __call__(
        self,
        images: ImageInput | Sequence[ImageInput] | Sequence[Sequence[ImageInput]] | None = None,
        text: str | Sequence[str] = "",
        *,
        padding: bool | str = True,
        return_tensors: str | None = "pt",
        **unknown: Any,
    ) -> BatchFeature:
        """Prepare a batch for `generate`, padded on the left.

        Args:
            images: images of all prompts in the order of their placeholders, or a list of images for each prompt.
            text: prompt, or list of prompts, with one `<image>` per image.
            padding: False only if all prompts have the same length.
            return_tensors: "pt", or None for lists.
            unknown: further arguments of processors, which must be None.

        Returns:
            `input_ids` and `attention_mask` (batch, length), `pixel_values` (images, 3, size, size).
        """
        if given := [name for name, value in unknown.items() if value is not None]:
            raise ValueError(f"unknown arguments: {', '.join(given)}")
        if return_tensors not in ("pt", None):
            raise ValueError(f"return_tensors: expected 'pt' or None, found {return_tensors!r}")
        prompts = [text] if isinstance(text, str) else list(text)
        if not prompts:
            raise ValueError("text: expected at least one prompt, found none")
        shown = _images_by_prompt(images, prompts)
        ids = [self.encode_prompt(prompt, len(own)) for prompt, own in zip(prompts, shown, strict=True)]
        if not padding and len(set(map(len, ids))) > 1:
            raise ValueError(f"padding: expected prompts of one length, found {sorted(set(map(len, ids)))}")
        features = self.pad(ids)
        if flat := [image for own in shown for image in own]:
            features |= self.image_processor(flat)
        if return_tensors is None:
            features = {name: tensor.tolist() for name, tensor in features.items()}
        return BatchFeature(features)

    def format_and_preprocess_reporting_input(
        self,
        current_frontal: ImageInput,
        current_lateral: ImageInput | None = None,
        prior_frontal: ImageInput | None = None,
        indication: str | None = None,
        technique: str | None = None,
        comparison: str | None = None,
        prior_report: str | None = None,
        get_grounding: bool = False,
        assistant_text: str | None = None,
        **kwargs: Any,
    ) -> BatchFeature:
        """Prepare the images and sections of a study for `generate`, as the released processor does.

        Args:
            current_frontal: current frontal image.
            current_lateral: current lateral image.
            prior_frontal: prior frontal image.
            indication: section of the report, as the next two.
            technique: section.
            comparison: section.
            prior_report: prior report; used only with `prior_frontal`.
            get_grounding: whether to ask for a report with boxes.
            assistant_text: response that the text ends with; None for a prompt.
            kwargs: further arguments of the processor, such as `return_tensors`.
        """
        if prior_report is not None and prior_frontal is None:
            warnings.warn(PRIOR_REPORT_UNUSED, UnusedInputWarning, stacklevel=2)
        messages = build_messages(
            "grounded" if get_grounding else "findings",
            has_lateral=current_lateral is not None,
            has_prior=prior_frontal is not None,
            prior_report=prior_report,
            indication=indication,
            technique=technique,
            comparison=comparison,
        )
        images = [image for image in (current_frontal, current_lateral, prior_frontal) if image is not None]
        return self._encode(messages, images, assistant_text, kwargs)

    def format_and_preprocess_phrase_grounding_input(
        self, frontal_image: ImageInput, phrase: str, assistant_text: str | None = None, **kwargs: Any
    ) -> BatchFeature:
        """Prepare an image and a phrase to ground in it for `generate`, as the released processor does.

        See `format_and_preprocess_reporting_input`.
        """
        return self._encode(build_messages("phrase", phrase=phrase), [frontal_image], assistant_text, kwargs)

    def _encode(self, messages: Messages, images: list[ImageInput], response: str | None, options: Any) -> BatchFeature:
        if response is not None:
            messages = (*messages, {"role": "assistant", "content": [{"type": "text", "text": response}]})
        return self([images], [self.render(messages)], **options)

    def convert_output_to_plaintext_or_grounded_sequence(self, text: str) -> str | list[GroundedText]:
        """Return a response without grounding as it is, and a grounded one as its sentences with their boxes.

        Where the released processor raises an error (nested, cut off or repeated tags), this keeps every sentence.

        Args:
            text: response, without spaces at its start.

        Returns:
            The text, or a list of (sentence, boxes or None); boxes are (x_min, y_min, x_max, y_max) in shares of the
            model's square crop, see `adjust_box_for_original_image_size`.
        """
        if not any(token in text for token in ADDED_TOKENS):
            return text
        return [
            (sentence.text, [box.as_tuple() for box in sentence.boxes] if sentence.boxes else None)
            for sentence in parse_report(text).sentences
        ]

    def adjust_box_for_original_image_size(
        self, box: tuple[float, float, float, float], width: int, height: int
    ) -> tuple[float, float, float, float]:
        """Convert a box of the model's square crop to shares of the original image.

        Args:
            box: (x_min, y_min, x_max, y_max) in shares of the crop; swapped corners are put in order.
            width: width of the original image in pixels.
            height: its height.
        """
        (x_min, x_max), (y_min, y_max) = sorted(box[::2]), sorted(box[1::2])
        return CropMap(width, height).to_original(Box(x_min=x_min, y_min=y_min, x_max=x_max, y_max=y_max)).as_tuple()


def _images_by_prompt(images: Any, prompts: Sequence[str]) -> list[list[ImageInput]]:
    """Return the images of each prompt; a flat list is divided by the placeholders."""
    if images is None:
        return [[] for _ in prompts]
    if isinstance(images, str | Path | Image.Image | np.ndarray):
        images = [images]
    if any(isinstance(image, list | tuple) for image in images):
        if len(images) != len(prompts):
            raise ValueError(f"expected a list of images for each of {len(prompts)} prompts, found {len(images)}")
        return [list(own) for own in images]
    flat, counts = list(images), [prompt.count(IMAGE) for prompt in prompts]
    if sum(counts) != len(flat):
        raise ValueError(f"expected images for {sum(counts)} image placeholders of the prompts, found {len(flat)}")
    return [[flat.pop(0) for _ in range(count)] for count in counts]


def _check_template(processor: MairaProcessor, folder: Path) -> None:
    """Raise an InputError unless the chat template renders a prompt with its texts and images."""
    messages = build_messages("findings", has_lateral=True)
    texts = [item["text"] for message in messages for item in message["content"] if item["type"] == "text"]
    try:
        text = processor.render(messages)
    except Exception as error:  # a template may raise anything
        message = f"the chat template cannot be rendered: {error}"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=folder) from None
    if text.count(IMAGE) != 2 or not all(part.strip() in text for part in texts):
        message = f"expected a chat template that shows all items of text and one {IMAGE} per image"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=folder, field="chat_template")


class Maira2Processor(MairaProcessor):
    """The processor by the name in released folders, by which AutoProcessor finds the class."""


AutoProcessor.register(MairaConfig, MairaProcessor)
# Found by its name only; no configuration refers to it.
AutoProcessor.register(Maira2Processor, Maira2Processor)
