"""Metrics that query a language model: prompts and examples of the papers, and scores (`llm_metrics.yaml`)."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from chat_server import ChatServer, Reply, last
from error_checks import raises, raises_code
from green_responses import GreenResponse, responses
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact import evaluate
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import write_json
from radfact.llm import ChatClient, MockChatModel, load_chat_client, mock_client
from radfact.meta.agreement.corrections import paraphrase
from radfact.metrics.llm import crimson
from radfact.metrics.llm.chexprompt import CheXprompt, parse_error_lists
from radfact.metrics.llm.crimson import Crimson, FindingErrors, crimson_prompt, crimson_score
from radfact.metrics.llm.fineradscore import FineRadScore, split_lines
from radfact.metrics.llm.green import Green, green_score
from radfact.metrics.llm.llm_metric import fill_prompt, load_prompt
from radfact.metrics.llm.responses.assessment import parse_assessment
from radfact.metrics.llm.responses.corrections import Correction, parse_corrections
from radfact.metrics.llm.vert import Shot, Style, Vert, draw_shots, few_shot_section
from radfact.metrics.protocol import score_pairs
from radfact.metrics.registry import entries
from radfact.records import NO_CONTEXT, Pair, PatientContext, Sentence, TextPair

CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("llm_metrics.yaml").read_text("utf-8"))
LINES = ("Three left lung nodules.", "Multiple lung nodules.", "Pulmonary edema.")
CANDIDATE = TextPair("one", " ".join(LINES), "Two left lung nodules. Left basilar opacity.")
PAIR = TextPair("one", "Small effusion.", "No effusion.")
SHOT = Shot(reference="The heart is large.", candidate="The heart is normal.", significant={"b": 2}, category="b")
SECTIONS: dict[Style, str] = yaml.safe_load(Path(__file__).with_name("vert_shots.yaml").read_text("utf-8"))
SEEDS = Path(__file__).resolve().parents[2].parent / "shared" / "seeds"
TURNS: dict[str, str] = CASES["fineradscore_turns"]


@pytest.mark.parametrize(("metric", "response", "values", "details"), CASES["scores"])
def test_all_scores_come_from_one_response(
    metric: str, response: str, values: dict[str, float], details: dict[str, Any]
) -> None:
    scorer = entries()[metric].load()(mock_client(response))
    result = scorer.score([CANDIDATE])
    assert {name: value for name, (value,) in result.values.items() if value} == values
    assert list(result.values) == list(scorer.scores)
    assert (result.usage["calls"], dict(result.failures)) == (1, {})
    [detail] = result.details
    assert json.loads(json.dumps(detail, allow_nan=False)) == detail | details
    assert scorer.score([TextPair("two", CANDIDATE.candidate, "No effusion.")]).usage["calls"] == scorer.needs_reference


@pytest.mark.parametrize(("metric", "calls"), CASES["calls"].items())
def test_without_a_valid_response_there_is_no_score(metric: str, calls: int) -> None:
    valid = next(response for name, response, *_ in CASES["scores"] if name == metric)
    result = entries()[metric].load()(mock_client([valid, *["I cannot."] * calls])).score([CANDIDATE, PAIR])
    assert {tuple(map(math.isnan, values)) for values in result.values.values()} == {(False, True)}
    assert (list(result.failures), result.usage["calls"], result.usage["failures"]) == ([1], 1 + calls, 1)


def test_the_prompt_is_the_only_message_and_holds_whole_reports(serve: Callable[..., ChatServer]) -> None:
    server = serve(lambda *_: (200, {}, ""))
    long = " ".join(f"Finding {number}." for number in range(1000))
    grounded = [Sentence(text="Small effusion."), Sentence(text="No {reference}.")]
    metric = Green(load_chat_client("openai:m", base_url=server.base_url, parameters=Green.parameters))
    score_pairs(metric, [Pair("one", grounded, long)])
    body = server.requests[0]
    assert (body["temperature"], body["max_tokens"]) == (0, 2048)
    assert [message["role"] for message in body["messages"]] == ["user"]
    before, after = load_prompt("green").split("{reference}")
    middle, after = after.split("{candidate}")
    assert last(body) == f"{before}{long}{middle}Small effusion. No {{reference}}.{after}"


@pytest.mark.parametrize(("matched", "significant", "score"), [(0, 0, 0.0), (0, 3, 0.0), (4, 0, 1.0), (1, 1, 0.5)])
def test_the_score_is_0_if_nothing_matches(matched: int, significant: int, score: float) -> None:
    assert green_score(matched, significant) == score


@given(responses)
def test_scores_are_shares_and_f1_is_never_below_green(response: GreenResponse) -> None:
    scores = Green.compute_scores(Green.__new__(Green), parse_assessment(response.text()))
    assert 0 <= scores["green_weighted"] <= scores["green"] <= scores["green_f1"] <= 1
    by_category = [value for name, value in scores.items() if name[-2:-1] == "_"]
    assert sum(by_category) == scores["green_ec"] == scores["green_significant"] + scores["green_insignificant"]


def test_the_prompt_adds_the_score_to_that_of_green() -> None:
    # VERT prints "<count>", and one text before the dots.
    text = re.sub(r"<The number of [a-z ]+>", "<count>", load_prompt("green"))
    green = re.sub(r"(?<=<Error 1>; )<Error 2>; (...); <Error n>|(?<=...); <Finding n>", r"\1", text).splitlines()
    vert = load_prompt("vert").splitlines()
    added = [line for line in vert if line not in green]
    assert [line for line in vert if line in green and line.strip()] == [line for line in green if line.strip()]
    assert [line.strip()[:20] for line in added] == [
        "The overall accuracy",
        "[Overall Accuracy Sc",
        "<Overall accuracy sc",
    ]


def test_examples_follow_the_filled_prompt(tmp_path: Path) -> None:
    model, path = MockChatModel(""), tmp_path / "shots.json"
    shot = SHOT.model_copy(update={"reference": "A {candidate} text.", "score": 0.4})
    write_json(path, [shot.model_dump()])
    Vert(ChatClient(model, {}), shots=path).score([PAIR])
    base = fill_prompt(load_prompt("vert"), reference=PAIR.reference, candidate=PAIR.candidate)
    assert model.calls[0] == (("user", f"{base}\n{few_shot_section('random', [shot])}"),)


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


@pytest.mark.parametrize(("name", "digest"), [*CASES["own_prompts"].items(), *CASES["published_prompts"].items()])
def test_our_prompts_alone_name_another_examination_than_a_chest_x_ray(name: str, digest: str) -> None:
    sent = []
    for examination in ((None, None), ("DX", "CHEST"), ("CT", "abdomen"), ("MR", None), (None, "knee")):
        context, model = PatientContext(None, None, None, *examination), MockChatModel("")
        client = ChatClient(model, {})
        if name == "paraphrase":
            paraphrase(client, [(PAIR.candidate, context.examination)])
        else:
            entries()[name].load()(client).score([replace(PAIR, context=context)])
        sent.append(json.dumps(min(model.calls)))  # the first, without repairs
    assert sent[0] == sent[1]
    if name in CASES["published_prompts"] or name == "consistency_llm":
        assert len({*sent}) == 1
    else:
        kinds = ("chest X-ray", "abdomen CT examination", "MRI examination", "knee examination")
        assert [[kind in text for kind in kinds] for text in sent[1:]] == np.eye(4, dtype=bool).tolist()
    assert hashlib.sha256(sent[0].encode()).hexdigest().startswith(digest)


def test_a_failure_has_its_reason() -> None:
    result = entries()["crimson"].load()(mock_client("{}")).score([PAIR])
    assert "reference_findings" in result.failures[0]


def test_the_published_examples_of_chexprompt_can_be_read() -> None:
    examples = re.findall(r"^Errors: (Number .*?)\n##", load_prompt("chexprompt"), re.DOTALL | re.MULTILINE)
    counts = [
        {kind: "".join(f"{letter}{n}" for letter, n in numbers.items() if n) for kind, numbers in lists.items()}
        for lists in map(parse_error_lists, examples)
    ]
    assert counts == CASES["chexprompt_examples"]
    assert CheXprompt.parameters == {"temperature": 0, "top_p": 0.9, "max_tokens": 128}


@given(
    st.permutations("ABCDEF").flatmap(
        lambda letters: st.tuples(*(st.tuples(st.just(letter), st.integers(-1, 100)) for letter in letters))
    )
    | st.lists(st.tuples(st.sampled_from("ABCDEFG"), st.integers(0, 9)), max_size=8),
    st.sampled_from(["({}, {})", "{}: {}", '["{}", {}]']),
)
def test_a_list_is_read_as_it_is_or_refused(pairs: Sequence[tuple[str, int]], pair: str) -> None:
    lists = ", ".join(pair.format(*item) for item in pairs), ", ".join(f"({letter}, 0)" for letter in "ABCDEF")
    kinds = ("significant", "insignificant")
    text = "\n".join(f"Number of clinically {kind} errors by type: [{lists[i]}]" for i, kind in enumerate(kinds))
    is_complete = sorted(letter for letter, _ in pairs) == list("ABCDEF") and all(0 <= n <= 99 for _, n in pairs)
    with nullcontext() if is_complete else pytest.raises(ValueError, match=r"\w"):
        assert parse_error_lists(text)["significant"] == {letter.lower(): n for letter, n in pairs}


def letters(text: str) -> str:
    return re.sub(r"[^0-9A-Za-z*+/=<>]", "", text)


@pytest.mark.skipif(not SEEDS.exists(), reason="the papers' texts are not available")
@pytest.mark.parametrize("paper", CASES["papers"])
def test_every_line_is_the_papers(paper: str) -> None:
    text = re.sub(r"<\|.*?\|>|\n\d+\s+Preprint. Under review.", "", (SEEDS / paper).read_text(encoding="utf-8"))
    # Numbers of code lines and marks of the scan stand between the lines of a listing.
    text = re.sub(r"(?m)^\d+\t|<tt>|</?pre>|\$\{\\tt X\}\$|\{\\tt X\}", lambda m: "X" if "X" in m[0] else "", text)
    printed = letters(text)
    for package, names in CASES["papers"][paper].items():
        for name in names:
            lines = [re.sub(r"\{\w+\}", "", line) for line in load_prompt(name, package).splitlines()]
            missing = [line for line in lines if letters(line) not in printed]
            # The authors put the names of the categories into the first line; the scan lacks the mark of the other.
            own = ("Introduce errors related to . The errors", " [Candidate]: <candidate report>")
            assert [line for line in missing if not line.startswith(own)] == []


def entry(correction: str, severity: str, categories: Sequence[str] = ()) -> dict[str, Any]:
    fields = {"corrections": correction, "clinical severity": severity, "comments": "why"}
    return {**fields, "error category": [*categories]}


DELETE = entry("[delete]", "Urgent error", ["False prediction of finding"])
INSERT = entry("Left basilar opacity.", "Not actionable", ["Omission of finding"])


def test_a_line_ends_with_a_sentence_or_a_line_of_the_report_and_not_after_a_digit() -> None:
    lines = ("Tube 2.2 cm above the carina.", "Mild edema.No effusion.", "Compared with 2019. Heart normal.")
    assert split_lines(f"{' '.join(lines)}\nLungs are clear..\n") == (*lines, "Lungs are clear.")


@given(st.text("ab1. ", max_size=40))
def test_lines_are_those_of_the_published_expression(report: str) -> None:
    # The expression and the cleaning of the authors' code; a line of full stops alone is no line here.
    pieces = [f"{piece.strip()}.".replace("..", ".") for piece in re.split(r"(?<!\d)\.(?!\d|$) ", report.strip())]
    expected = [piece.rstrip(" .") for piece in pieces if piece.strip(" .")]
    assert [line.rstrip(" .") for line in split_lines(report)] == expected


def test_the_published_examples_of_fineradscore_can_be_read() -> None:
    examples = re.findall(
        r"Generated Text: (.*?)\n\nGround Truth Text: .*?\n\nCorrections:\n(.*?)\n(?=\nExample|\Z)",
        load_prompt("fineradscore_few_shot"),
        re.DOTALL,
    )
    parsed = [parse_corrections(response, re.sub(r"\[\d\] ", "", lines).split("\n")) for lines, response in examples]
    assert [response.severities for response in parsed] == [[2, 2, 1], [2, 3, 1], [1, 1, 3], [2, 2], []]
    # Example 2 is printed with correction and severity swapped.
    assert parsed[1].items[2] == Correction(1, None, 1, "Repetitive", ())
    ending = "Moderate cardiomegaly. The presence of a minimal left pleural effusion cannot be excluded."
    assert parsed[2].corrected_report().endswith(ending)


def test_examples_are_turns_of_the_conversation() -> None:
    model = MockChatModel("{}")
    FineRadScore(ChatClient(model, {})).score([CANDIDATE])
    (system, *turns, last) = model.calls[0]
    assert (system, last) == (("system", load_prompt("fineradscore")), ("user", TURNS["last"]))
    assert [role for role, _ in turns] == ["user", "assistant"] * 5
    assert turns[2][1] == TURNS["third"]
    assert turns[3][1].startswith(TURNS["fourth"])
    assert turns[-1] == ("assistant", "{}")


def test_examples_are_one_prompt_with_the_instructions_or_left_out() -> None:
    instructions = load_prompt("fineradscore")
    model = MockChatModel("Corrections: {}")
    FineRadScore(ChatClient(model, {}), examples="prompt").score([CANDIDATE])
    assert model.calls == [(("system", instructions + load_prompt("fineradscore_few_shot")), ("user", TURNS["prompt"]))]
    FineRadScore(ChatClient(model, {}), examples="none").score([CANDIDATE])
    assert model.calls[1:] == [(("user", instructions + load_prompt("fineradscore_zero_shot") + TURNS["last"]),)]


def test_a_malformed_response_is_repaired_up_to_five_times() -> None:
    invalid = ["There are three errors."] * 5
    result = FineRadScore(mock_client([*invalid, json.dumps({"2": DELETE})])).score([CANDIDATE])
    assert result.values["fineradscore"] == [3]


changes = st.builds(
    entry,
    st.sampled_from(["[delete]", "Another line.", "Multiple lung nodules.", ""]),
    st.sampled_from(["Urgent error", "No error", "Not actionable", "x"]),
)


@settings(deadline=None)
@given(st.text(max_size=80) | st.dictionaries(st.sampled_from(["0", "1", "2", "None", "9"]), changes).map(json.dumps))
def test_any_text_has_valid_corrections_or_is_refused(text: str) -> None:
    with suppress(ValueError):
        parsed = parse_corrections(text, LINES)
        assert all(1 <= severity <= 4 for severity in parsed.severities)
        assert len(parsed.by_line()) + len(parsed.insertions) == len(parsed.items)


keyed = st.dictionaries(st.sampled_from(["0", "1", "2", "None"]), st.just(INSERT), min_size=1)


@settings(deadline=None)
@given(keyed, st.sampled_from(["I give {} if it fits. ", "", "Corrections:\n"]), st.booleans())
def test_all_objects_of_a_response_count(data: dict[str, Any], before: str, apart: bool) -> None:
    text = "\n".join(json.dumps({key: value}) for key, value in data.items()) if apart else json.dumps(data)
    assert len(parse_corrections(before + text, LINES).items) == len(data)
    with pytest.raises(ValueError, match="cut off"):
        parse_corrections((before + text)[:-1], LINES)


def test_corrections_of_other_candidates() -> None:
    # A dash between digits is a change.
    response = json.dumps({"0": entry("A 1-2 mm nodule.", "Urgent error")})
    expected = (Correction(0, "A 1-2 mm nodule.", 3, "why", ()),)
    assert parse_corrections(response, ("A 12 mm nodule.",)).items == expected
    # An empty candidate has insertions alone.
    parsed = parse_corrections(json.dumps({"None": INSERT}), split_lines(""))
    assert parsed.corrected_report() == "Left basilar opacity."
    with pytest.raises(ValueError, match="is no line"):
        parse_corrections(json.dumps({"0": DELETE}), split_lines(""))


LEVELS = dict(zip(("urgent", "actionable", "minor", "benign"), crimson.SIGNIFICANCE_WEIGHTS, strict=True))
CRIMSON: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("crimson.yaml").read_text("utf-8"))


def answer(reference: Sequence[str], candidate: Sequence[str], matches: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return a valid answer from levels and matches, as in `crimson.yaml`; other findings are missing or false."""
    findings = [
        [
            {"id": f"{letter}{number}", "finding": "a finding", "clinical_significance": LEVELS[level]}
            for number, level in enumerate(levels, start=1)
        ]
        for letter, levels in (("R", reference), ("P", candidate))
    ]
    matched = " ".join(matches).split()
    missing, false = ([item["id"] for item in side if item["id"] not in matched] for side in findings)
    pairs = {ids: dict(zip(("ref_id", "pred_id"), ids.split(), strict=True)) for ids in matches}
    details = {"error_types": ["location"], "explanation": "left, right"}
    errors = [{**pairs[ids], "severity": severity, **details} for ids in matches for severity in matches[ids]]
    return {
        "reference_findings": findings[0],
        "predicted_findings": findings[1],
        "matched_findings": list(pairs.values()),
        "errors": {"false_findings": false, "missing_findings": missing, "attribute_errors": errors},
    }


