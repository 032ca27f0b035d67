"""Responses of language models (`responses.yaml`): many forms have one meaning, and what has two is refused."""

import asyncio
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from call_counts import count_calls
from chat_server import numeric
from error_checks import raises_code
from green_responses import Counts, Explanations, GreenResponse, edited, published_counts, responses
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from waiting import wait_until

from radfact import progress
from radfact.api import RadFact, evaluate
from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode, Failure, RunError
from radfact.judges import EntailmentQuery
from radfact.judges.llm_judge import LLMJudge, judge_prompt
from radfact.judges.llm_splitter import LLMSplitter, parse_split
from radfact.judges.protocol import flatten_split
from radfact.judges.response import parse_report_response, parse_response
from radfact.llm import CachedResponse, ChatClient, ChatRequest, MockChatModel, ResponseCache
from radfact.llm.call_errors import excerpt
from radfact.llm.response_text import bodies, parse_json, read_data, read_list, strip_reasoning
from radfact.metrics.llm.chexprompt import ErrorCounts, parse_error_counts, parse_published_counts
from radfact.metrics.llm.crimson import FindingErrors, crimson_score
from radfact.metrics.llm.responses.accuracy_score import parse_accuracy_score
from radfact.metrics.llm.responses.assessment import Assessment, parse_assessment, parse_scored_assessment
from radfact.metrics.llm.responses.corrections import parse_corrections
from radfact.metrics.llm.responses.counts import parse_count
from radfact.metrics.llm.responses.report_text import parse_report
from radfact.metrics.registry import entries
from radfact.progress import ServerActivity, display_progress
from radfact.records import Pair

