"""Prompts word for word, typed from the specification ("Prompt, release preset") and from MAIRA-2, table B.1."""

from itertools import product
from typing import Any

import pytest

from maira.model.prompts import NEW_TOKENS, Preset, Task, build_messages, render

HEAD = "You are an expert radiology assistant tasked with interpreting a chest X-ray study. USER: "
TAIL = " ASSISTANT:"
SECTIONS: dict[str, str] = {"indication": "Cough.", "technique": "PA view.", "comparison": "None."}
GROUNDED = (
    " Each finding should be described as a self-contained plain-text sentence."
    " If the finding is groundable, locate the finding in the current frontal chest X-ray image,"
    " with bounding boxes indicating all locations where it can be seen in the current frontal image."
    " Otherwise, generate just the ungrounded finding without bounding boxes."
)
RELEASE = {
    (False, False): "Given the current frontal image only<image>",
    (True, False): "Given the current frontal image<image> and the current lateral image<image>",
    (False, True): (
        "Given the current frontal image<image> and the prior frontal image<image> PRIOR_REPORT: Lungs were clear."
    ),
    (True, True): (
        "Given the current frontal image<image> the current lateral image<image>"
        " and the prior frontal image<image> PRIOR_REPORT: Lungs were clear."
    ),
}
PAPER = {
    (False, False): "Given the current frontal image <image>",
    (True, False): "Given the current frontal image <image> the current lateral image <image>",
    (False, True): (
        "Given the current frontal image <image> and the prior frontal image <image> PRIOR_REPORT: Lungs were clear."
    ),
    (True, True): (
        "Given the current frontal image <image> the current lateral image <image>"
        " and the prior frontal image <image> PRIOR_REPORT: Lungs were clear."
    ),
}
INSTRUCTION = {
    "release": (
        " Provide a description of the findings in the radiology study in comparison to the prior frontal image."
    ),
    "paper": " provide a description of the findings in the radiology study.",
}
IMAGES = {"release": RELEASE, "paper": PAPER}
PHRASE = {
    "release": (
        "Given the current frontal image<image> Repeat the following finding as a grounded phrase with bounding boxes"
        " indicating all locations where it can be seen in the given chest X-ray image. Finding: Left nodule."
    ),
    "paper": (
        "Given the current frontal image <image> Repeat the following as a grounded phrase with bounding boxes"
        " indicating all locations where it can be seen in the given chest X-ray image. Finding: Left nodule."
    ),
}
PRESETS: tuple[Preset, ...] = ("release", "paper")
TASKS: tuple[Task, ...] = ("findings", "grounded", "phrase")
BOTH = (False, True)


def build_prompt(task: Task, preset: Preset = "release", **context: Any) -> str:
    """The prompt as text, by our chat template."""
    return render(build_messages(task, preset, **context))


@pytest.mark.parametrize(("preset", "lateral", "prior"), list(product(PRESETS, BOTH, BOTH)))
def test_phrase_prompts_show_the_frontal_without_the_word_only(preset: Preset, lateral: bool, prior: bool) -> None:
    context = {"has_lateral": lateral, "has_prior": prior, "prior_report": "Lungs were clear.", **SECTIONS}
    assert build_prompt("phrase", preset, **context, phrase="Left nodule.") == HEAD + PHRASE[preset] + TAIL


FIELDS = ("prior_report", "indication", "technique", "comparison")
VALUES = ("Lungs were clear.", "Cough.\n  Fever?", "PA view.", "None.")


@pytest.mark.parametrize("missing", [None, "", " \n"])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("task", ["findings", "grounded"])
def test_every_combination_of_images_and_sections(preset: Preset, task: Task, missing: str | None) -> None:
    for lateral, prior, *present in product(BOTH, repeat=6):
        report, indication, technique, comparison = (
            value if there else "N/A" for value, there in zip(VALUES, present, strict=True)
        )
        sections = {
            name: value if there else missing for name, value, there in zip(FIELDS, VALUES, present, strict=True)
        }
        expected = (
            HEAD
            + IMAGES[preset][lateral, prior].replace("Lungs were clear.", report)
            + INSTRUCTION[preset]
            + (GROUNDED if task == "grounded" else "")
            + f" INDICATION: {indication} TECHNIQUE: {technique} COMPARISON: {comparison}"
            + TAIL
        )
        assert build_prompt(task, preset, has_lateral=lateral, has_prior=prior, **sections) == expected


@pytest.mark.parametrize("phrase", [None, "", "  "])
def test_phrase_grounding_needs_a_phrase(phrase: str | None) -> None:
    with pytest.raises(ValueError, match="needs a phrase"):
        build_prompt("phrase", phrase=phrase)


def test_answers_are_as_long_as_those_of_the_release() -> None:
    assert NEW_TOKENS == {"findings": 300, "grounded": 450, "phrase": 150}
