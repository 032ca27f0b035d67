"""ReXamine-Global: statistics compared with scipy, the steps and how they resume, and readers of reports."""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from chat_server import Reply, last
from error_checks import raises_code
from green_responses import GreenResponse
from meta_run import Serve, run_meta, write_table
from scipy import stats

from radfact.errors import ErrorCode, RunError
from radfact.io.jsonl import read_json, read_jsonl, write_jsonl
from radfact.llm import mock_client
from radfact.meta import rexamine as robustness
from radfact.meta.datasets.reports import SiteReport, read_counts, read_reports
from radfact.meta.injection.llm_editor import ModelEditor
from radfact.meta.injection.records import read_injected
from radfact.meta.injection.rules import RuleInjector
from radfact.meta.rexamine import RexamineResult, rexamine
from radfact.meta.scores import ScoreColumns, ScoreFunction
from radfact.records import Pair
from radfact.statistics.bootstrap import Direction

Run = Callable[..., RexamineResult]

RATER_COLUMNS = ["rater", "rater_index", "Reader ID", "annotator_id", "radiologist", "reviewer", "OBSERVER", "expert"]
SITES = ["x"] * 4 + ["y"] * 3


def test_t_is_standardized_minus_original_and_negative_where_style_is_rewarded() -> None:
    # `m`: higher is better, and scores are higher with the standardized references; `errors`: lower is better.
    values: dict[str, list[float]] = {"m": [1, 2, 3, 4, 5, 5, 5], "errors": [1, 2, 4, math.nan, 0, 0, 0]}
    directions: dict[str, Direction] = {"m": "higher", "errors": "lower"}
    styled: dict[str, list[float]] = {"m": [2, 4, 4, 6, 5, 5, 5], "errors": [0, 2, 1, 7, 0, 0, 1]}
    tests = robustness.style_tests(ScoreColumns(values, directions), ScoreColumns(styled, directions), SITES)
    x, y, errors, _ = tests
    expected = stats.ttest_rel([-2, -4, -4, -6], [-1, -2, -3, -4])
    assert expected.statistic < 0
    assert (x.t, x.p) == (pytest.approx(expected.statistic), pytest.approx(expected.pvalue))
    assert (x.mean_difference, x.n) == (-1.5, 4)
    # Style changes nothing at the second site: no t.
    assert (y.t, y.p, y.mean_difference, y.n) == (None, None, 0.0, 3)
    assert (errors.t, errors.n) == (pytest.approx(stats.ttest_rel([0, 2, 1], [1, 2, 4]).statistic), 3)
    assert robustness.significance_level([x, y]) == 0.025


def test_table_2_counts_sites_below_the_corrected_level() -> None:
    results = (("x", -4.0, 0.001, -1), ("y", -2.0, 0.04, -1), ("z", None, None, 0))
    tests = [robustness.StyleTest("m", site, t, p, difference, 9) for site, t, p, difference in results]
    assert robustness.table_2(tests).rows == [["m", -3.0, -4.0, -2.0, 1, 3]]


def test_rankings_by_site_and_style_are_positive_where_they_agree() -> None:
    scores = {
        "Original": ScoreColumns({"m": [4, 3, 2, 1, 1, 2, 3]}, {"m": "higher"}),
        "Standardized": ScoreColumns({"m": [4, 3, 1, 2, 3, 2, 1]}, {"m": "higher"}),
    }
    table = robustness.table_c(robustness.rankings(scores, [0, 1, 2, 3, 0, 1, 2], SITES))  # type: ignore[arg-type]
    assert table.headings == ["Metric", "Ground truth", "x", "x n", "y", "y n"]
    assert list(table.rows) == [
        ["m", "Original", pytest.approx(1.0), 4, pytest.approx(-1.0), 3],
        ["m", "Standardized", pytest.approx(0.8), 4, pytest.approx(1.0), 3],
    ]
    # A site may have the name of a column.
    sites = (("A", 0.5, 4), ("A n", 0.7, 9))
    results = [robustness.Ranking("m", "Original", *site) for site in sites]
    assert robustness.table_c(results).rows == [["m", "Original", 0.5, 4, 0.7, 9]]


