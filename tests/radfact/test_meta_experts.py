"""Agreement with experts on preferred candidates, and on corrections as in FineRadScore's paper, by the command."""

import json
import math
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from chat_server import Reply, last
from hypothesis import given
from hypothesis import strategies as st
from meta_run import Serve, run_meta, write_table

from radfact.io.jsonl import read_json, read_jsonl
from radfact.llm import mock_client
from radfact.meta.agreement import corrections
from radfact.meta.agreement.preferences import WrongPreference, evaluate_scores, find_wrong_preferences
from radfact.meta.datasets.layouts import REXVAL_RATINGS, REXVAL_REPORTS
from radfact.meta.datasets.preferences import PreferenceSet, read_preferences
from radfact.meta.datasets.ratings import RatedReport
from radfact.meta.scores import ScoreColumns
from radfact.metrics.llm.fineradscore import split_lines
from radfact.metrics.llm.responses.corrections import Correction, Corrections
from radfact.records import CHEST_XRAY, Pair
from radfact.statistics import rater_agreement as raters
from radfact.statistics.clusters import Clusters

HEADER = ["id", "reference", "candidate_1", "candidate_2", "confidence", "expert_a"]
RATINGS = yaml.safe_load(Path(__file__).with_name("rating_sets.yaml").read_text("utf-8"))


def test_the_lower_score_is_preferred() -> None:
    first, second = [0.5, 0.5, 0.5, math.nan], [0.4, 0.6, 0.5, 0.1]
    assert raters.prefer_lower(first, second) == ["second", "first", "equal", None]
    # Differences by rounding are none.
    first, second = [0.1 + 0.2, 1 / 3, 300.0], [0.3, 0.3333333333333337, 1.0]
    assert raters.prefer_lower(first, second) == ["equal", "equal", "second"]


def test_preferences_by_scores(tmp_path: Path) -> None:
    cells = [("good", "bad", 9, "first", "first"), ("bad", "good", 5, "second", "2"), ("x", "y", 5, "first", "second")]
    cells += [("x", "y", 1, "equal", "equal"), ("worse", "fine", 2, "second", "")]
    rows = [[str(number), "r", *row] for number, row in enumerate(cells, 1)]
    preferences = read_preferences(write_table(tmp_path / "p.csv", [*HEADER, "expert_b"], rows))
    assert preferences.expert == ["first", "second", None, None, "second"]
    # The second score differs only where the experts prefer none.
    values = {"ec": [0, 3, 0, 0, 1, 2, 1, 0, 0, 1], "b": [1, 1, 0, 1, 1, 1, 1, 2, 0, 1]}
    table = evaluate_scores(preferences, ScoreColumns(values, dict.fromkeys(values, "lower")), replicates=10, seed=1)
    assert {level: one.value for level, one in table["ec"].items()} == {2.0: pytest.approx(2 / 3), 5.0: 1.0, 9.0: 1.0}
    assert {(one.value, one.low, one.ties) for one in table["b"].values()} == {(None, None, 1.0)}


def test_a_majority_of_the_experts_may_decide(tmp_path: Path) -> None:
    labels = [("first", "first", "first"), ("second", "first", "second"), ("first", "equal", "first")]
    # Half of the labels, two ties, no label, and three different labels decide nothing.
    labels += [("first", "second", ""), ("equal", "equal", "first"), ("", "", ""), ("first", "second", "equal")]
    header = ["id", "reference", "candidate_1", "candidate_2", "expert_a", "expert_b", "expert_c"]
    path = write_table(tmp_path / "p.csv", header, [[key, "r", "x", "y", *row] for key, row in enumerate(labels)])
    unanimous, majority = read_preferences(path), read_preferences(path, consensus="majority")
    assert unanimous.expert == ["first", *[None] * 6]
    assert majority.expert == ["first", "second", "first", *[None] * 4]
    assert unanimous.notes[0].startswith("6 of 7 rows are excluded (without a label: 1; the experts differ: 5)")
    assert unanimous.notes[1].startswith("A majority decides 2 of the excluded rows")
    assert unanimous.notes[-1].endswith("alpha (nominal) 0.00, 6 with two or more ratings.")
    # The same labels by row and rater.
    cells = [[key, "r", "x", "y", rater, label] for key, row in enumerate(labels) for rater, label in enumerate(row)]
    path = write_table(tmp_path / "p.csv", [*header[:4], "rater", "expert"], cells)
    assert (read_preferences(path).expert, read_preferences(path).notes) == (unanimous.expert, unanimous.notes)
    # Without the column, no row is surer than another.
    assert majority.confidence == [0.0] * 7
    assert majority.notes[1].startswith("The file has no confidence")


