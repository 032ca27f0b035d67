"""The prompts of MAIRA-2, verbatim: preset `release` (published checkpoint) and `paper` (MAIRA-2, table B.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from maira.model.tokens import IMAGE

Task = Literal["findings", "grounded", "phrase"]
Preset = Literal["release", "paper"]

MISSING = "N/A"
PROMPT_END = "ASSISTANT:"
SYSTEM = "You are an expert radiology assistant tasked with interpreting a chest X-ray study."
GROUNDING = (
    "Each finding should be described as a self-contained plain-text sentence. If the finding is groundable, locate "
    "the finding in the current frontal chest X-ray image, with bounding boxes indicating all locations where it can "
    "be seen in the current frontal image. Otherwise, generate just the ungrounded finding without bounding boxes."
)
RELEASE_FINDINGS = (
    "Provide a description of the findings in the radiology study in comparison to the prior frontal image."
)
PAPER_FINDINGS = "provide a description of the findings in the radiology study."
RELEASE_PHRASE = (
    "Repeat the following finding as a grounded phrase with bounding boxes indicating all locations where it can be "
    "seen in the given chest X-ray image. Finding: "
)
PAPER_PHRASE = (
    "Repeat the following as a grounded phrase with bounding boxes indicating all locations where it can be seen in "
    "the given chest X-ray image. Finding: "
)
NEW_TOKENS: dict[Task, int] = {"findings": 300, "grounded": 450, "phrase": 150}
"""Default limit of a response in tokens, by task."""


@dataclass(frozen=True)
class Context:
    """The content of a prompt in addition to the frontal image; None or a blank text is a missing section.

    Sections are inserted verbatim, line ends included.
    """

    has_lateral: bool = False
    has_prior: bool = False
    prior_report: str | None = None
    indication: str | None = None
    technique: str | None = None
    comparison: str | None = None
    phrase: str | None = None


def build_prompt(task: Task, context: Context, preset: Preset = "release") -> str:
    """Build the prompt up to and including "ASSISTANT:"; the target follows after one space.

    Phrase grounding shows the current frontal image only, whatever else the study has.

    Args:
        task: task of the model.
        context: content of the prompt.
        preset: wording.

    Raises:
        ValueError: phrase grounding without a phrase.

    Source: MAIRA-2, table B.1.
    """
    if task == "phrase":
        if not (context.phrase or "").strip():
            raise ValueError("phrase grounding needs a phrase")
        image, instruction = (IMAGE, RELEASE_PHRASE) if preset == "release" else (f" {IMAGE}", PAPER_PHRASE)
        items = f"Given the current frontal image{image} {instruction}{context.phrase}"
    else:
        build = _release_items if preset == "release" else _paper_items
        items = build(task, context)
    return f"{SYSTEM} USER: {items} {PROMPT_END}"


def build_target(answer: str) -> str:
    """Build the text after the prompt: one space and the answer; the tokenizer adds its end token."""
    return f" {answer}"


def _or_missing(section: str | None) -> str:
    return section if section and section.strip() else MISSING


def _sections(context: Context) -> str:
    return (
        f"INDICATION: {_or_missing(context.indication)} TECHNIQUE: {_or_missing(context.technique)} "
        f"COMPARISON: {_or_missing(context.comparison)}"
    )


def _release_items(task: Task, context: Context) -> str:
    prior_report = f"PRIOR_REPORT: {_or_missing(context.prior_report)}"
    images = {
        (False, False): f"Given the current frontal image only{IMAGE}",
        (True, False): f"Given the current frontal image{IMAGE} and the current lateral image{IMAGE}",
        (False, True): f"Given the current frontal image{IMAGE} and the prior frontal image{IMAGE} {prior_report}",
        (True, True): (
            f"Given the current frontal image{IMAGE} the current lateral image{IMAGE} "
            f"and the prior frontal image{IMAGE} {prior_report}"
        ),
    }[context.has_lateral, context.has_prior]
    grounding = f" {GROUNDING}" if task == "grounded" else ""
    return f"{images} {RELEASE_FINDINGS}{grounding} {_sections(context)}"


def _paper_items(task: Task, context: Context) -> str:
    messages = [f"Given the current frontal image {IMAGE}"]
    if context.has_lateral:
        messages.append(f"the current lateral image {IMAGE}")
    if context.has_prior:
        messages += [f"and the prior frontal image {IMAGE}", f"PRIOR_REPORT: {_or_missing(context.prior_report)}"]
    messages.append(PAPER_FINDINGS)
    if task == "grounded":
        messages.append(GROUNDING)
    return " ".join([*messages, _sections(context)])