@pytest.mark.parametrize("name", CRIMSON["scores"])
def test_scores_follow_the_published_formula(name: str) -> None:
    example = dict(CRIMSON["scores"][name])
    score = example.pop("score")
    assert crimson_score(FindingErrors.model_validate(answer(**example))) == pytest.approx(score, abs=1e-6)


def test_scores_and_counts_come_from_one_response() -> None:
    body = answer(["urgent", "minor"], ["urgent", "minor", "minor"], {"R1 P1": ["significant", "negligible"]})
    body["errors"]["attribute_errors"][1]["error_types"] = ["severity", "measurement", "uncertainty"]
    result = Crimson(mock_client(json.dumps(body))).score([TextPair("1", "A candidate.", "A reference.")])
    assert {name: values[0] for name, values in result.values.items() if values[0]} == {
        "crimson": pytest.approx((1 / 1.5 - 0.5) / 1.25),
        "crimson_false_findings": 2,
        "crimson_missing_findings": 1,
        "crimson_attribute_errors": 2,
        "crimson_location_errors": 1,
        "crimson_severity_errors": 1,
        "crimson_measurement_errors": 1,
    }
    assert list(result.values) == list(Crimson.scores)
    assert result.details == [body]


@st.composite
def crimson_responses(draw: st.DrawFn) -> dict[str, Any]:
    levels = st.lists(st.sampled_from(list(LEVELS)), max_size=5)
    reference, candidate = draw(levels), draw(levels)
    ids = [f"R{i + 1} P{j + 1}" for i in range(len(reference)) for j in range(len(candidate))]
    matches = draw(st.lists(st.sampled_from(ids), unique=True)) if ids else []
    severities = st.lists(st.sampled_from(list(crimson.SEVERITY_WEIGHTS)), max_size=3)
    return answer(reference, candidate, {match: draw(severities) for match in matches})


