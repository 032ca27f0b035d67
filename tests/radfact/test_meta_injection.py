"""Detection of injected errors by scores, and the commands `radfact meta inject` and `radfact meta detect`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from chat_server import Reply, last
from meta_run import Serve, refuse_meta, run_meta, write_table

from radfact.error_categories import CategoryLetter
from radfact.errors import ErrorCode
from radfact.io.jsonl import read_json
from radfact.meta.injection.detection import detect, detection_pairs, write_detection
from radfact.meta.injection.records import InjectedError, InjectedReport, read_injected
from radfact.meta.scores import ScoreColumns


def injected(source: str, category: CategoryLetter | None, count: int) -> InjectedReport:
    """A candidate with errors of a category, or of several (None); without errors, it is reworded."""
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


SITES = [
    ["1", "x", "No pneumothorax. Small left effusion. Heart size normal."],
    ["2", "x", "There is mild right basal atelectasis. No effusion or pneumothorax."],
    ["3", "y", "No pneumothorax. Small left effusion. Heart size normal."],
]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "r.csv", ["id", "site", "report"], SITES)


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
    table = write_table(tmp_path / "r.csv", ["id", "report"], [["1", "Clear lungs."], ["2", "A bad report."]])
    command = ("inject", table, "--by", "openai:m", "--base-url", server.base_url, "--out", made)
    assert "excluded: 2_a1" in run_meta(*command, "--types", "a", "--errors", 1, exit_code=3)
    assert [row.sample_id for row in read_injected(made)] == ["1_a1"]
