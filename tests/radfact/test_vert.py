"""VERT: the paper's prompts, the score that a model states, and few-shot examples in the paper's layouts."""

import re
from pathlib import Path

import pytest
import yaml
from error_checks import raises, raises_code
from green_responses import GreenResponse

from radfact.errors import ErrorCode
from radfact.io.jsonl import write_json
from radfact.llm import ChatClient, MockChatModel, mock_client
from radfact.metrics.llm.llm_metric import fill_prompt, load_prompt
from radfact.metrics.llm.vert import Vert, VertFormula, VertRubric, VertTuned
from radfact.metrics.llm.vert_shots import Shot, Style, draw_shots, few_shot_section
from radfact.records import TextPair

RESPONSE = GreenResponse((("An effusion",), *[()] * 5), ((),) * 6, ("No pneumothorax", "Clear lungs"), score="0.70")
PAIR = TextPair("one", "Small effusion.", "No effusion.")
SHOT = Shot(reference="The heart is large.", candidate="The heart is normal.", significant={"b": 2}, category="b")


SECTIONS: dict[Style, str] = yaml.safe_load(Path(__file__).with_name("vert_shots.yaml").read_text("utf-8"))


def test_the_prompt_adds_the_score_to_that_of_green() -> None:
    vert, green = load_prompt("vert").splitlines(), load_prompt("green").splitlines()
    added = [line for line in vert if line not in green]
    assert [line for line in vert if line in green and line.strip()] == [line for line in green if line.strip()]
    assert [line.strip()[:20] for line in added] == [
        "The overall accuracy",
        "[Overall Accuracy Sc",
        "<Overall accuracy sc",
    ]


@pytest.mark.parametrize("metric_class", [Vert, VertFormula, VertRubric])
def test_the_score_is_the_one_that_the_model_states(metric_class: type[Vert]) -> None:
    model = MockChatModel(RESPONSE.text())
    metric = metric_class(ChatClient(model, {}))
    result = metric.score([PAIR])
    # By its counts it would be 2 / 3, and 2 / (2 + 2) by the formula.
    expected = {metric.name: [0.7], f"{metric.name}_ec": [1], f"{metric.name}_matched": [2]}
    assert {name: result.values[name] for name in expected} == expected
    assert list(result.values) == list(metric.scores)
    assert result.details[0]["score"] == 0.7
    prompt = fill_prompt(load_prompt(metric.name), reference=PAIR.reference, candidate=PAIR.candidate)
    assert model.calls == [(("user", prompt),)]


@pytest.mark.parametrize("response", ["0.8", "<think>\n\n</think>\n\n0.8", "<think>0.3, or more?</think>0.8"])
def test_a_tuned_model_returns_the_score_alone(response: str) -> None:
    result = VertTuned(mock_client(response)).score([PAIR])
    assert (result.values["vert_tuned"], result.usage["calls"]) == ([0.8], 1)


def test_examples_follow_the_filled_prompt(tmp_path: Path) -> None:
    model, path = MockChatModel(RESPONSE.text()), tmp_path / "shots.json"
    shot = SHOT.model_copy(update={"reference": "A {candidate} text.", "score": 0.4})
    write_json(path, [shot.model_dump()])
    Vert(ChatClient(model, {}), shots=path).score([PAIR])
    base = fill_prompt(load_prompt("vert"), reference=PAIR.reference, candidate=PAIR.candidate)
    assert model.calls == [(("user", f"{base}\n{few_shot_section('random', [shot])}"),)]


@pytest.mark.parametrize(("errors", "score"), [(0, "1.00"), (1, "0.85"), (6, "0.10"), (7, "0.00")])
def test_a_score_follows_from_expert_counts(errors: int, score: str) -> None:
    assert few_shot_section("random", [SHOT.model_copy(update={"significant": {"a": errors}})]).endswith(f"\n{score}\n")


def test_the_seed_determines_the_drawn_examples() -> None:
    pool = [SHOT.model_copy(update={"reference": f"Report {number}."}) for number in range(50)]
    assert draw_shots(pool, 10) == draw_shots(pool, 10) != draw_shots(pool, 10, seed=7)
    assert len({shot.reference for shot in draw_shots(pool, 50)}) == 50
    with raises_code(ErrorCode.INVALID_OPTION):
        draw_shots(pool, 51)


@pytest.mark.parametrize("style", SECTIONS)
def test_examples_have_the_layout_of_the_paper(style: Style) -> None:
    shot = SHOT.model_copy(update={"explanation": "The heart is missed.", "matched": "1. Clear lungs."})
    section = few_shot_section(style, [shot, SHOT] if style == "random" else [shot])
    head, mark, examples = section.partition("6. Full Assessment Examples:\n\n")
    assert (examples if mark else head) == SECTIONS[style]
    if mark:
        assert head.startswith("5. Error Type Illustrations:\n\n--- Error type (a): False report of a finding")
        assert re.findall(r"--- Error type \((.)\)", head) == list("abcdef")


def test_an_error_type_example_needs_its_category() -> None:
    with raises("shots[0].category: missing-field"):
        few_shot_section("rad-err", [SHOT.model_copy(update={"category": None})])
