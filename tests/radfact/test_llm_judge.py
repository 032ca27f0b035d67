"""The judge by a language model: its prompt is that of the paper, and its responses are parsed and repaired."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from call_counts import count_calls
from chat_server import ChatServer, Reply, last
from error_checks import raises_code
from hypothesis import example, given, settings
from hypothesis import strategies as st

from radfact.errors import ErrorCode
from radfact.judges import EntailmentQuery, Failure, Judge, Verdict, load_judge
from radfact.judges.llm_judge import REPORT_MAX_HYPOTHESES
from radfact.judges.prompt import (
    MAX_CHOICES,
    SYSTEM_MESSAGE,
    AnswerFormat,
    Example,
    few_shot_messages,
    load_few_shots,
    query_message,
    report_message,
    report_schema,
    verdict_schema,
)
from radfact.judges.response import parse_report_response, parse_response
from radfact.llm.response_text import strip_reasoning
from radfact.records import normalize_text

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
PUBLISHED = SHARED / "data" / "radfact" / "nli_few_shot_examples.json"
PAPER = SHARED / "seeds" / "004_a3f772f833f07e27.txt"
PREMISES = ("The heart is enlarged.", "Small left pleural effusion.", "No pneumothorax.")
HYPOTHESES = ("Enlarged heart.", "Left effusion.", "Rib fracture.")
QUERIES = [EntailmentQuery(PREMISES, hypothesis) for hypothesis in HYPOTHESES]
YES = Verdict("entailment", (0,))
RESPONSE = '{"phrase": "x", "evidence": ["No pneumothorax."], "status": "entailment"}'


def yes(body: dict[str, Any], _: int) -> Reply:
    """Respond that the first sentence of the reference entails the hypothesis."""
    query = yaml.safe_load(last(body))
    verdict = {"phrase": query["hypothesis"], "evidence": query["reference"][:1], "status": "entailment"}
    return 200, {}, yaml.safe_dump(verdict, sort_keys=False)


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's text is not here")
def test_system_message_is_listing_3_word_for_word() -> None:
    assert f"System: {SYSTEM_MESSAGE}\n" in PAPER.read_text(encoding="utf-8")


def judge_of(server: ChatServer, **options: Any) -> Judge:
    return load_judge("openai:m", base_url=server.base_url, **options)


def test_the_query_is_that_of_the_paper(serve: Any) -> None:
    """Lines fold at 80 columns and other than ASCII is escaped: the defaults of yaml.dump, which it uses."""
    server = serve(yes)
    judge = judge_of(server)
    long = "Moderate left pleural effusion, larger than on the film of the day before, with atelectasis beside it."
    assert judge.judge([EntailmentQuery((long, "5\u20137 mm nodule."), "An effusion.")]) == [YES]
    assert judge.usage() | {"calls": 1, "tokens_in": 10, "tokens_out": 3} == judge.usage()
    json.dumps(judge.describe(), allow_nan=False)
    (body,) = server.requests
    messages = body["messages"]
    assert [m["role"] for m in messages] == ["system", *["user", "assistant"] * len(load_few_shots()), "user"]
    assert list(yaml.safe_load(messages[1]["content"])) == ["reference", "hypothesis"]
    assert list(yaml.safe_load(messages[2]["content"])) == ["phrase", "evidence", "status"]
    assert messages[-1]["content"] == (
        "reference:\n"
        "- Moderate left pleural effusion, larger than on the film of the day before, with\n"
        "  atelectasis beside it.\n"
        '- "5\\u20137 mm nodule."\n'
        "hypothesis: An effusion.\n"
    )
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0, 1, 1024)


@pytest.mark.parametrize("batch", ["sentence", "report"])
def test_an_empty_report_needs_no_request(serve: Any, batch: str) -> None:
    server = serve(yes)
    assert judge_of(server, batch=batch).judge([EntailmentQuery((), "Enlarged heart.")]) == [
        Verdict("not_entailment", (), "the other report is empty")
    ]
    assert not server.requests


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published few-shot file is not here")
def test_the_published_file_gives_67_shots_19_entailed() -> None:
    shots = load_few_shots(PUBLISHED)
    assert (len(shots), sum(shot.status == "entailment" for shot in shots)) == (67, 19)
    assert len(few_shot_messages(shots, SYSTEM_MESSAGE, "yaml", "sentence")) == 135
    assert {shot.query for shot in shots}.isdisjoint(shot.query for shot in load_few_shots())


def test_custom_prompts_are_sent_and_named(serve: Any, tmp_path: Path) -> None:
    server = serve(yes)
    shots, system = tmp_path / "mine.json", tmp_path / "system.txt"
    output = {"phrases_A_evidenced": [{"phrase": "a", "evidence": [], "status": "neutral"}], "phrases_B_evidenced": []}
    shots.write_text(json.dumps([{"input": {"phrases_A": ["a"], "phrases_B": ["b"]}, "output": output}]))
    system.write_text("Judge CT reports.\n")
    judge = judge_of(server, few_shots=shots, system=system)
    judge.judge([EntailmentQuery(PREMISES, "Enlarged heart.")])
    assert server.requests[0]["messages"][0]["content"] == "Judge CT reports.\n"
    expected = {"few_shots": 1, "few_shots_from": "mine.json", "system_from": "system.txt"}
    assert judge.describe() | expected == judge.describe()
    assert judge.describe()["prompt_sha256"] != judge_of(server).describe()["prompt_sha256"]
    system.write_text(" \n")
    with raises_code(ErrorCode.EMPTY_INPUT, file=system):
        judge_of(server, system=system)


@pytest.mark.parametrize(("batch", "requests"), [("sentence", "AAABBB"), ("report", "AB")])
def test_distinct_queries_with_the_same_premises_are_sent_together(serve: Any, batch: str, requests: str) -> None:
    server = serve(yes if batch == "sentence" else all_entailed)
    hypotheses = (*HYPOTHESES, HYPOTHESES[0])
    queries = [EntailmentQuery((premise,), hypothesis) for hypothesis in hypotheses for premise in "AB"]
    assert judge_of(server, batch=batch, concurrency=1).judge(queries) == [YES] * len(queries)
    assert [yaml.safe_load(last(body))["reference"] for body in server.requests] == [[text] for text in requests]


def is_bounded(schema: Any) -> bool:
    """Return whether every string and array of a schema has a maximum length or listed values."""
    if isinstance(schema, list):
        return all(map(is_bounded, schema))
    if not isinstance(schema, dict):
        return True
    bound = {"string": ("enum", "maxLength"), "array": ("maxItems",), "integer": ("enum",)}.get(schema.get("type"), ())
    return (not bound or any(name in schema for name in bound)) and all(map(is_bounded, schema.values()))


@pytest.mark.parametrize("premises", [1, MAX_CHOICES, MAX_CHOICES + 1])
def test_every_part_of_a_schema_is_bounded(premises: int) -> None:
    texts = [f"Finding {i}." for i in range(premises)]
    assert is_bounded(verdict_schema(texts, "A finding."))
    assert is_bounded(report_schema(texts, ["A finding.", "Another."]))


def test_example_responses_are_json_if_a_schema_is_used() -> None:
    shots = load_few_shots()
    yaml_messages = few_shot_messages(shots, "s", "yaml", "sentence")
    json_messages = few_shot_messages(shots, "s", "schema", "sentence")
    assert [content for role, content in json_messages if role != "assistant"] == [
        content for role, content in yaml_messages if role != "assistant"
    ]
    for (role, as_json), (_, as_yaml) in zip(json_messages, yaml_messages, strict=True):
        if role == "assistant":
            assert json.loads(as_json) == yaml.safe_load(as_yaml)


def entailed(body: dict[str, Any], numbers: Collection[int]) -> Reply:
    """Respond that the first sentence of the reference entails the hypotheses with these numbers."""
    query = yaml.safe_load(last_query(body))
    rows = [
        {"number": n, "phrase": phrase, "evidence": query["reference"][:1], "status": "entailment"}
        for n, phrase in query["hypotheses"].items()
        if n in numbers
    ]
    return 200, {}, yaml.safe_dump({"answers": rows}, sort_keys=False)


def last_query(body: dict[str, Any]) -> str:
    """Return the last user message with a query instead of a request to repair."""
    return next(str(m["content"]) for m in reversed(body["messages"]) if m["content"].startswith("reference:"))


def all_entailed(body: dict[str, Any], _: int) -> Reply:
    return entailed(body, range(1, 100))


def test_examples_are_regrouped_by_report() -> None:
    messages = few_shot_messages(load_few_shots(), SYSTEM_MESSAGE, "yaml", "report")
    assert len(messages) == 1 + 2 * 20  # ten examples, each in both directions
    assert messages[0][1].startswith(SYSTEM_MESSAGE)
    query, response = (yaml.safe_load(content) for _, content in messages[1:3])
    assert list(query["hypotheses"].values()) == [row["phrase"] for row in response["answers"]]
    assert list(response["answers"][0]) == ["number", "phrase", "evidence", "status"]


def test_a_missing_hypothesis_is_requested_again(serve: Any) -> None:
    server = serve(lambda body, n: entailed(body, {1, 2} if n == 1 else {3}))
    judge = judge_of(server, batch="report")
    assert judge.judge(QUERIES) == [YES] * 3
    assert (len(server.requests), judge.usage()["repairs"]) == (2, 1)
    assert "no answer to number 3" in last(server.requests[1])


def test_hypotheses_without_a_verdict_after_repairs_are_sent_alone(serve: Any) -> None:
    def reply(body: dict[str, Any], _: int) -> Reply:
        hypotheses = yaml.safe_load(last_query(body))["hypotheses"]
        return entailed(body, {1, 2} if len(hypotheses) > 1 else {1})

    server = serve(reply)
    judge = judge_of(server, batch="report")
    assert judge.judge(QUERIES) == [YES] * 3
    assert (judge.usage()["asked_again"], judge.usage()["failures"]) == (1, 0)
    assert yaml.safe_load(last(server.requests[-1]))["hypotheses"] == {1: HYPOTHESES[2]}


def test_only_hypotheses_without_a_verdict_fail(serve: Any) -> None:
    server = serve(lambda body, _: entailed(body, {2}))
    judge = judge_of(server, batch="report")
    verdicts = judge.judge(QUERIES)
    assert [isinstance(verdict, Failure) for verdict in verdicts] == [True, False, True]
    assert judge.usage()["failures"] == 2


def test_a_long_report_is_several_requests(serve: Any) -> None:
    server = serve(all_entailed)
    queries = [EntailmentQuery(PREMISES, f"Finding {i}.") for i in range(REPORT_MAX_HYPOTHESES + 1)]
    assert judge_of(server, batch="report").judge(queries) == [YES] * len(queries)
    sizes = sorted(len(yaml.safe_load(last(body))["hypotheses"]) for body in server.requests)
    assert sizes == [1, REPORT_MAX_HYPOTHESES]


def test_schemas_have_evidence_first_from_sentences_of_the_report(serve: Any) -> None:
    server = serve(lambda body, n: all_entailed(body, n) if n > 1 else (200, {}, RESPONSE))
    for batch, expected in (("sentence", [Verdict("entailment", (2,))]), ("report", [YES, YES])):
        judge = judge_of(server, answer_format="schema", batch=batch)
        assert judge.judge(QUERIES[: len(expected)]) == expected
    verdict, report = (body["response_format"]["json_schema"]["schema"] for body in server.requests)
    answers = report["properties"]["answers"]
    assert (answers["minItems"], answers["maxItems"]) == (2, 2)
    for schema, names in ((verdict, []), (answers["items"], ["number"])):
        assert list(schema["properties"]) == schema["required"] == [*names, "phrase", "evidence", "status"]
        evidence = {"type": "array", "items": {"type": "string", "enum": list(PREMISES)}, "maxItems": 3}
        assert schema["properties"]["evidence"] == evidence


@pytest.mark.parametrize("batch", ["sentence", "report"])
def test_unmatched_quotations_are_counted(serve: Any, batch: str) -> None:
    row = "evidence: [Goitre.]\n  status: neutral"
    text = f"answers:\n- number: 1\n  {row}" if batch == "report" else row.replace("  ", "")
    judge = judge_of(serve(lambda *_: (200, {}, text)), batch=batch)
    judge.judge(QUERIES[:1])
    assert judge.usage()["evidence_dropped"] == 1


# Words such as "none" mean that there is no evidence, so a sentence needs other words, too.
sentences = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=30).map(
    "Finding {} seen".format
)
sentences = sentences.filter(lambda text: strip_reasoning(text) == text)


# Quotation marks of a response are part of a premise, too.
@example(premises=["Clear <think> lungs.", "No effusion."], index=0)
@example(premises=["Clear ``` lungs.", "No effusion."], index=0)
@settings(deadline=None)
@given(premises=st.lists(sentences, min_size=1, max_size=4, unique=True), index=st.integers(0, 3))
def test_formatted_responses_for_a_sentence_are_parsed(premises: list[str], index: int) -> None:
    index %= len(premises)
    shot = Example(tuple(premises), "x", (premises[index],), "entailment")
    _, _, (_, written) = few_shot_messages([shot], "", "yaml", "sentence")
    assert parse_response(written, premises) == (Verdict("entailment", (index,)), 0)


@settings(deadline=None)
@given(premises=st.lists(sentences, min_size=1, max_size=4, unique=True), data=st.data())
def test_formatted_responses_for_a_report_are_parsed(premises: list[str], data: st.DataObject) -> None:
    phrases = data.draw(st.lists(sentences, min_size=1, max_size=5, unique_by=normalize_text))
    named = [data.draw(st.sets(st.sampled_from(premises))) for _ in phrases]
    examples = [
        Example(tuple(premises), phrase, tuple(sorted(texts)), "entailment" if texts else "neutral")
        for phrase, texts in zip(phrases, named, strict=True)
    ]
    answer_format: AnswerFormat = data.draw(st.sampled_from(get_args(AnswerFormat)))
    _, _, (_, written) = few_shot_messages(examples, "", answer_format, "report")
    read = parse_report_response(written, premises, phrases)
    assert read.problems == []
    assert [{premises[i] for i in read.verdicts[n][0].evidence} for n in range(len(phrases))] == named


texts = st.text(max_size=120) | st.lists(
    st.sampled_from(["effusion", "-", ":", "#", "'left'", '"x"', "no", "  ", "1.5", "null", "\u2013"]), max_size=60
).map(" ".join)


@settings(deadline=None)
@given(st.lists(texts, max_size=3), st.lists(texts, min_size=1, max_size=3))
def test_queries_equal_the_output_of_the_safe_dumper(reference: list[str], hypotheses: list[str]) -> None:
    single = {"reference": reference, "hypothesis": hypotheses[0]}
    several = {"reference": reference, "hypotheses": dict(enumerate(hypotheses, start=1))}
    assert query_message(reference, hypotheses[0]) == yaml.safe_dump(single, sort_keys=False)
    assert report_message(reference, hypotheses) == yaml.safe_dump(several, sort_keys=False)


def test_formatting_a_query_makes_few_calls() -> None:
    """Formatting by PyYAML in Python makes hundreds of calls per sentence."""
    premises = [f"The lungs are clear apart from atelectasis in zone {number}." for number in range(10)]
    assert count_calls(lambda: query_message(premises, "A nodule.")) < 60 * len(premises)