@given(crimson_responses())
def test_scores_are_between_minus_1_and_1_and_errors_never_raise_them(body: dict[str, Any]) -> None:
    score = crimson_score(FindingErrors.model_validate(body))
    assert -1 < score <= 1
    errors = body["errors"]
    if not (errors["false_findings"] or errors["missing_findings"] or errors["attribute_errors"]):
        assert score == pytest.approx(1)
    body["predicted_findings"].append({"id": "P9", "finding": "a mass", "clinical_significance": "urgent"})
    errors["false_findings"].append("P9")
    assert crimson_score(FindingErrors.model_validate(body)) < score
    errors["false_findings"].pop()
    body["predicted_findings"].pop()
    errors["attribute_errors"] += [
        {**match, "severity": "significant", "error_types": ["location"], "explanation": ""}
        for match in body["matched_findings"]
    ]
    assert crimson_score(FindingErrors.model_validate(body)) <= score


@pytest.mark.parametrize(("guidelines", "has_context", "digest"), CRIMSON["prompts"])
def test_the_prompt_of_crimson_is_the_published_one(guidelines: bool, has_context: bool, digest: str) -> None:
    context = PatientContext(82, "Known heart failure.") if has_context else NO_CONTEXT
    prompt = crimson_prompt("A candidate.", "A {context}\nreference.", context, guidelines=guidelines)
    assert hashlib.sha256(prompt.encode()).hexdigest() == digest