def test_counts_of_experts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "counts.csv"
    path.write_text("id,errors\na,nan\nb,1\nc,2\n")
    assert read_counts(path).means("errors") == pytest.approx([math.nan, 1, 2], nan_ok=True)
    for rows in ("b,1\nc,2\nb,3\n", "b,1\nc,2\nb,\n", "b,1\nc,2\n b ,1\n"):
        path.write_text(f"id,errors\n{rows}")
        with raises_code(ErrorCode.DUPLICATE, file=path, line=4, field="id", match="line 2; a column 'rater'"):
            read_counts(path)


@pytest.mark.parametrize("column", RATER_COLUMNS)
def test_counts_of_several_experts_have_their_raters(column: str, tmp_path: Path) -> None:
    rows = [["a", "x", 1], ["b", "x", 2], ["a", "y", 4], ["b", "y", ""], ["c", "y", 0]]
    path = write_table(tmp_path / "counts.csv", ["id", column, "errors"], rows)
    assert read_counts(path).means("errors") == [2.5, 2, 0]
    write_table(path, ["id", column, "errors"], [*rows, ["a", "x", 1]])
    with raises_code(ErrorCode.DUPLICATE, file=path, line=7, field="id", match="'a' of rater 'x', first at line 2"):
        read_counts(path)
    write_table(path, ["id", column, "errors"], [*rows, ["a", "", 1]])
    with raises_code(ErrorCode.MISSING_FIELD, file=path, line=7, field=column):
        read_counts(path)


def test_errors_are_totaled_by_site_and_reader(tmp_path: Path) -> None:
    rows = [["a", "x", 1, 1], ["b", "x", 2, ""], ["a", "y", 4, 0], ["c", "y", 0, 0]]
    counts = read_counts(write_table(tmp_path / "c.csv", ["id", "reader", "errors", "significant_a"], rows))
    table = robustness.totals_table(robustness.error_totals(counts, {"a": "s", "b": "s", "c": "t", "d": "t"}))
    assert table.headings[-2:] == ["errors", "significant_a"]
    mean = [["s", "mean of all", 2, 4.5, 0.5], ["s", "x", 2, 3, 1], ["s", "y", 1, 4, 0]]
    assert table.rows == [*mean, ["t", "mean of all", 1, 0, 0], ["t", "x", 0, None, None], ["t", "y", 1, 0, 0]]


def test_a_site_is_required_without_a_default(tmp_path: Path) -> None:
    path = write_table(tmp_path / "r.csv", ["id", "report"], [["1", "Clear."]])
    with raises_code(ErrorCode.MISSING_FIELD, field="site"):
        read_reports(path)
    assert read_reports(path, default_site="") == ([SiteReport("1", "", "Clear.")], [])


def test_reports_of_a_manifest_are_narratives_or_sentences(tmp_path: Path) -> None:
    sentences = [{"text": "Clear."}, {"text": "No effusion."}]
    rows = [
        {"sample_id": "1", "findings": "Lungs are clear.", "grounded_findings": sentences},
        {"sample_id": "2", "findings": None, "grounded_findings": sentences},
        {"sample_id": "3", "findings": None, "grounded_findings": None},
    ]
    write_jsonl(tmp_path / "manifest.jsonl", rows)
    found, (_,) = read_reports(tmp_path / "manifest.jsonl", default_site="")
    assert found == [SiteReport("1", "", "Lungs are clear."), SiteReport("2", "", "Clear. No effusion.")]


TEXTS = (
    "No pneumothorax. Small left effusion. Heart size normal.",
    "The lungs are clear. Stable cardiomegaly.",
    "There is mild right basal atelectasis. No effusion or pneumothorax.",
    "Moderate pulmonary edema, unchanged. Large heart.",
)
REPORTS = [SiteReport(f"{site}{i}", site, text, "CT") for site in ("x", "y") for i, text in enumerate(TEXTS)]


def overlap(pairs: Sequence[Pair], _: Path) -> ScoreColumns:
    words = [(str(pair.candidate).split(), set(str(pair.reference).split())) for pair in pairs]
    shares = [sum(word in known for word in candidate) / len(candidate) for candidate, known in words]
    return ScoreColumns({"words": shares}, {"words": "higher"})


