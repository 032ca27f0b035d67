"""The prompts of MAIRA-2, verbatim: preset `release` (published checkpoint) and `paper` (MAIRA-2, table B.1)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, TypeAlias

from maira.model.tokens import IMAGE
from radfact.io.yaml_files import read_yaml

Task = Literal["findings", "grounded", "phrase"]
Preset = Literal["release", "paper"]

Messages: TypeAlias = tuple[dict[str, Any], ...]
"""A conversation in the form of transformers: roles, and contents of items of text and image."""

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role != 'system' %} {{ message.role | upper }}: {% endif %}"
    "{% for item in message.content %}{{ '<image>' if item.type == 'image' else item.text }}{% endfor %}"
    "{% endfor %}"
    "{% if add_generation_prompt %} ASSISTANT:{% endif %}"
)
"""The chat template of checkpoints made here; a checkpoint with another one is prompted with that."""

MISSING = "N/A"
TEXTS = read_yaml(Path(__file__).with_suffix(".yaml"))
SYSTEM, GROUNDING = TEXTS["system"], TEXTS["grounding"]
RELEASE_FINDINGS, RELEASE_PHRASE = (TEXTS[name]["release"] for name in ("findings", "phrase"))
NEW_TOKENS: dict[Task, int] = {"findings": 300, "grounded": 450, "phrase": 150}
"""Default limit of a response in tokens, by task."""


def build_messages(
    task: Task,
    preset: Preset = "release",
    *,
    has_lateral: bool = False,
    has_prior: bool = False,
    prior_report: str | None = None,
    indication: str | None = None,
    technique: str | None = None,
    comparison: str | None = None,
    phrase: str | None = None,
) -> Messages:
    """Build the messages of a prompt (MAIRA-2, table B.1), with verbatim sections; None or a blank one is missing."""
    if task == "phrase" and not (phrase or "").strip():
        raise ValueError("phrase grounding needs a phrase")
    prior_report, indication, technique, comparison = (
        section if section and section.strip() else MISSING
        for section in (prior_report, indication, technique, comparison)
    )
    is_release, is_phrase = preset == "release", task == "phrase"
    instruction = TEXTS["phrase" if is_phrase else "findings"][preset]
    blank = "" if is_release else " "
    names = ["current frontal", *["current lateral"] * has_lateral, *["prior frontal"] * has_prior]
    images = [f"the {name} image{blank}{IMAGE}" for name in (names[:1] if is_phrase else names)]
    if is_phrase:
        text = f"Given {images[0]} {instruction} {phrase}"
    else:
        if is_release and len(images) == 1:
            images = [f"the current frontal image only{IMAGE}"]
        elif is_release or has_prior:
            images[-1] = f"and {images[-1]}"
        prior = [f"PRIOR_REPORT: {prior_report}"] if has_prior else []
        grounding = [GROUNDING] if task == "grounded" else []
        sections = f"INDICATION: {indication} TECHNIQUE: {technique} COMPARISON: {comparison}"
        text = " ".join(["Given", *images, *prior, instruction, *grounding, sections])
    parts = filter(None, re.split(f"({IMAGE})", text))
    items = [{"type": "image"} if part == IMAGE else {"type": "text", "text": part} for part in parts]
    system = [{"type": "text", "text": SYSTEM}]
    return {"role": "system", "content": system}, {"role": "user", "content": items}


def render(messages: Messages, template: str = TEMPLATE, **tokens: str) -> str:
    """Return the text of a prompt, up to where the response begins; `tokens` are special tokens by name."""
    # Imported here, so that the prompts can be read without transformers.
    from transformers.utils.chat_template_utils import render_jinja_template

    is_open = messages[-1]["role"] != "assistant"
    (text,), _ = render_jinja_template([messages], chat_template=template, add_generation_prompt=is_open, **tokens)
    return str(text)


def build_target(answer: str) -> str:
    """Build the text after the prompt: one space and the answer; the tokenizer adds its end token."""
    return f" {answer}"