RIGHT = json.dumps(answer(["urgent", "minor"], ["urgent", "minor"], {"R1 P1": ["significant"]}))


def test_an_invalid_response_is_sent_back() -> None:
    invalid = RIGHT.replace('"false_findings": ["P2"]', '"false_findings": []')
    model = MockChatModel([invalid, RIGHT])
    repaired = Crimson(ChatClient(model, {})).score([TextPair("1", "A candidate.", "A reference.")])
    assert repaired.usage["repairs"] == 1
    assert "expected P2 either in matched_findings or once in false_findings" in model.calls[1][-1][1]


def test_servers_are_asked_for_the_format_and_may_refuse_schemas(serve: Callable[..., ChatServer]) -> None:
    def reply(body: dict[str, Any], _: int) -> Reply:
        return (400, {}, "no schemas") if "response_format" in body else (200, {}, RIGHT)

    server = serve(reply)
    client = load_chat_client("openai:m", base_url=server.base_url, parameters=Crimson.parameters)
    result = Crimson(client).score([TextPair("1", "A candidate.", "A reference.")])
    assert result.values["crimson_false_findings"] == [1]
    body = server.requests[0]
    assert (body["temperature"], body["max_tokens"]) == (0, 8192)
    assert body["messages"][0] == {
        "role": "system",
        "content": "You are an expert radiology evaluator that assesses the accuracy of radiology reports.",
    }
    schema = body["response_format"]["json_schema"]["schema"]
    objects = [schema, *schema["$defs"].values()]
    # As OpenAI's strict mode requires.
    assert all(item["additionalProperties"] is False for item in objects)
    assert all(item["required"] == list(item["properties"]) for item in objects)
    assert schema["$defs"]["AttributeDifference"]["properties"]["error_types"]["items"]["enum"] == list(
        crimson.ATTRIBUTES
    )