@pytest.fixture
def styled() -> Mock:
    """A model that begins every sentence with "There is", and records the reports."""
    return Mock(side_effect=lambda text: re.sub(r"(^|\. )(?=\w)", r"\1There is ", text))


@pytest.fixture
def run(tmp_path: Path, styled: Mock, without_plots: None) -> Run:
    """Run the seven steps in the same folder."""
    del without_plots

    def steps(
        reports: Sequence[SiteReport] = REPORTS, score: ScoreFunction = overlap, **options: Any
    ) -> RexamineResult:
        styler = ModelEditor(mock_client(lambda text: styled(text)), "standardize")
        return rexamine(reports, tmp_path, styler=styler, injector=RuleInjector(seed=1), score=score, seed=1, **options)

    return steps


def test_counts_of_experts_are_never_overwritten(tmp_path: Path, run: Run) -> None:
    run()
    path = tmp_path / "for_experts.csv"
    header, first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([header, f"{first}3", *rest]) + "\n")
    filled = path.read_text()
    run()
    assert path.read_text() == filled
    score = Mock(side_effect=overlap)
    with raises_code(ErrorCode.OUTPUT_CONFLICT, file=path):
        run(REPORTS[:4], score)
    assert path.read_text() == filled
    score.assert_not_called()  # before anything is paid for


def test_failed_reports_are_excluded_and_tried_again(tmp_path: Path, run: Run, styled: Mock) -> None:
    style, score = styled.side_effect, Mock(side_effect=overlap)
    styled.side_effect = lambda text: "" if "edema" in text else style(text)
    result = run(score=score)
    assert set(result.excluded) == {"x3", "y3"}
    assert result.experts == "labels"
    assert [[pair.context.modality for pair in call.args[0]] for call in score.call_args_list] == [["CT"] * 6] * 2
    assert all(test.t is None or test.t < 0 for test in result.tests)
    page = (tmp_path / "rexamine.html").read_text()
    assert ("No expert has counted errors" in page, "not standardized: " in page) == (True, True)
    queries = styled.call_count
    assert run(score=score) == result
    assert styled.call_count == 2 * queries


def test_an_interrupted_run_resumes_and_a_step_runs_once_for_the_same_reports(run: Run, styled: Mock) -> None:
    with pytest.raises(RunError):
        run(score=Mock(side_effect=RunError("the server went away")))
    for _ in range(2):
        run()
    assert styled.call_count == len(TEXTS)
    run(REPORTS[1:])
    assert styled.call_count == 2 * len(TEXTS)


def test_counts_of_experts_replace_labels_and_ids_that_do_not_match_are_named(tmp_path: Path, run: Run) -> None:
    run()
    lines = (tmp_path / "for_experts.csv").read_text().splitlines()
    assert (lines[0], len(lines)) == ("id,site,reference,candidate,errors", 9)
    first, second, *_ = [report.sample_id for report in REPORTS]
    rows = [[report.sample_id, i % 3] for i, report in enumerate(REPORTS)]
    table = write_table(tmp_path / "c.csv", ["id", "errors"], [[first, " "], ["typo", 2], *rows[2:]])
    result = run(counts=read_counts(table))
    uncounted, unknown = result.notes[-2:]
    assert (result.experts, f"2 of {len(REPORTS)} (" in uncounted, "1 (typo)" in unknown) == ("experts", True, True)
    page = (tmp_path / "rexamine.html").read_text()
    assert ("No expert" in page, uncounted in page, unknown in page) == (False, True, True)
    record = read_json(tmp_path / "rexamine.json")
    assert (set(record["uncounted"]), record["unknown_counts"]) == ({first, second}, ["typo"])
    assert {ranking.n for ranking in result.rankings if ranking.site == "x"} == {2}
    score = Mock(side_effect=overlap)
    with raises_code(ErrorCode.MISMATCH, field="counts"):
        run(score=score, counts=read_counts(write_table(table, ["id", "errors"], [["other", 1]])))
    score.assert_not_called()


