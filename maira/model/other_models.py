"""Image-text-to-text models of transformers other than MAIRA-2: loading, chat templates, and reports in responses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from maira.data.sources.sections import split_sections
from maira.model.checkpoint import check_finite, raise_mismatch, read_headers
from maira.model.config import MairaConfig
from maira.model.prompts import Messages, build_messages
from maira.model.task_examples import Example
from radfact.errors import ErrorCode, InputError
from radfact.io.hub import first_line
from radfact.io.jsonl import read_json
from radfact.llm.response_text import bodies
from radfact.metrics.llm.responses.report_text import parse_report

_MARKDOWN_HEADING = re.compile(r"^[ \t]*(?:#+|\*\*)[ \t]*(\w[^\n:]*?)[ \t]*(?:\*\*|#)*[ \t]*$", re.MULTILINE)


def is_other_model(checkpoint: Path | None) -> bool:
    """Return whether this is such a model; None stands for a server's."""
    if checkpoint is None or not (path := checkpoint / "config.json").is_file():
        return checkpoint is None
    values = read_json(path)
    kind = values.get("model_type") if isinstance(values, dict) else None
    return kind != MairaConfig.model_type and kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES


def load_other_model(checkpoint: Path, dtype: torch.dtype) -> tuple[Any, Any, bool]:
    """Load a model and its processor; the third value is whether its chat template takes no system message."""
    read_headers(checkpoint)
    try:
        processor = AutoProcessor.from_pretrained(checkpoint)
        options = {"dtype": dtype, "output_loading_info": True, "use_safetensors": True}
        model, info = AutoModelForImageTextToText.from_pretrained(checkpoint, **options)
    except Exception as error:  # transformers and tokenizers raise nothing narrower
        message = f"cannot be loaded as an image-text-to-text model: {first_line(error)}"
        raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=checkpoint) from None
    raise_mismatch(info["missing_keys"], (), info["mismatched_keys"], file=checkpoint)
    for name, tensor in model.state_dict().items():
        check_finite(name, tensor, checkpoint)
    messages, reason = build_messages("findings", has_lateral=True), "it does not show all items of text"
    texts = [item["text"].strip() for message in messages for item in message["content"] if item["type"] == "text"]
    for conversation in (messages, merge_system(messages)):
        try:
            text = processor.apply_chat_template(list(conversation), add_generation_prompt=True)
        except Exception as error:  # a template may raise anything
            reason = first_line(error)
            continue
        if all(part in text for part in texts):
            return model, processor, conversation is not messages
    message = f"expected a model with a chat template for texts and images: {reason}"
    raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=checkpoint, field="chat_template")


def merge_system(messages: Messages) -> Messages:
    """Return a prompt as one message of the user."""
    system, user = messages
    return ({"role": "user", "content": [*system["content"], {"type": "text", "text": "\n\n"}, *user["content"]]},)


def find_report(text: str, example: Example) -> str:
    """Return the report, or findings section, in a response with other text around it; ValueError for a refusal."""
    *fenced, body = bodies(text)
    if len(fenced) == 1 and 2 * len(fenced[0]) > len(body):
        body = fenced[0]
    body = _MARKDOWN_HEADING.sub(r"\1:", body)
    report = parse_report(body, example.text, requires_overlap=False) if body.strip() else ""
    return split_sections(report).get("findings", report) if example.task == "findings" else report