def sent_context(context: PatientContext, /, **arguments: bool) -> str:
    model = MockChatModel(RIGHT)
    pairs = [Pair("1", "A candidate.", "A reference.", context=context)]
    result = evaluate(pairs, ["crimson"], model=ChatClient(model, {}), metric_args={"crimson": arguments}, bootstrap=0)
    prompt = model.calls[0][-1][1]
    before, _, _ = prompt.partition("Reference Findings (Ground Truth):\n")
    lines = before.partition("Patient Context:\n")[2].strip()
    assert ("Context guidelines:" in prompt) == (bool(lines) and arguments.get("guidelines", True))
    assert result.counts["crimson_with_context"] == bool(lines)
    return lines


@pytest.mark.parametrize(("patient", "lines"), CRIMSON["contexts"])
def test_age_and_indication_of_the_patient_are_part_of_the_prompt(patient: dict[str, Any], lines: str) -> None:
    context = PatientContext(**patient)
    assert sent_context(context) == lines
    assert sent_context(context, guidelines=False) == lines
    assert sent_context(context, context=False) == ""


def test_arguments_are_true_or_false() -> None:
    with pytest.raises(InputError, match=r"metric_args.crimson.guidelines: expected true or false, found 'some'"):
        sent_context(NO_CONTEXT, guidelines="some")  # type: ignore[arg-type]