def test_reports_are_drawn_by_seed_and_site(tmp_path: Path, run: Run) -> None:
    drawn = []
    for _ in range(2):
        (tmp_path / "standardized.jsonl").unlink(missing_ok=True)
        run(per_site=2)
        drawn.append([row["sample_id"] for _, row in read_jsonl(tmp_path / "standardized.jsonl")])
    assert drawn[0] == drawn[1]
    assert [key[0] for key in drawn[0]] == ["x", "x", "y", "y"]
    with raises_code(ErrorCode.EMPTY_INPUT, match="'z'"):
        run([*REPORTS, SiteReport("z0", "z", "Clear.")])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [[report.sample_id, report.site, report.report] for report in REPORTS]
    return write_table(tmp_path / "r.csv", ["id", "site", "report"], rows)


def model_response(request: dict[str, Any], _: int) -> Reply:
    """A model that standardizes reports, and adds a mass to standardized ones."""
    text = last(request)
    if text.endswith("like a radiologist wrote it."):
        return 200, {}, f"{text.partition(chr(10))[0]} A mass."
    return 200, {}, f"Findings: {text}"


@pytest.mark.parametrize(
    ("names", "scores"),
    [("rouge_l,green", ["rouge_l", "green"]), ("green,rouge_l,green_ec", ["green", "green_ec", "rouge_l"])],
)
def test_the_command_runs_all_seven_steps_and_tests_a_metric_by_its_main_score(
    names: str, scores: list[str], tmp_path: Path, table: Path, serve: Serve
) -> None:
    response = GreenResponse((("A mass",), *[()] * 5), ((),) * 6, ("Clear lungs",)).text()

    def respond(request: dict[str, Any], number: int) -> Reply:
        is_style = request["messages"][0]["role"] == "system"
        return model_response(request, number) if is_style else (200, {}, response)

    server, out = serve(respond), tmp_path / "out"
    model = ("--judge", "openai:m", "--base-url", server.base_url)
    run_meta("rexamine", table, "--metrics", names, *model, "--out", out)
    record = read_json(out / "rexamine.json")
    assert list(dict.fromkeys(test["score"] for test in record["style_tests"])) == scores
    assert record["threshold"] == pytest.approx(0.05 / (len(scores) * 2))
    assert record["sites"] == {"x": 4, "y": 4}
    assert {ranking["score"] for ranking in record["rankings"]} == set(scores)
    assert "green_significant_a" in read_json(out / "original/scores.json")["scores"]
    # A model has no ontology: rules that inject errors do not favor it.
    assert (record["models"], record["circular"]) == ({"green": "openai:m"}, False)
    assert "Judges and models: green: openai:m." in (out / "rexamine.html").read_text()
    assert (out / "table_2.csv").read_text().startswith("Metric,Mean t-stat,Min t-stat,Max t-stat,")
    assert (out / "table_c.csv").read_text().startswith("Metric,Ground truth,x,x n,y,y n")
    assert (out / "figure_3.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "figure_3.svg").read_text()


def test_a_model_may_standardize_and_inject(tmp_path: Path, table: Path, serve: Serve) -> None:
    server, out = serve(model_response), tmp_path / "out"
    models = ("--styler", "openai:m", "--errors-by", "openai:m", "--base-url", server.base_url)
    command = ("rexamine", table, *models, "--metrics", "bleu_1", "--out", out)
    run_meta(*command)
    rows = read_injected(out / "candidates.jsonl")
    assert all(row.reference.startswith("Findings: ") and row.candidate.endswith(" A mass.") for row in rows)
    # Nobody has counted the errors of a model.
    assert read_json(out / "rexamine.json")["experts"] is None
    assert "fill in for_experts.csv" in (out / "rexamine.html").read_text()
    requests = len(server.requests)
    rated = [[row.sample_id, rater, number] for number, row in enumerate(rows) for rater in ("x", "y")]
    counts = write_table(tmp_path / "c.csv", ["id", "rater", "errors"], rated)
    run_meta(*command, "--counts", counts)
    alpha = "Agreement of the experts on 'errors': Krippendorff's alpha (interval) 1.00, 8 with two or more ratings."
    assert alpha in read_json(out / "rexamine.json")["notes"]
    assert read_json(out / "rexamine.json")["experts"] == "experts"
    assert len(server.requests) == requests
    # Other parameters of the model are other steps.
    run_meta(*command, "--judge-arg", "temperature=0.5")
    assert [request["temperature"] for request in server.requests[requests:]] == [0.5] * requests
