"""Results folders with other reports or other ids than a set are recognized."""

from __future__ import annotations

from pathlib import Path

import pytest
from meta_run import run_meta, write_table

from radfact.api import RadFact, evaluate
from radfact.io.jsonl import read_json, read_jsonl
from radfact.judges.offline import OfflineJudge
from radfact.meta.ensembles import fit_ensemble
from radfact.meta.scores import match_samples, pair_digests
from radfact.records import Pair
from radfact.results.compare import compare
from radfact.results.writer import write_results

PAIRS = [Pair(str(i), f"Clear lungs {i}.", "Clear lungs. No effusion.") for i in range(6)]


def scores(folder: Path, pairs: list[Pair]) -> Path:
    evaluate(pairs, ["lateral_mentions", "radfact"], judge="offline", bootstrap=0, out=folder)
    return folder


def ratings(path: Path) -> Path:
    rows = [[pair.sample_id, pair.reference, pair.candidate, i % 3] for i, pair in enumerate(PAIRS)]
    return write_table(path, ["id", "reference", "candidate", "expert"], rows)


def others(pairs: list[Pair]) -> list[Pair]:
    """Two pairs with other texts, one with another id, and one missing."""
    changed = [Pair("0", "Edema.", pairs[0].reference), Pair("1", pairs[1].candidate, "Edema.")]
    return [*changed, *pairs[2:5], Pair("x", "Clear lungs.", "Clear lungs.")]


def test_agreement_records_samples_that_do_not_match(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = scores(tmp_path / "s", others(PAIRS)), tmp_path / "out"
    table = ratings(tmp_path / "r.csv")
    arguments = ("agreement", table, "--better", "lower", "--scores", folder, "--bootstrap", 0, "--out", out)
    assert run_meta(*arguments) == 0
    console = " ".join(capsys.readouterr().out.split())
    kinds = ("missing samples of the set: 1 (5).", "samples that are not in the set: 1 (x).", "splitter): 2 (0, 1).")
    assert all(note in console for note in kinds)
    expected = {"folder": "s", "missing": ["5"], "unknown": ["x"], "other_texts": ["0", "1"]}
    assert read_json(out / "agreement.json")["results_folders"] == [expected]
    assert "with other texts" in (out / "agreement.html").read_text()


def test_an_ensemble_prints_samples_of_a_judge_that_do_not_match(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = scores(tmp_path / "one", PAIRS), scores(tmp_path / "two", others(PAIRS))
    fitted, table = tmp_path / "e.json", ratings(tmp_path / "r.csv")
    judges = (f"--judges=one={one}", f"--judges=two={two}")
    fit = ("ensemble", "fit", table, "--better", "lower", *judges, "--features", "logical_recall", "--folds", 2)
    assert run_meta(*fit, "--method", "average", "--bootstrap", 0, "--out", fitted) == 0
    console = " ".join(capsys.readouterr().out.split())
    assert "one:" not in console
    assert "two: samples with other texts than in the set" in console
    assert run_meta("ensemble", "apply", fitted, *judges, "--out", tmp_path / "n") == 0
    console = " ".join(capsys.readouterr().out.split())
    assert "two: samples that are not in the set: 1 (x)." in console
    assert "two: samples with other texts" in console


# The offline splitter makes two sentences of each of these.
DIVIDED = [
    Pair(str(i), f"No effusion or pneumothorax {i}.", "Lungs are clear. No edema or effusion.") for i in range(6)
]


def radfact_alone(folder: Path, pairs: list[Pair]) -> Path:
    write_results(RadFact(OfflineJudge(), bootstrap=0).score(pairs), folder)
    return folder


def test_split_reports_match(tmp_path: Path) -> None:
    folder = radfact_alone(tmp_path / "s", DIVIDED)
    texts = [row["text"] for _, row in read_jsonl(folder / "sentences.jsonl") if row["sample_id"] == "0"]
    assert len(texts) == 5
    assert match_samples(folder, pair_digests(DIVIDED)).notes() == []
    assert match_samples(folder, pair_digests(PAIRS)).other_texts == [pair.sample_id for pair in PAIRS]


@pytest.mark.parametrize("order", [("split", "whole"), ("whole", "split"), ("split",)])
def test_an_ensemble_has_the_reports_before_the_split(tmp_path: Path, order: tuple[str, ...]) -> None:
    radfact_alone(tmp_path / "split", DIVIDED)
    evaluate(DIVIDED, ["rouge_l"], bootstrap=0, out=tmp_path / "whole")
    figures = {"split": "logical_precision", "whole": "rouge_l"}
    features = {f"{name}/{figures[name]}": [0.0] for name in order}
    fit_ensemble(features, method="average").save(tmp_path / "e.json")
    judges = [f"--judges={name}={tmp_path / name}" for name in order]
    assert run_meta("ensemble", "apply", tmp_path / "e.json", *judges, "--out", tmp_path / "out") == 0
    assert match_samples(tmp_path / "out", pair_digests(DIVIDED)).notes() == []
    if "whole" in order:
        texts = [row["text"] for _, row in read_jsonl(tmp_path / "out/sentences.jsonl")]
        assert texts == [text for pair in DIVIDED for text in (pair.candidate, pair.reference)]


def test_the_record_of_an_ensemble_identifies_it(tmp_path: Path) -> None:
    one, two = scores(tmp_path / "one", PAIRS), scores(tmp_path / "two", PAIRS)
    judges = (f"--judges=a={one}", f"--judges=b={two}")
    judged = {"first": "ab", "same": "ab", "other": "a"}
    for name, letters in judged.items():
        columns = {f"{letter}/logical_recall": [0.0, 1.0, 2.0] for letter in letters}
        fit_ensemble(columns, [0.0, 1.0, 2.0]).save(tmp_path / f"{name}.json")
        arguments = ("ensemble", "apply", tmp_path / f"{name}.json", *judges, "--out", tmp_path / name)
        assert run_meta(*arguments) == 0
    run = read_json(tmp_path / "first/run.json")
    metric = read_json(tmp_path / "first/scores.json")["metrics"]["ensemble"]
    assert {"versions", "input", "judge", "options", "calls", "seconds"} <= set(run)
    files = {"files": [str(tmp_path / "first.json")], "judges": {"a": str(one), "b": str(two)}}
    assert run["input"] == {**files, "read": 6, "skipped": 0}
    fitted = read_json(tmp_path / "first.json")
    assert {name: metric["settings"][name] for name in fitted} == fitted
    assert metric["settings"]["judges"]["a"]["radfact"]["judge"]["name"] == "offline"
    assert metric["source"] == "VERT, section 5.1.5"
    assert "Judge: <strong>ensemble of a, b</strong>" in (tmp_path / "first/report.html").read_text()
    notes = compare([tmp_path / name for name in ("first", "same", "other")], replicates=0, rounds=1).notes
    assert [note for note in notes if "other settings" in note] == [
        "ensemble: another judge or model, or other settings, in other than in first."
    ]
