"""The paper's judge: its prompt word for word, and answers read strictly on meaning and leniently on form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_server import Reply, last

from radfact.entailment import Failure, Judge, Question, Verdict, load_judge
from radfact.entailment.prompt import SYSTEM_MESSAGE, few_shot_messages, load_few_shots
from radfact.errors import InputError

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
PUBLISHED = SHARED / "data" / "radfact" / "nli_few_shot_examples.json"
PAPER = SHARED / "seeds" / "004_a3f772f833f07e27.txt"
PREMISES = ("The heart is enlarged.", "Small left pleural effusion.", "No pneumothorax.")


def yes(body: dict[str, Any], _: int) -> Reply:
    """Answers that the first sentence of the reference entails the hypothesis."""
    asked = yaml.safe_load(last(body))
    answer = {"phrase": asked["hypothesis"], "evidence": asked["reference"][:1], "status": "entailment"}
    return 200, {}, yaml.safe_dump(answer, sort_keys=False)


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's text is not here")
def test_system_message_is_listing_3_word_for_word() -> None:
    assert f"System: {SYSTEM_MESSAGE}\n" in PAPER.read_text(encoding="utf-8")


def test_the_first_question_sent_is_the_protocol(serve: Any) -> None:
    server = serve(yes)
    judge = load_judge("openai:m", base_url=server.base_url)
    judge.judge([Question(PREMISES, "Enlarged heart.")])
    body = server.requests[0]
    messages = body["messages"]
    shots = load_few_shots()
    assert [m["role"] for m in messages] == ["system", *["user", "assistant"] * len(shots), "user"]
    assert list(yaml.safe_load(messages[1]["content"])) == ["reference", "hypothesis"]
    assert list(yaml.safe_load(messages[2]["content"])) == ["phrase", "evidence", "status"]
    assert yaml.safe_load(messages[-1]["content"]) == {"reference": list(PREMISES), "hypothesis": "Enlarged heart."}
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0, 1, 1024)


def test_the_judge_follows_the_protocol_of_judges(serve: Any) -> None:
    server = serve(yes)
    judge = load_judge("openai:m", base_url=server.base_url)
    assert isinstance(judge, Judge)
    assert judge.judge([Question(PREMISES, "Enlarged heart.")]) == [Verdict("entailment", (0,))]
    assert judge.account() | {"calls": 1, "tokens_in": 10, "tokens_out": 3} == judge.account()
    json.dumps(judge.describe(), allow_nan=False)


def test_equal_questions_are_asked_once(serve: Any) -> None:
    server = serve(yes)
    load_judge("openai:m", base_url=server.base_url).judge([Question(PREMISES, "Enlarged heart.")] * 3)
    assert len(server.requests) == 1


def test_an_empty_report_entails_nothing_and_costs_nothing(serve: Any) -> None:
    server = serve(yes)
    verdict = load_judge("openai:m", base_url=server.base_url).judge([Question((), "Enlarged heart.")])[0]
    assert isinstance(verdict, Verdict)
    assert verdict.status == "not_entailment"
    assert not server.requests


def test_entailment_without_evidence_is_repaired(serve: Any) -> None:
    server = serve(lambda body, n: (200, {}, "evidence: []\nstatus: entailment") if n == 1 else yes_first(body))
    judge = load_judge("openai:m", base_url=server.base_url)
    assert judge.judge([Question(PREMISES, "Enlarged heart.")]) == [Verdict("entailment", (0,))]
    assert judge.account()["repairs"] == 1


def yes_first(_: dict[str, Any]) -> Reply:
    return 200, {}, f"evidence:\n- {PREMISES[0]}\nstatus: entailment"


def test_an_answer_that_stays_wrong_is_a_failure(serve: Any) -> None:
    server = serve(lambda *_: (200, {}, "I would say that it depends."))
    judge = load_judge("openai:m", base_url=server.base_url)
    assert isinstance(judge.judge([Question(PREMISES, "Enlarged heart.")])[0], Failure)
    assert judge.account()["failures"] == 1


def test_a_run_taken_up_again_asks_nothing(serve: Any, tmp_path: Path) -> None:
    server = serve(yes)
    questions = [Question(PREMISES, f"Finding {i}.") for i in range(5)]
    first = load_judge("openai:m", base_url=server.base_url, cache=tmp_path).judge(questions)
    again = load_judge("openai:m", base_url=server.base_url, cache=tmp_path)
    assert again.judge(questions) == first
    assert (len(server.requests), again.account()["cached"]) == (5, 5)


def test_default_examples_are_ten_reports_with_evidence_for_every_entailment() -> None:
    shots = load_few_shots()
    reports = json.loads((Path(load_few_shots.__code__.co_filename).parent / "few_shots.json").read_text())
    assert len(reports) == 10
    assert all(shot.evidence for shot in shots if shot.status == "entailment")
    assert all(set(shot.evidence) <= set(shot.reference) for shot in shots)


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published few-shot file is not here")
def test_the_published_file_gives_67_shots_19_entailed() -> None:
    shots = load_few_shots(PUBLISHED)
    assert (len(shots), sum(shot.status == "entailment" for shot in shots)) == (67, 19)
    assert len(few_shot_messages(shots, SYSTEM_MESSAGE, "yaml", "sentence")) == 135


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published few-shot file is not here")
def test_no_published_example_is_among_the_defaults() -> None:
    published = {(shot.reference, shot.phrase) for shot in load_few_shots(PUBLISHED)}
    assert published.isdisjoint((shot.reference, shot.phrase) for shot in load_few_shots())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "not JSON"),
        ("{}", "expected a list"),
        ('[{"input": {"phrases_A": ["a"]}}]', r"\[0\]\.input\.phrases_B"),
        (
            '[{"input": {"phrases_A": ["a"], "phrases_B": ["b"]}, "output": {"phrases_A_evidenced": '
            '[{"phrase": "a", "evidence": [], "status": "perhaps"}], "phrases_B_evidenced": []}}]',
            "found 'perhaps'",
        ),
    ],
)
def test_a_wrong_few_shot_file_is_named_with_its_field(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "shots.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        load_few_shots(path)
    assert str(path) in str(caught.value)


def test_own_examples_change_the_prompt_hash_and_are_named(serve: Any, tmp_path: Path) -> None:
    server = serve(yes)
    own = tmp_path / "mine.json"
    item = {"phrase": "a", "evidence": [], "status": "neutral"}
    example = {
        "input": {"phrases_A": ["a"], "phrases_B": ["b"]},
        "output": {"phrases_A_evidenced": [item], "phrases_B_evidenced": []},
    }
    own.write_text(json.dumps([example]))
    default = load_judge("openai:m", base_url=server.base_url).describe()
    other = load_judge("openai:m", base_url=server.base_url, few_shots=own).describe()
    assert default["prompt_sha256"] != other["prompt_sha256"]
    assert (other["few_shots"], other["few_shots_from"]) == (1, "mine.json")


@pytest.mark.parametrize("name", ["ofline", "gpt-4o", "openai:", ":m", ""])
def test_an_unknown_judge_says_what_would_be_right(name: str) -> None:
    with pytest.raises(InputError, match="use offline, PROVIDER:MODEL"):
        load_judge(name)
