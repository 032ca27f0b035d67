"""Errors by models and by rules, their detection by scores, and parsers of responses (`meta_responses.yaml`)."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock

import pytest
import yaml
from chat_server import Reply, last
from hypothesis import given, settings
from hypothesis import strategies as st
from meta_run import Serve, refuse_meta, run_meta, write_table

from radfact.error_categories import CategoryLetter
from radfact.errors import ErrorCode, Failure
from radfact.io.jsonl import read_json, write_jsonl
from radfact.io.pairs import as_pairs
from radfact.llm import mock_client
from radfact.llm.protocol import Message
from radfact.meta.agreement.preferences import parse_preference
from radfact.meta.datasets.reports import SiteReport, read_reports
from radfact.meta.injection import llm_editor
from radfact.meta.injection.detection import detect, detection_pairs, write_detection
from radfact.meta.injection.records import InjectedError, InjectedReport, ReportSentences, parse_facts, read_injected
from radfact.meta.injection.rewording import KINDS, rephrase
from radfact.meta.injection.rules import TABLES, RuleInjector
from radfact.meta.scores import ScoreColumns
from radfact.reader.ontology_file import default_ontology

CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("injected_errors.yaml").read_text("utf-8"))
REPORT = "The heart is normal. Lungs are clear."
SOURCE = SiteReport("s", "", REPORT, "X-ray", "chest")
CHANGED = "The heart is normal. There is a left effusion."
REFUSAL = "I'm sorry, but I can't assist with that."
CHANGE = {"original": "Lungs are clear.", "modified": "There is a left effusion.", "explanation": "x"}


def response(modified: str = CHANGED) -> str:
    return json.dumps({"modified_report": modified, "changes_detail": [CHANGE | {"sentence_index": 1}]})


def test_a_plausible_error_is_accepted() -> None:
    model = Mock(side_effect=[response(), '{"plausible": true, "reason": "ok"}'])
    (candidate,) = llm_editor.inject_with_model(mock_client(lambda text: str(model(text))), [SOURCE], "a", 1)
    assert isinstance(candidate, InjectedReport)
    assert (candidate.candidate, candidate.sample_id, candidate.by) == (CHANGED, "s_a1", "mock:model")
    (change,) = candidate.changes
    assert (change.original, change.modified) == ("Lungs are clear.", "There is a left effusion.")
    injection, check = (call.args[0] for call in model.call_args_list)
    assert "Number of errors to inject: 1" in injection
    assert "Imaging modality: X-ray\nBody region: chest" in check


def test_implausible_errors_are_requested_up_to_five_times() -> None:
    injections: list[str] = []
    checks = Counter[str]()

    def model(text: str, conversation: Sequence[Message]) -> str:
        texts = " ".join(text for _, text in conversation)
        report = next(name for name in ("Good", "Odd", "Bad") if f"{name} heart" in texts)
        if "Modifications:" not in text:
            injections.append(text)
            return response(f"{report} heart, {len(injections)}. There is a left effusion.")
        checks[report] += 1
        is_plausible = report == "Good" or (report == "Odd" and checks[report] == 2)
        return json.dumps({"plausible": is_plausible, "reason": "no such anatomy"})

    sources = [SiteReport(name, "", f"{name} heart. Lungs are clear.") for name in ("Good", "Odd", "Bad")]
    candidates = llm_editor.inject_with_model(mock_client(model), sources, "b", 1)
    assert [isinstance(candidate, InjectedReport) for candidate in candidates] == [True, True, False]
    assert checks == {"Good": 1, "Odd": 2, "Bad": 5}
    assert ["no such anatomy" in text for text in injections] == [False] * 3 + [True] * 5


def test_several_categories_are_named_and_none_requests_a_paraphrase() -> None:
    queries: dict[str, str] = {}

    def model(text: str) -> str:
        queries["reworded" if "slightly rephrased" in text else "errors"] = text
        return "[Candidate]: The heart is large."

    sources = [SOURCE, SiteReport("2", "", REPORT)]
    first, second = llm_editor.inject_mixed_with_model(mock_client(model), sources, [("a", "d"), ()])
    assert isinstance(first, InjectedReport)
    assert isinstance(second, InjectedReport)
    assert (first.candidate, first.counts["a"], first.counts["d"], second.changes) == ("The heart is large.", 1, 1, ())
    categories = "False report of a finding in the candidate, Misassessment of the severity of a finding"
    assert f"Introduce errors related to {categories}." in queries["errors"]
    assert REPORT in queries["reworded"]


def test_categories_are_drawn_by_seed_and_report() -> None:
    drawn = [llm_editor.draw_categories(str(i), seed=1) for i in range(60)]
    assert drawn == [llm_editor.draw_categories(str(i), seed=1) for i in range(60)]
    assert {len(categories) for categories in drawn} == {0, 1, 2, 3}
    assert {letter for categories in drawn for letter in categories} == set("abcdef")


@pytest.mark.parametrize("text", [REFUSAL, REPORT])
def test_a_refusal_or_a_report_without_errors_is_a_failure(text: str) -> None:
    assert isinstance(llm_editor.inject_mixed_with_model(mock_client(text), [SOURCE], [("a",)])[0], Failure)
    assert isinstance(llm_editor.ModelEditor(mock_client(text), "perturb").edit([SOURCE])[0], Failure)


def test_one_failed_report_does_not_affect_the_others() -> None:
    client = mock_client(lambda text: "" if "bad" in text or "cannot be used" in text else f"**Findings:** {text}")
    reports = [SiteReport(text, "x", text) for text in ("fine", "bad")]
    good, bad = llm_editor.ModelEditor(client, "standardize").edit(reports)
    assert isinstance(good, InjectedReport)
    assert (good.candidate, good.site) == ("Findings: fine", "x")
    assert isinstance(bad, Failure)


def injected(source: str, category: CategoryLetter | None, count: int) -> InjectedReport:
    change = InjectedError(category=category or "a", operation="test")
    key = f"{source}_{category or 'mixed'}{count}" if count else f"{source}_reworded"
    texts = {"sample_id": key, "source_id": source, "reference": f"No effusion. {source}.", "candidate": "x"}
    return InjectedReport(**texts, category=category, changes=(change,) * count)


def scores(values: list[float]) -> ScoreColumns:
    return ScoreColumns({"m": values}, {"m": "higher"})


def test_a_step_is_detected_where_the_score_gets_worse() -> None:
    rows = [injected("s", "a", 1), injected("s", "a", 2), injected("t", "a", 1)]
    rows += [injected("s", None, 0), injected("t", None, 0)]
    pairs = detection_pairs(rows)
    assert [pair.sample_id for pair in pairs] == ["s_a1", "s_a2", "t_a1", "s_reworded", "t_reworded", "s_0", "t_0"]
    # s: 1.0 -> 0.8 -> 0.8 (the second error is not detected); t: 0.9 -> 0.7. Rewording costs 0.1 of s, nothing of t.
    detection, reworded = detect(rows, scores([0.8, 0.8, 0.7, 0.9, 0.9, 1.0, 0.9])).detections
    assert (detection.category, detection.steps, detection.n) == ("a", pytest.approx(2 / 3), 3)
    assert {k: mean.value for k, mean in detection.curve.items()} == {0: 0.95, 1: 0.75, 2: 0.8}
    assert detection.above_rewording == 1.0
    assert (reworded.category, reworded.steps, reworded.n) == ("reworded", 0.5, 2)


def test_single_mixed_errors_are_compared_with_rewording() -> None:
    rows = [injected(key, None, count) for key, count in (("s", 3), ("t", 1), ("u", 1))]
    rows += [injected("s", None, 0), injected("t", None, 0)]
    # s: three errors, worse than rewording; t: one error, not worse than rewording; u: not reworded.
    detection, _ = detect(rows, scores([0.1, 0.9, 0.5, 0.8, 0.8, 1.0, 1.0, 1.0])).detections
    assert (detection.category, detection.steps, detection.n) == ("mixed", 1.0, 3)
    assert detection.above_rewording == 0.0
    assert {k: mean.value for k, mean in detection.curve.items()} == {0: 1.0, 1: 0.7, 3: 0.1}
    (alone,) = detect(rows[:1], scores([0.1, 1.0])).detections
    assert alone.above_rewording is None


def test_a_score_without_values_has_none_in_the_files(tmp_path: Path) -> None:
    rows = [injected("s", "a", 1)]
    names = ("m_significant", *(f"m_significant_{letter}" for letter in "abcdef"))
    columns = ScoreColumns({name: [math.nan, 0.0] for name in names}, dict.fromkeys(names, "lower"))
    write_detection(detect(rows, columns), rows, tmp_path, {})
    record = read_json(tmp_path / "detection.json")
    assert record["accuracy"]["m_significant"]["a"] == {"value": None, "n": 0}
    assert record["f1"]["m_significant"]["a"] is None
    assert (tmp_path / "categories.csv").read_text().splitlines()[1] == f"m_significant{',' * 12}"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "r.csv", ["id", "site", "report"], CASES["sites"])


def test_injection_and_detection_by_commands(tmp_path: Path, table: Path) -> None:
    made, out = tmp_path / "injected.jsonl", tmp_path / "out"
    run_meta("inject", table, "--types", "a,d,e", "--errors", "1,2", "--out", made)
    rows = read_injected(made)
    assert {row.category for row in rows} == {"a", "d", "e"}
    assert {row.site for row in rows} == {"x", "y"}
    run_meta("detect", made, "--metrics", "bleu_2", "--out", out)
    record = read_json(out / "detection.json")
    assert record["errors"]["a"] == sum(len(row.changes) for row in rows if row.category == "a")
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "steps.csv").read_text().startswith("score,a,d,e,reworded\nbleu_2,1.0,")
    assert "Errors compared with rewording" in (out / "detection.html").read_text()
    assert (record["models"], record["circular"]) == ({}, False)
    assert {row["above_rewording"] for row in record["detections"]} == {None}


@pytest.mark.parametrize("kind", CASES["rewordings"])
def test_rewordings_are_grammatical_and_mean_the_same(kind: str) -> None:
    for sentence, expected in CASES["rewordings"][kind].items():
        texts = rephrase(sentence.rstrip("."), (kind,))
        assert set(expected) <= set(texts), (sentence, texts)
        assert bool(texts) == bool(expected)


def _facts_of_report(text: str) -> Counter[Any]:
    return Counter(fact for sentence in ReportSentences.of(text).sentences for fact in parse_facts(sentence))


@pytest.mark.usefixtures("without_plots")
def test_harmless_rewordings_cost_metrics_of_words_much_and_offline_radfact_and_findings_little(tmp_path: Path) -> None:
    sentences = CASES["sentences"]
    reports = [[f"r{i}", " ".join(sentences[i : i + 6])] for i in range(len(sentences))]
    reports += [["v", "The lungs show no consolidation. Osseous structures are intact."]]
    table = write_table(tmp_path / "reports.csv", ["id", "report"], reports)
    made, out = tmp_path / "reworded.jsonl", tmp_path / "out"
    run_meta("inject", table, "--types", "harmless", "--out", made)
    rows = read_injected(made)
    assert {row.rewording for row in rows} == set(KINDS)
    for row in rows:
        before, after = map(_facts_of_report, (row.reference, row.candidate))
        assert (before, row.changes, row.candidate == row.reference) == (after, (), False)
    console = run_meta("detect", made, "--metrics", "rouge_l,bleu,radfact,findings", "--judge", "offline", "--out", out)
    assert "Harmless rewordings; costly: more than 0.02" in console
    costs = read_json(out / "detection.json")["rewordings"]
    shares = {row["score"]: row["share"]["point"] for row in costs if row["kind"] == "all"}
    # Measured: 0 of RadFact and findings. The rules accept only what the ontology reads as the same.
    assert max(shares[name] for name in ("logical_f1", "findings", "findings_f1")) <= 0.02
    assert min(shares[name] for name in ("rouge_l", "bleu_4")) > 0.8
    assert (out / "rewordings.csv").read_text().startswith("score,rewording,n,costly,low,high,mean cost\n")


def test_the_cost_of_a_rewording_is_relative_to_the_range_of_a_score() -> None:
    rows = [injected("s", None, 0).model_copy(update={"rewording": "order"})]
    units = {"percent": "0 to 100 %", "wide": "-1 to 1", "count": "errors"}
    values = {"fraction": [0.97, 1.0], "percent": [97.0, 100.0], "wide": [0.97, 1.0], "count": [1.0, 0.0]}
    directions = dict.fromkeys(values, "higher") | {"count": "lower"}
    costs = detect(rows, ScoreColumns(values, directions, units=units)).rewordings  # type: ignore[arg-type]
    means = {row.score: (row.share.point, row.mean) for row in costs if row.kind == "order"}
    expected = {"fraction": (1, 0.03), "percent": (1, 0.03), "wide": (0, 0.015), "count": (1, 1)}
    assert means == {name: pytest.approx(pair) for name, pair in expected.items()}


@pytest.mark.usefixtures("without_plots")
def test_a_judge_with_the_ontology_of_the_rules_is_called_circular(tmp_path: Path, table: Path) -> None:
    made, out = tmp_path / "injected.jsonl", tmp_path / "out"
    run_meta("inject", table, "--types", "a", "--errors", "1", "--out", made)
    console = run_meta("detect", made, "--metrics", "findings,logical_f1", "--judge", "offline", "--out", out)
    record, page = read_json(out / "detection.json"), (out / "detection.html").read_text()
    models = {"findings": "offline", "radfact": "offline, narratives split by offline"}
    assert (record["models"], record["circular"]) == (models, True)
    for text in (page, console):
        assert "radfact: offline, narratives split by offline." in text
        assert "Circular result for findings, radfact:" in text


def test_unreadable_reports_are_counted_and_get_no_errors(tmp_path: Path) -> None:
    german = "Kein Pneumothorax. Das Herz ist normal groß. Kein Erguss."
    rows = [["g", german], ["e", "There is a small left effusion. No pneumothorax."]]
    reports, made = write_table(tmp_path / "r.csv", ["id", "report"], rows), tmp_path / "i.jsonl"
    assert "1 of 2 reports get no errors" in run_meta("inject", reports, "--out", made)
    assert {row.source_id for row in read_injected(made)} == {"e"}
    write_table(reports, ["id", "report"], rows[:1])
    code, line = refuse_meta("inject", reports, "--overwrite", "--out", made, exit_code=1)
    assert code is ErrorCode.RUN_FAILED
    assert "1 of 1 reports get no errors" in line


def test_reports_that_a_model_fails_on_are_excluded(tmp_path: Path, serve: Serve) -> None:
    def respond(request: dict[str, Any], _: int) -> Reply:
        text = last(request)
        if "bad report" in text:
            return 400, {}, "refused"
        if "Modifications:" in text:
            return 200, {}, '{"plausible": true, "reason": "ok"}'
        change = {"sentence_index": 0, "original": "", "modified": "There is a mass.", "explanation": "added"}
        return 200, {}, json.dumps({"modified_report": f"{text[-20:]} There is a mass.", "changes_detail": [change]})

    server, made = serve(respond), tmp_path / "i.jsonl"
    rows = [["1", "Clear lungs.", "CT", "head"], ["2", "A bad report.", "", ""], ["3", "Clear.", "N/A", " "]]
    table = write_table(tmp_path / "r.csv", ["id", "report", "Modality", "anatomy"], rows)
    command = ("inject", table, "--by", "openai:m", "--base-url", server.base_url, "--out", made)
    assert "excluded: 2_a1" in run_meta(*command, "--types", "a", "--errors", 1, exit_code=3)
    made_by_id = {row.sample_id: (row.modality, row.anatomy) for row in read_injected(made)}
    assert made_by_id == {"1_a1": ("CT", "head"), "3_a1": ("X-ray", "chest")}
    checks = "".join(text for text in map(last, server.requests) if "Modifications:" in text)
    assert sorted(re.findall("Imaging modality: (.*)\nBody region: (.*)", checks)) == [
        ("CT", "head"),
        ("X-ray", "chest"),
    ]


@pytest.mark.parametrize(("fields", "cells", "expected"), CASES["examinations"])
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_reports_have_their_modality_and_anatomy_or_the_default(
    fields: list[str], cells: list[str], expected: list[str], suffix: str, tmp_path: Path
) -> None:
    path, report = tmp_path / f"r.{suffix}", CASES["sites"][1][2]
    row = {"id": "1", "report": report} | dict(zip(fields, cells, strict=True))
    if suffix == "csv":
        write_table(path, [*row], [[*row.values()], ["2", "", *cells], ["3", "N/A", *cells]])
    else:
        write_jsonl(path, [{name: value or None for name, value in row.items()}])
    (report,), _ = read_reports(path, default_site="", examination=("X-ray", "chest"))
    assert [report.modality, report.anatomy] == expected
    (pair,) = as_pairs([{**row, "candidate": "A", "reference": "B"}])
    assert [pair.context.modality or "X-ray", pair.context.anatomy or "chest"] == expected
    out = run_meta("inject", path, "--types", "a", "--errors", 1, "--modality", "MR", "--out", tmp_path / "i.jsonl")
    (made,) = read_injected(tmp_path / "i.jsonl")
    assert [made.modality, made.anatomy] == [expected[0].replace("X-ray", "MR"), expected[1]]
    contexts = {(pair.context.modality, pair.context.anatomy) for pair in detection_pairs([made])}
    assert contexts == {(made.modality, made.anatomy)}
    assert ("2 of 3 rows have no report and are excluded (lines 3, 4)." in out) == (suffix == "csv")


LETTERS: tuple[CategoryLetter, ...] = get_args(CategoryLetter)
SENTENCES = CASES["sentences"]
REPORTS = st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=7, unique=True).map(" ".join)


def facts(text: str | None) -> list[tuple[str, bool]]:
    return sorted((fact.concept, fact.present) for fact in parse_facts(text or ""))


@settings(deadline=None, max_examples=60)
@given(REPORTS, st.sampled_from(LETTERS), st.integers(1, 3))
def test_a_candidate_has_its_errors_only(report: str, letter: CategoryLetter, count: int) -> None:
    made = RuleInjector(seed=1).inject("x", report, letter, count)
    if made is None:
        return
    assert len(made.changes) == count
    assert {change.category for change in made.changes} == {letter}
    assert made.candidate != made.reference == report
    changed = {change.original for change in made.changes if change.original}
    for sentence in ReportSentences.of(report).sentences:
        assert sentence in changed or f"{sentence}." in made.candidate
    for change in made.changes:
        assert (change.modified or "") in made.candidate
        _check_label(change.category, change.original, change.modified)


def _check_label(letter: CategoryLetter, original: str | None, modified: str | None) -> None:
    before, after = facts(original), facts(modified)
    if letter in "ab":
        stated = [{concept for concept, present in facts if present} for facts in (before, after)]
        assert stated[1] - stated[0] if letter == "a" else stated[0] - stated[1]
    else:
        assert before == after
        property_name = {"c": "places", "d": "severity", "e": "change", "f": "change"}[letter]
        values = [[getattr(f, property_name) for f in parse_facts(text or "")] for text in (original, modified)]
        assert values[0] != values[1]


@settings(deadline=None, max_examples=40)
@given(REPORTS, st.sampled_from(LETTERS))
def test_fewer_errors_are_among_more(report: str, letter: CategoryLetter) -> None:
    injector = RuleInjector(seed=3)
    candidates = [made for k in (1, 2, 3) if (made := injector.inject("x", report, letter, k))]
    for fewer, more in pairwise(candidates):
        assert more.changes[: len(fewer.changes)] == fewer.changes


def test_candidates_depend_on_seed_and_report_only() -> None:
    report = " ".join(SENTENCES)
    first = RuleInjector(seed=5).inject("x", report, "c", 2)
    other = RuleInjector(seed=5)
    other.inject("y", report, "a", 3)
    assert other.inject("x", report, "c", 2) == first
    assert RuleInjector(seed=6).inject("x", report, "a", 3) != RuleInjector(seed=5).inject("x", report, "a", 3)


@pytest.mark.parametrize(
    ("letter", "report", "changed"),
    [(letter, report, texts) for letter, rows in CASES["changes"].items() for report, texts in rows],
)
def test_errors_by_category(letter: CategoryLetter, report: str, changed: list[str | None]) -> None:
    made = [RuleInjector(seed=seed).inject("x", report, letter, 1) for seed in range(60)]
    changes = [change for candidate in made if candidate for change in candidate.changes]
    assert {change.modified for change in changes if change.original} == set(changed)


@pytest.mark.parametrize(("letter", "report"), [(key, text) for key, texts in CASES["none"].items() for text in texts])
def test_a_report_without_an_opportunity_has_no_candidate(letter: CategoryLetter, report: str) -> None:
    assert RuleInjector().inject("x", report, letter, 1) is None


def test_added_findings_match_their_names_in_the_ontology() -> None:
    ontology = default_ontology()
    for finding, texts in TABLES["findings"].items():
        assert finding in ontology.findings
        for text in texts:
            assert any(f.present and ontology.is_a(f.concept, finding) for f in parse_facts(text)), text


def test_findings_that_another_sentence_denies_are_not_added() -> None:
    for seed in range(20):
        made = RuleInjector(seed=seed).inject("x", "No pneumothorax. The pleura shows no pneumothorax.", "a", 3)
        assert made is not None
        assert "apical pneumothorax" not in made.candidate


def test_mixed_errors_change_a_sentence_once() -> None:
    report = " ".join(SENTENCES)
    made = RuleInjector(seed=2).inject_mixed("x", report, 5)
    assert len(made.changes) == 5
    originals = [change.original for change in made.changes if change.original]
    assert len(originals) == len(set(originals))
    assert sum(made.counts.values()) == 5


TEXTS = {"REPORT": REPORT, "CHANGED": CHANGED, "DETAIL": json.dumps(CHANGE)}
RESPONSES: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("meta_responses.yaml").read_text("utf-8"))
PARSERS: Mapping[str, Callable[[str], Any]] = {
    "preference": parse_preference,
    "plausibility": lambda text: llm_editor.parse_plausibility(text) is None,
    "candidate": lambda text: llm_editor.parse_candidate(text, REPORT, changed=True),
    "modified report": lambda text: llm_editor.parse_modified_report(text, SOURCE, "a", 1).candidate,
}


def filled(text: Any) -> Any:
    for name, value in TEXTS.items():
        text = text.replace(name, value) if isinstance(text, str) else text
    return text


@pytest.mark.parametrize(
    ("parser", "text", "expected"), [(name, *row) for name, rows in RESPONSES["read"].items() for row in rows]
)
def test_responses_are_parsed(parser: str, text: str, expected: Any) -> None:
    assert PARSERS[parser](filled(text)) == filled(expected)


@pytest.mark.parametrize(
    ("parser", "text"), [(name, text) for name, rows in RESPONSES["refused"].items() for text in rows]
)
def test_unusable_responses_are_refused(parser: str, text: str) -> None:
    match = {"preference": "last line", "plausibility": "plausible"}.get(parser, r"\w")
    with pytest.raises(ValueError, match=match):
        PARSERS[parser](filled(text))


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.sampled_from([text for text, _ in RESPONSES["read"]["preference"]]) | st.text("ab 12.\n", max_size=20)),
    st.sampled_from(["better", "worse"]),
)
def test_only_the_last_line_is_the_label_of_a_preference(before: list[str], how: str) -> None:
    label = f"Assistant 1 is {how} than Assistant 2"
    assert parse_preference("\n".join([*before, label])) == ("first" if how == "better" else "second")
    with pytest.raises(ValueError, match="last line"):
        parse_preference("\n".join([*before, label, "Both miss the effusion."]))


@pytest.mark.parametrize("nothing", ["", "None", "(none)", "[new sentence]", "N/A"])
def test_an_added_sentence_has_no_original_and_a_removed_one_no_text(nothing: str) -> None:
    for change in ({"original": nothing}, {"modified": nothing}):
        report = "The heart is normal." if "modified" in change else TEXTS["CHANGED"]
        text = json.dumps({"modified_report": report, "changes_detail": [CHANGE | change]})
        (made,) = llm_editor.parse_modified_report(text, SOURCE, "a", 1).changes
        expected = {name: None if name in change else CHANGE[name] for name in ("original", "modified")}
        assert {"original": made.original, "modified": made.modified} == expected
