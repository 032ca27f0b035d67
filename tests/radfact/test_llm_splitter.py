"""The paper's splitter: listing 1 word for word, and answers that lose and invent nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_server import Reply, last
from error_checks import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact.api import RadFact, evaluate
from radfact.errors import Failure
from radfact.judges import Splitter, load_judge, load_splitter
from radfact.judges.llm_splitter import (
    SYSTEM_MESSAGE,
    SplitExample,
    few_shot_messages,
    load_split_examples,
    parse_split,
)
from radfact.judges.protocol import flatten_split
from radfact.llm.response_text import dump_yaml
from radfact.records import Pair
from radfact.rewards import make_reward

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
PUBLISHED = SHARED / "data" / "radfact" / "report_to_phrases_few_shot_examples.json"
PAPER = SHARED / "seeds" / "004_a3f772f833f07e27.txt"
NARRATIVE = "Two views. Heart and hila are normal. Opacity at the left base, likely pneumonia."
ANSWER = [
    {"orig": "Two views.", "new": [""]},
    {"orig": "Heart and hila are normal.", "new": ["Heart is normal.", "Hila are normal."]},
    {"orig": "Opacity at the left base, likely pneumonia.", "new": ["Opacity at the left base."]},
]
SENTENCES = ["Heart is normal.", "Hila are normal.", "Opacity at the left base."]


def sentences_read(text: str, narrative: str) -> list[str]:
    return flatten_split(parse_split(text, narrative))


def splitter_of(server: Any, **options: Any) -> Splitter:
    return load_splitter("openai:m", base_url=server.base_url, **options)


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's text is not here")
def test_system_message_is_listing_1_word_for_word() -> None:
    paper = " ".join(PAPER.read_text(encoding="utf-8").split())
    assert f"System: {' '.join(SYSTEM_MESSAGE.split())} ```" in paper


def test_the_query_is_that_of_the_paper(serve: Any) -> None:
    server = serve(lambda *_: (200, {}, dump_yaml(ANSWER)))
    splitter = splitter_of(server)
    assert isinstance(splitter, Splitter)
    [explained] = splitter.explain([NARRATIVE])
    assert not isinstance(explained, Failure)
    assert [(division.orig, list(division.new)) for division in explained] == [
        (str(item["orig"]), [text for text in item["new"] if text]) for item in ANSWER
    ]
    assert splitter.usage() | {"calls": 1, "tokens_in": 10, "tokens_out": 3} == splitter.usage()
    json.dumps(splitter.describe(), allow_nan=False)
    body = server.requests[0]
    messages = body["messages"]
    assert [m["role"] for m in messages] == ["system", *["user", "assistant"] * 9, "user"]
    assert [list(item) for item in yaml.safe_load(messages[2]["content"])] == [["orig", "new"]] * 4
    assert messages[-1]["content"] == NARRATIVE
    assert body["temperature"] == 0


def test_a_missing_sentence_is_requested_again_equal_narratives_once_and_empty_ones_never(serve: Any) -> None:
    server = serve(lambda _, number: (200, {}, dump_yaml(ANSWER[:2] if number == 1 else ANSWER)))
    splitter = splitter_of(server)
    assert splitter.split([NARRATIVE, "", NARRATIVE, " \n"]) == [SENTENCES, [], SENTENCES, []]
    assert (len(server.requests), splitter.usage()["repairs"]) == (2, 1)
    assert "'Opacity at the left base, likely pneumonia.' is missing" in last(server.requests[1])


phrases = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=30).map(
    # Words such as "none" mean an empty list, so a sentence needs other words.
    lambda text: f"Finding {text} seen."
)


@settings(deadline=None)
@given(st.lists(st.tuples(phrases, st.lists(phrases, max_size=3)), min_size=1, max_size=4))
def test_formatted_responses_are_parsed(made: list[tuple[str, list[str]]]) -> None:
    sentences = [{"orig": orig, "new": new} for orig, new in made]
    text = {"findings_text": " ".join(orig for orig, _ in made), "parsed_report": {"sentence_list": sentences}}
    example = SplitExample.model_validate(text)
    *_, (_, written) = few_shot_messages([example])
    assert sentences_read(written, example.findings_text) == [text for _, new in made for text in new]


def test_default_examples_are_nine_and_cover_every_sentence() -> None:
    examples = load_split_examples()
    assert len(examples) == 9
    for example, (_, written) in zip(examples, few_shot_messages(examples)[2::2], strict=True):
        sentences = [text for item in example.parsed_report.sentence_list for text in item.new if text]
        assert sentences_read(written, example.findings_text) == sentences


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published few-shot file is not here")
def test_the_published_file_loads_and_shares_no_sentence_with_the_defaults(serve: Any) -> None:
    published, defaults = (
        [sentence.orig for example in examples for sentence in example.parsed_report.sentence_list]
        for examples in (load_split_examples(PUBLISHED), load_split_examples())
    )
    assert len(published) == 46
    assert set(published).isdisjoint(defaults)
    splitter = splitter_of(serve(lambda *_: (200, {}, "")), few_shots=PUBLISHED)
    assert splitter.describe()["few_shots_from"] == PUBLISHED.name


@pytest.fixture
def judging(serve: Any) -> Any:
    """A server that splits a narrative into itself and entails nothing."""

    def reply(body: dict[str, Any], _: int) -> Reply:
        message = last(body)
        if body["messages"][0]["content"] == SYSTEM_MESSAGE:
            return 200, {}, dump_yaml([{"orig": message, "new": [message]}])
        hypothesis = message.rpartition("hypothesis:")[2].strip()
        return 200, {}, dump_yaml({"phrase": hypothesis, "evidence": [], "status": "not_entailment"})

    return serve(reply)


def splits(server: Any) -> list[dict[str, Any]]:
    return [body for body in server.requests if body["messages"][0]["content"] == SYSTEM_MESSAGE]


NARRATIVES = Pair("1", "Heart is large.", "Left effusion.")


def test_the_judge_is_the_default_splitter(judging: Any) -> None:
    options: dict[str, Any] = {"base_url": judging.base_url, "judge_args": {"seed": 3, "temperature": None}}
    by_object = RadFact(load_judge("openai:m", **options), bootstrap=0).score([NARRATIVES])
    evaluate([NARRATIVES], ["radfact"], judge=load_judge("openai:m", **options), bootstrap=0)
    evaluate([NARRATIVES], ["radfact"], judge="openai:m", bootstrap=0, **options)
    make_reward("logical_precision", judge="openai:m", splitter="openai:m", **options)(["No."], ground_truth=["Yes."])
    assert by_object.splitter is not None
    assert by_object.splitter["name"] == "openai:m"
    assert by_object.usage["splitter"]["calls"] == by_object.usage["judge"]["calls"] == 2
    assert len(splits(judging)) == 8
    assert all(body["seed"] == 3 and "temperature" not in body for body in splits(judging))
    assert {body["max_tokens"] for body in splits(judging)} == {2048}


@pytest.mark.parametrize("splitter", ["offline", load_splitter("offline"), lambda text: [text]])
def test_a_given_splitter_replaces_that_of_the_judge(judging: Any, splitter: Any) -> None:
    options: dict[str, Any] = {"judge": "openai:m", "base_url": judging.base_url, "splitter": splitter}
    assert evaluate([NARRATIVES], ["radfact"], bootstrap=0, **options).scores["logical_precision"] == 0
    reward = make_reward("logical_precision", **options)
    assert reward([str(NARRATIVES.candidate)], ground_truth=[NARRATIVES.reference]) == [0.0]
    assert not splits(judging)


def test_an_object_that_is_no_splitter_is_refused() -> None:
    with raises("splitter: invalid-plugin"):
        make_reward("logical_f1", judge="offline", splitter=3)