LINES = ("Three left lung nodules.", "Multiple lung nodules.", "Pulmonary edema.")
PREMISES = (
    *("The heart is enlarged.", "Small left pleural effusion.", "No pneumothorax.", "Lungs: clear."),
    *("Status: after sternotomy.", "A b.", "A b."),
)
HYPOTHESES = ("Enlarged heart.", "Left effusion.", "Rib fracture.")
NARRATIVE = "Two views. Heart and hila are normal. Opacity at the left base, likely pneumonia."
REPORT = "The heart is normal. Lungs are clear. There is no pleural effusion or pneumothorax."
GROUPS: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("responses.yaml").read_text("utf-8"))
INVARIANTS: dict[str, Callable[[Any], object]] = {
    "data": lambda _: True,
    "query": lambda result: result[0] == "not_entailment" or result[1],
    "report": lambda result: len(result["verdicts"]) == len(HYPOTHESES) or result["problems"],
    "split": lambda sentences: all(sentence.strip() for sentence in sentences),
    "rewritten": lambda report: report.strip(),
    "paraphrase": lambda report: report.strip(),
}
TOKENS = "-:[]{}\"'`,\n answersnumber12evidencestatusphraseorignew"
REMARKS: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_name("report_remarks.yaml").read_text("utf-8"))
REWRITTEN = "Findings: The heart is normal in size. The lungs are clear.\n\nImpression: No acute process."
GREEN_FORMS = {
    name: GROUPS[0]["forms"][name]
    for name in ("no full stops", "bold headers", "lower-case headers", "blank lines", "stars")
}
SORRY = "I'm sorry, but I cannot assess medical images."
LLM_METRICS = [
    name for name, entry in entries().items() if entry.is_builtin and entry.declared.requirements.judge == "model"
]
WORDS = ("Zebra", "quagga", "okapi", "Émile", "A7731")
"""Words that no prompt has."""
PAIRS = [Pair(str(i), f"{' '.join(WORDS)} {i}.", f"No {' '.join(WORDS)} {i}.") for i in range(12)]
ECHOES: dict[str, Callable[[str], str]] = {
    "the prompt": lambda message: message,
    "in upper case": lambda message: message.upper(),
    "a word per line": lambda message: "\n".join(message.split()),
    "one word": lambda _: WORDS[0],
    "JSON": lambda _: json.dumps({"finding": f"{WORDS[0]} of the {WORDS[1]}", "id": [WORDS[2]]}),
    "joined": lambda _: "_".join(WORDS),
    "cut off": lambda message: message[: len(message) // 2],
}


def letters(counts: Mapping[str, int]) -> str:
    """Write numbers of errors in short, such as "a1b2"."""
    return "".join(f"{letter}{count}" for letter, count in sorted(counts.items()) if count)


def green(assessment: Assessment) -> dict[str, Any]:
    kinds = {"significant": assessment.significant, "insignificant": assessment.insignificant}
    counts = {kind: letters({key: item.count for key, item in errors.items()}) for kind, errors in kinds.items()}
    return {**counts, "matched": assessment.matched.count}


def chexprompt(response: ErrorCounts) -> dict[str, str]:
    return {kind: letters(counts) for kind, counts in response.model_dump().items()}


def vert(text: str) -> dict[str, Any]:
    assessment = parse_scored_assessment(text)
    return {**green(assessment), "score": assessment.score}


def category(text: str) -> int:
    name = ERROR_CATEGORIES["d"]
    return parse_count(f"{name}: {text}", name=name, may_be_empty=True).count


def corrections(text: str) -> list[Any]:
    items = parse_corrections(text, LINES).items
    return [[item.line, item.text, item.severity, item.comment, "".join(item.categories)] for item in items]


def crimson(text: str) -> list[Any]:
    response = parse_json(text, FindingErrors)
    errors = response.errors
    attributes = [f"{error.ref_id} {error.pred_id} {error.severity}" for error in errors.attribute_errors]
    return [pytest.approx(crimson_score(response)), errors.false_findings, errors.missing_findings, attributes]


def query(text: str) -> list[Any]:
    verdict, dropped = parse_response(text, PREMISES)
    return [verdict.status, list(verdict.evidence), verdict.relation, dropped]


def report(text: str) -> dict[str, Any]:
    valid, problems = parse_report_response(text, PREMISES[:3], HYPOTHESES)
    verdicts = {str(index): verdict.status for index, (verdict, _) in valid.items()}
    # The numbers that a problem names are what the model is told to answer again.
    return {"verdicts": verdicts, "problems": [" ".join(re.findall(r"\d+", problem)) for problem in problems]}


PARSERS: dict[str, Callable[[Any], Any]] = {
    "vert": vert,
    "green": lambda text: green(parse_assessment(text)),
    "count": lambda value: parse_count(value).count,
    "category": category,
    "score": lambda text: pytest.approx(parse_accuracy_score(text)),
    "fineradscore": corrections,
    "chexprompt": lambda text: chexprompt(parse_published_counts(text)),
    "chexprompt_json": lambda text: chexprompt(parse_error_counts(text)),
    "crimson": crimson,
    "query": query,
    "report": report,
    "rewritten": lambda text: parse_report(text, REPORT),
    "paraphrase": lambda text: parse_report(text, "Cardiomegaly.", requires_overlap=False),
    "data": read_data,
    "reasoning": lambda text: strip_reasoning(text).strip(),
    "list": read_list,
    "split": lambda text: flatten_split(parse_split(text, NARRATIVE)),
    "split_of": lambda pair: flatten_split(parse_split(pair[1], pair[0])),
    "bodies": lambda text: list(bodies(text)),
}


def forms(group: dict[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    """Yield the names and responses of a group."""
    table = group.get(name, {})
    named = table.items() if isinstance(table, dict) else ((str(form), form) for form in table)
    for key, form in named:
        yield key, edited(group["base"], form) if "base" in group and isinstance(form, list) else form


ACCEPTED = [
    *((group["parser"], text, group["result"], name) for group in GROUPS for name, text in forms(group, "forms")),
    *((group["parser"], text, result, str(text)) for group in GROUPS for text, result in group.get("results", ())),
]
REFUSED = [
    (group["parser"], text, group.get("reasons", {}).get(name, group.get("reason", r"\w")), name)
    for group in GROUPS
    for name, text in forms(group, "refused")
]


@pytest.mark.parametrize(
    ("parser", "response", "result"), [pytest.param(*case, id=f"{case[0]}-{name}") for *case, name in ACCEPTED]
)
def test_forms_of_one_meaning_have_one_result(parser: str, response: Any, result: Any) -> None:
    assert PARSERS[parser](response) == result


@pytest.mark.parametrize(
    ("parser", "response", "reason"), [pytest.param(*case, id=f"{case[0]}-{name}") for *case, name in REFUSED]
)
def test_other_responses_are_refused_with_a_reason_for_the_model(parser: str, response: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=re.compile(reason)):
        PARSERS[parser](response)


DEEP = ("[" * 2_000, "{" * 2_000, "- " * 100_000, "> " * 50_000, '{"status": ' + "9" * 5_000 + "}", "&a [" * 500)


@pytest.mark.parametrize("text", [*DEEP, "```\n" * 5_000])
def test_long_and_deep_responses_are_refused(text: str) -> None:
    for parser in ("green", "fineradscore", "chexprompt", "crimson", "query"):
        with pytest.raises(ValueError, match=r"\w"):
            PARSERS[parser](text)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json('{"errors": ' + "[" * 100_000 + "]" * 100_000 + "}", FindingErrors)


def test_brackets_in_a_row_are_decoded_once() -> None:
    # One call for each bracket, instead of ten and more.
    assert count_calls(lambda: parse_corrections("[" * 2_000 + "{}", LINES)) < 2 * 2_000


@pytest.mark.parametrize("parser", INVARIANTS)
@settings(deadline=None)
@given(text=st.text(max_size=200) | st.text(TOKENS, max_size=300))
def test_any_text_is_parsed_or_refused(parser: str, text: str) -> None:
    with suppress(ValueError):
        assert INVARIANTS[parser](PARSERS[parser](text))


@settings(deadline=None, max_examples=150)
@given(*map(st.sampled_from, (REMARKS["before"], [REWRITTEN, REPORT, f"**{REWRITTEN}**"], REMARKS["after"])))
def test_remarks_around_a_rewritten_report_are_removed(before: str, report: str, after: str) -> None:
    assert parse_report(before + report + after, REPORT) == report.strip("*")


# Properties of the parser of GREEN's and VERT's notation


def counts(assessment: Assessment) -> Counts:
    significant, insignificant = (
        tuple(category.count for category in errors.values())
        for errors in (assessment.significant, assessment.insignificant)
    )
    return significant, insignificant, assessment.matched.count


def fields(response: GreenResponse, count: str = "Count") -> str:
    """A response whose categories and findings are lists of fields, with the items one level deeper."""

    def format_fields(items: tuple[str, ...], key: str) -> str:
        if not items:
            return f"\n  - {count}: 0\n  - {key}: None"
        return f"\n  - {count}: {len(items)}\n  - {key}:" + "".join(f"\n    - {item}" for item in items)

    def section(errors: Explanations) -> str:
        categories = zip(ERROR_CATEGORIES.items(), errors, strict=True)
        return "\n".join(
            f"- **({letter}) {name}:**{format_fields(items, 'Errors')}" for (letter, name), items in categories
        )

    return (
        f"## Clinically Significant Errors\n{section(response.significant)}\n\n"
        f"## Clinically Insignificant Errors\n{section(response.insignificant)}\n\n"
        f"## Matched Findings{format_fields(response.findings, 'Findings')}\n"
    )


@settings(deadline=None)
@given(responses, st.sampled_from(["Count", "Number of errors", "Total", "count", "Error count", *GREEN_FORMS]))
def test_any_response_has_the_published_counts_in_these_forms(response: GreenResponse, form: str) -> None:
    assessment = parse_assessment(response.text())
    assert counts(assessment) == published_counts(response.text()) == response.counts
    assert assessment.matched.findings == response.findings
    assert tuple(category.errors for category in assessment.significant.values()) == response.significant
    text = edited(response.text(), GREEN_FORMS[form]) if form in GREEN_FORMS else fields(response, form)
    assert counts(parse_assessment(text)) == response.counts


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(["Heart", "Lungs are clear", "No effusion"]), min_size=1), st.integers(4, 7))
def test_only_the_first_level_of_a_list_counts(items: list[str], depth: int) -> None:
    deeper = "\n" + " " * depth + "- "
    listed = "".join(f"\n  - {item}{deeper}reference: one{deeper}candidate: other" for item in items)
    text = GreenResponse(((),) * 6, ((),) * 6, ()).text().replace("Findings]:\n0.", f"Findings]:\n{listed}")
    assert parse_assessment(text).matched.count == len(items)


@settings(deadline=None, max_examples=60)
@given(responses, st.data())
def test_a_response_that_is_cut_off_is_parsed_right_or_not_at_all(response: GreenResponse, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([response.text(), fields(response)]))
    with suppress(ValueError):
        assert counts(parse_assessment(text[: data.draw(st.integers(0, len(text)))])) == response.counts


@settings(deadline=None, max_examples=60)
@given(
    st.text(max_size=200) | responses.flatmap(lambda response: st.permutations(response.text().split()).map(" ".join))
)
def test_any_text_has_counts_in_range_or_is_refused(text: str) -> None:
    with suppress(ValueError):
        significant, insignificant, matched = counts(parse_assessment(text))
        assert all(0 <= count <= 99 for count in (*significant, *insignificant, matched))


def client(model: MockChatModel, **options: Any) -> ChatClient:
    return ChatClient(model, {"model": "mock:m"}, **{"concurrency": 1, **options})


def requests(count: int) -> list[ChatRequest[int]]:
    return [numeric(str(i)) for i in range(count)]


@pytest.mark.parametrize(("options", "count"), [({}, 10), ({"concurrency": 64}, 10), ({"max_invalid": 2}, 2)])
def test_a_run_stops_after_the_first_invalid_responses(options: dict[str, int], count: int) -> None:
    model = MockChatModel(SORRY)
    with pytest.raises(RunError) as caught:
        client(model, **options).complete_all(requests(500))
    assert len(model.calls) == count * 3
    assert str(caught.value) == (
        f"mock:m: the first {count} responses are all invalid (first: invalid literal for int() with base 10: '...'; "
        f"the response: {SORRY}); --max-invalid 0 disables this check (in Python max_invalid=0)"
    )


def test_a_valid_response_of_a_parallel_call_continues_the_run() -> None:
    class OneLate(MockChatModel):
        """Answers the tenth call after ten others."""

        async def complete(self, *conversation: Any) -> CachedResponse:
            response = await super().complete(*conversation)
            while response.text == "7" and len(chat._invalid) < 10:
                await asyncio.sleep(0.01)
            return response

    chat = client(OneLate(lambda message: "7" if message == "9" else SORRY), concurrency=16)
    unrepaired = [replace(request, repairs=0) for request in requests(32)]
    assert chat.complete_all(unrepaired)[9] == 7


def test_all_calls_start_after_a_valid_response() -> None:
    class Together(MockChatModel):
        """Answers no call after the tenth before 16 are in flight."""

        async def complete(self, *conversation: Any) -> CachedResponse:
            response = await super().complete(*conversation)
            if len(self.calls) > 10:
                await asyncio.wait_for(barrier.wait(), 30)
            return response

    barrier = asyncio.Barrier(16)
    assert client(Together("7"), concurrency=16).complete_all(requests(10 + 32)) == [7] * 42


def test_cached_invalid_responses_stop_a_resumed_run(tmp_path: Path) -> None:
    with client(MockChatModel(SORRY), max_invalid=0, cache=ResponseCache(tmp_path)) as first:
        assert all(isinstance(result, Failure) for result in first.complete_all(requests(30)))
    model = MockChatModel("7")
    with client(model, cache=ResponseCache(tmp_path)) as second, raises_code(ErrorCode.JUDGE_FAILED, match="first 10"):
        second.complete_all(requests(30))
    assert model.calls == []


def test_a_report_with_some_verdicts_is_no_invalid_response() -> None:
    half = "- number: 1\n  evidence: []\n  status: not_entailment"
    judge = LLMJudge("m", client(MockChatModel(half)), judge_prompt(batch="report"))
    queries = [EntailmentQuery((f"premise {i}",), text) for i in range(15) for text in ("Opacity.", "Edema.")]
    assert not any(isinstance(verdict, Failure) for verdict in judge.judge(queries))


@pytest.mark.parametrize("options", [{}, {"batch": "report"}, {"splitter": "offline"}])
def test_judge_and_splitter_stop(options: dict[str, Any], tmp_path: Path) -> None:
    limits = {"concurrency": 1, "cache": tmp_path, "max_invalid": 3, "bootstrap": 0}
    metric = RadFact("mock:m", judge_args={"responses": SORRY}, **limits, **options)
    with raises_code(ErrorCode.JUDGE_FAILED, match="the first 3 responses"):
        metric.score(PAIRS)


def test_the_display_shows_the_first_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "POLL_INTERVAL", 0.001)
    ServerActivity("earlier").fail("of another run")
    written, activity = io.StringIO(), ServerActivity("judge:8000")
    with display_progress(Console(file=written, width=200), {"judging": lambda: {"planned": 9}}):
        for number in range(progress.MAX_FAILURES + 2):
            activity.fail(f"problem {number}")
        wait_until(lambda: len(written.getvalue().splitlines()) >= progress.MAX_FAILURES)
    lines = written.getvalue().splitlines()
    assert lines[: progress.MAX_FAILURES] == [f"judge:8000: problem {i}" for i in range(progress.MAX_FAILURES)]
    assert "problem 3" not in written.getvalue()