def test_wrong_preferences_are_listed_by_confidence() -> None:
    pairs = [[Pair(f"{row}_{number}", "c", "r") for row in "abcd"] for number in (1, 2)]
    preferences = PreferenceSet(
        *pairs, ["first", "second", "first", None], [3.0, 5.0, 9.0, 9.0], Clusters(None, "aaaa")
    )
    scores = ScoreColumns({"f1": [0.1, 0.5, 0.9, 0.0, 0.2, 0.5, 0.1, 1.0]}, {"f1": "higher"})
    assert find_wrong_preferences(preferences, scores) == [
        WrongPreference("f1", "b", 5.0, "second", "equal", 0.5, 0.5),
        WrongPreference("f1", "a", 3.0, "first", "second", 0.1, 0.2),
    ]


def write_rows(tmp_path: Path, rows: list[list[Any]]) -> tuple[object, ...]:
    path = write_table(tmp_path / "p.csv", HEADER, rows)
    return ("agreement", path, "--layout", "preferences", "--out", tmp_path / "out")


def test_ties_are_shown_and_a_score_with_ties_only_has_no_accuracy(tmp_path: Path) -> None:
    texts = [("No mass.", "Mass."), ("Mass.", "Edema."), ("Mass.", "No mass.")]
    rows = [[str(row), "No effusion.", *pair, 5 + row // 2, "second"] for row, pair in enumerate(texts)]
    more = ("--metrics", "bleu_1,logical_recall", "--judge", "offline", "--bootstrap", 20)
    console = run_meta(*write_rows(tmp_path, rows), *more)
    table = read_json(tmp_path / "out/agreement.json")["preferences"]
    # The experts prefer the second of each pair: BLEU-1 the first one, neither, the second one. None denies effusion.
    assert [table["bleu_1"]["5"][name] for name in ("value", "ties", "n")] == pytest.approx([1 / 3, 1 / 3, 3])
    assert [table["logical_recall"]["5"][name] for name in ("value", "ties", "low", "n")] == [None, 1.0, None, 3]
    assert "Without accuracy and in no plot: logical_recall (" in console
    page = (tmp_path / "out/agreement.html").read_text()
    assert "Without accuracy and in no plot: Logical recall (" in page
    assert "0 of 3 rows are excluded" in page
    assert (tmp_path / "out/preferences.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize(("label", "accuracies", "exit_code"), RATINGS["direct queries"])
def test_a_judge_is_queried_for_preferences(
    label: str | None, accuracies: dict[str, Any], exit_code: int, tmp_path: Path, serve: Serve
) -> None:
    def reply(body: dict[str, Any], _: int) -> Reply:
        has_label = label or "C" in last(body).split()
        return 200, {}, f"Assistant 1 is {label or 'better than'} Assistant 2" if has_label else "Both are fine."

    server = serve(reply)
    model = ("--ask", "--judge", "openai:m", "--base-url", server.base_url, "--bootstrap", 0)
    console = run_meta(*write_rows(tmp_path, RATINGS["queried preferences"]), *model, exit_code=exit_code)
    levels = read_json(tmp_path / "out/agreement.json")["preferences"]["openai:m (direct query)"]
    assert {level: [one["value"], one["ties"], one["n"]] for level, one in levels.items()} == accuracies
    assert ("1 direct queries failed" in console) == (exit_code == 3)
    # No query without an expert preference, and no placeholder in a text is filled.
    texts = {last(request) for request in server.requests}
    assert len(server.requests) == 2 or label is None
    candidates = "[Reference Report]\nA\n\n[Assistant 1]\n{second}\n\n[Assistant 2]\nB\n"
    assert any(candidates in text for text in texts)
    assert not any("[Assistant 1]\nA\n" in text for text in texts)


Result = tuple[dict[str, Any], str, list[dict[str, Any]]]
Compare = Callable[..., Result]

V0 = ["id", "indication", "impression_original", "impression_edited", "score", "annotator", "source"]
ROWS = [row.split("|") for row in RATINGS["corrections"]]


def corrector(request: dict[str, Any], _: int) -> Reply:
    """A model that deletes every mass, and paraphrases lines."""
    text = last(request)
    if text.startswith("Rewrite"):
        return 200, {}, f"In other words: {text.splitlines()[-1]}"
    mass = {"corrections": "[delete]", "clinical severity": "Not actionable", "comments": ""}
    mass["error category"] = ["False prediction of finding"]  # type: ignore[assignment]
    candidate = text.partition("Ground Truth Text:")[0]
    return 200, {}, json.dumps(dict.fromkeys(re.findall(r"\[(\d+)\][^\[]*Mass", candidate), mass))


@pytest.fixture
def compare(tmp_path: Path, serve: Serve) -> Compare:
    """Compare a model with a table, or with rows of ReFiSco; return the record, the page and the requests."""

    def run(rows: list[list[str]] | Path, *more: str, reply: Any = corrector, exit_code: int = 0) -> Result:
        server, out = serve(reply), tmp_path / "out"
        table = write_table(tmp_path / "v0.csv", V0, rows) if isinstance(rows, list) else rows
        model = ("--layout", "refisco-v0", "--judge", "openai:m", "--base-url", server.base_url, "--metrics", "bleu_2")
        print(run_meta("corrections", table, *model, "--out", out, *more, exit_code=exit_code))
        return read_json(out / "corrections.json"), (out / "corrections.html").read_text(), server.requests

    return run


def test_the_tables_of_the_paper(tmp_path: Path, compare: Compare) -> None:
    result, page, requests = compare(ROWS, "--metrics", "bleu,rouge_l")
    # Rows of the table are the lines that are numbered, however they would be divided otherwise.
    assert any("[0] Lungs are clear [1] Left effusion. Small [2] Mass" in last(request) for request in requests)
    changes = {change: [share["value"], share["n"]] for change, share in result["changes"]["all"].items()}
    assert changes == RATINGS["changes of the paper"]
    assert set(result["changes"]) == {"all", "X-REM", "MIMIC-CXR"}
    # Maximum severities 3, 2 and 0 against 1, 1 and 0; and the two raters of the same candidate, 3 against 2.
    model, others = result["severities"]["model"], result["severities"]["other raters"]
    assert model["mean_absolute"] == pytest.approx(1.0)
    assert model["shares"] == {str(gap): pytest.approx(1 / 3) for gap in (-2, -1, 0)}
    assert (others["mean_absolute"], others["n"]) == (1.0, 1)
    # A metric is one row, and all its scores are in the results folders.
    assert list(result["gains"]) == ["bleu_2", "rouge_l"]
    assert "bleu_4" in read_json(tmp_path / "out/corrected/scores.json")["scores"]
    gain = result["gains"]["bleu_2"]
    assert (gain["corrected"] > gain["base"], gain["n"]) == (True, 3)
    assert result["text_similarity"]["bleu_2"] == {"value": 0.0, "n": 1}
    assert (tmp_path / "out/severities.png").read_bytes().startswith(b"\x89PNG")
    assert "3 of 3 reports, original, corrected by openai:m with the published examples." in page
    assert ("(table 1)" in page, "(tables 2 and 3)" in page) == (True, True)
    items = [row["corrections"] for _, row in read_jsonl(tmp_path / "out/corrections.jsonl")]
    assert [[item["was"] for item in row] for row in items] == [["Mass"], ["Mass"], []]


def test_the_severity_of_a_kept_line_counts(compare: Compare) -> None:
    result, _, _ = compare(RATINGS["kept lines"])
    # The model has 0, 0 and 1; the raters of the first report both have 4, though only one of them changes it.
    assert result["severities"]["model"]["mean_absolute"] == pytest.approx((4 + 4 + 1) / 3)
    assert result["severities"]["other raters"]["mean_absolute"] == 0.0
    assert result["changes"]["all"]["no_change"]["n"] == 2


@pytest.mark.parametrize(("setting", "table", "candidate", "reference"), RATINGS["settings"])
def test_references_may_be_shuffled_and_candidates_paraphrased(
    setting: str, table: int, candidate: str, reference: str, compare: Compare
) -> None:
    rows = [[*row[:2], f"{row[2]}.", row[3], *row[4:]] for row in ROWS[4:7]]
    result, page, requests = compare(rows, "--setting", setting)
    assert candidate in last(requests[-1])
    assert last(requests[-1]).endswith(f"Ground Truth Text: {reference}")
    assert result["changes"]["all"]["delete"] == {"value": 1.0, "n": 1}
    assert f"(table {table})" in page


def test_categories_compared_with_expert_counts(tmp_path: Path, compare: Compare) -> None:
    reports = [["s", "Clear.", "Clear. Mass."], ["t", "Clear.", "Mass."]]
    write_table(tmp_path / REXVAL_REPORTS, ["study_id", "gt_report", "bleu"], reports)
    columns = ["study_number", "candidate_type", "error_category", "rater_index", "clinically_significant"]
    # One of two raters counts the mass of the first report; both count an omission in the second.
    errors = {(0, 1, 0, True), (1, 2, 0, True), (1, 2, 1, False)}
    rows = [
        [study, "bleu", category, rater, significant, int((study, category, rater, significant) in errors)]
        for study, category, rater, significant in product((0, 1), range(1, 7), (0, 1), (True, False))
    ]
    write_table(tmp_path / REXVAL_RATINGS, [*columns, "num_errors"], rows)
    result, page, requests = compare(tmp_path, "--layout", "rexval", "--examples", "none")
    assert all([message["role"] for message in request["messages"]] == ["user"] for request in requests)
    shares = result["categories"]
    assert shares["a"] == {"precision": {"value": 0.5, "n": 2}, "recall": {"value": 1.0, "n": 1}}
    assert shares["b"]["recall"] == {"value": 0.0, "n": 1}
    assert "appendix D" in page
    counts = list(product(("significant", "insignificant"), range(1, 7)))
    columns = ["study", "report", "draft", "rater", *(f"{kind}_{'_abcdef'[at]}" for kind, at in counts)]
    # A report with a missing count is left out.
    rows = [["u", "Clear.", "Clear.", "0", "", *[1] * 11]]
    for (study, (_, *texts)), rater in product(enumerate(reports), (0, 1)):
        own = [int((study, category, rater, kind == "significant") in errors) for kind, category in counts]
        rows.append([study, *texts, rater, *own])
    options = ("--layout", "plain", "--columns", "id=study,candidate=draft,reference=report")
    assert compare(write_table(tmp_path / "plain.csv", columns, rows), *options)[0]["categories"] == shares


def test_a_report_without_a_response_is_excluded(compare: Compare, capsys: pytest.CaptureFixture[str]) -> None:
    def reply(request: dict[str, Any], number: int) -> Reply:
        return (200, {}, "I cannot.") if "[1]" not in last(request) else corrector(request, number)

    result, page, _ = compare(ROWS, reply=reply, exit_code=3)
    assert list(result["excluded"]) == ["8_MIMIC-CXR_r1"]
    assert "1 reports excluded" in capsys.readouterr().out
    assert "8_MIMIC-CXR_r1" in page


def test_severities() -> None:
    expected = raters.SeverityErrors(0.75, {-2: 0.25, 0: 0.5, 1: 0.25}, 4)
    assert raters.severity_errors([0, 3, 4, 1], [0, 4, 2, 1]) == expected
    assert raters.severity_errors([], []) is None
    # A random rater is compared with all others: if 4 is chosen of (2, 2, 4), the errors are 2 and 2; else 0 and 2.
    errors = [raters.rater_severity_errors([(2, 2, 4), (3,)], seed=seed) for seed in range(20)]
    assert {error and (error.mean_absolute, error.n) for error in errors} == {(1.0, 2), (2.0, 2)}
    assert raters.rater_severity_errors([(3,)]) is None


@given(st.lists(st.sampled_from(["Edema.", "Nodule.", "Clear lungs."]), max_size=5).map(" ".join), st.integers(0, 9))
def test_a_shuffled_report_has_the_same_lines_in_another_order(report: str, seed: int) -> None:
    shuffled = corrections.shuffle_lines(report, seed=seed)
    lines = split_lines(report)
    assert sorted(split_lines(shuffled)) == sorted(lines)
    assert (shuffled != report) == (len(set(lines)) > 1)
    assert corrections.shuffle_lines(report, seed=seed) == shuffled


def test_corrected_text_is_that_of_the_model_and_of_the_radiologist() -> None:
    rewritten, inserted = Correction(0, "No edema.", 3), Correction(None, "Fracture.", 2)
    model, expert = (Corrections(("Edema.", "Clear."), made) for made in ((rewritten,), (rewritten, inserted)))
    pair = Pair("1", "c", "r")
    report = corrections.CorrectedReport(RatedReport(pair, {}), pair, model, expert)
    assert corrections.corrected_text_pairs([report]) == [Pair("0", "No edema.", "No edema. Fracture.")]


def test_preferences_are_drawn_as_they_are_published() -> None:
    met = [1, 0, 0, 1, 0, 1, 1, 0, 1, 1]
    preferred: list[raters.Preference | None] = ["first" if one else "equal" for one in met]
    accuracy = raters.preference_accuracy(["first"] * 10, preferred, replicates=40, seed=7)
    draws = np.random.default_rng(7).choice(met, (40, 10)).mean(axis=1)
    assert [accuracy.low, accuracy.high] == pytest.approx(np.quantile(draws, [0.025, 0.975]))


def test_a_paraphrase_may_share_no_word_with_its_line() -> None:
    client = mock_client("```\nThe heart is big.\n```")
    assert corrections.paraphrase(client, [("Cardiomegaly.", CHEST_XRAY)]) == ["The heart is big."]