@pytest.mark.parametrize(("name", "echo"), [*product([*LLM_METRICS, "judge", "splitter"], ECHOES)])
def test_no_word_of_a_report_is_shown(name: str, echo: str) -> None:
    chat = client(MockChatModel(ECHOES[echo]), max_invalid=1)
    query = EntailmentQuery((PAIRS[0].reference,), PAIRS[0].candidate)
    runs: dict[str, Callable[[], object]] = {
        "judge": lambda: LLMJudge("m", chat, judge_prompt()).judge([query]),
        "splitter": lambda: LLMSplitter("m", chat, []).split([PAIRS[0].reference]),
    }
    with pytest.raises(RunError) as caught:
        runs.get(name, lambda: evaluate(PAIRS[:1], [name], model=chat, bootstrap=0))()
    assert [word for word in WORDS if word.casefold() in str(caught.value).casefold()] == []


@given(st.lists(st.text(max_size=12), max_size=8), st.text(max_size=80))
def test_an_excerpt_has_no_word_of_private_texts(private: list[str], between: str) -> None:
    words = {word.casefold() for text in private for word in re.findall(r"[^\W_]+", text)}
    shown = excerpt(f" {between} ".join(private), private)
    assert words.isdisjoint(word.casefold() for word in re.findall(r"[^\W_]+", shown))


def test_an_excerpt_keeps_what_tells_the_problem() -> None:
    report = "There is a small left pleural effusion."
    assert excerpt(SORRY, [report]) == SORRY
    assert excerpt('{"status": "maybe", "evidence": ["small left effusion"]}', [report]) == (
        '{"status": "maybe", "evidence": ["[...]"]}'
    )
    assert len(excerpt("word " * 500, [report])) < 210
