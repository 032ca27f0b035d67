"""Results folders with other reports or other ids than a set are recognized."""

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


@pytest.fixture
def table(tmp_path: Path) -> tuple[object, ...]:
    rows = [[pair.sample_id, pair.reference, pair.candidate, i % 3] for i, pair in enumerate(PAIRS)]
    path = write_table(tmp_path / "r.csv", ["id", "reference", "candidate", "expert"], rows)
    return (path, "--better", "lower", "--bootstrap", 0)


# Two pairs with other texts, one with another id, and one missing.
CHANGED = [Pair("0", "Edema.", PAIRS[0].reference), Pair("1", PAIRS[1].candidate, "Edema.")]
OTHERS = [*CHANGED, *PAIRS[2:5], Pair("x", "Clear lungs.", "Clear lungs.")]


@pytest.mark.usefixtures("without_plots")
def test_agreement_records_samples_that_do_not_match(tmp_path: Path, table: tuple[object, ...]) -> None:
    folder, out = scores(tmp_path / "s", OTHERS), tmp_path / "out"
    console = run_meta("agreement", *table, "--scores", folder, "--out", out)
    kinds = ("missing samples of the set: 1 (5).", "samples that are not in the set: 1 (x).", "splitter): 2 (0, 1).")
    assert all(note in console for note in kinds)
    expected = {"folder": "s", "missing": ["5"], "unknown": ["x"], "other_texts": ["0", "1"]}
    assert read_json(out / "agreement.json")["results_folders"] == [expected]
    assert "with other texts" in (out / "agreement.html").read_text()


def test_an_ensemble_prints_samples_of_a_judge_that_do_not_match(tmp_path: Path, table: tuple[object, ...]) -> None:
    judges = (f"--judges=one={scores(tmp_path / 'one', PAIRS)}", f"--judges=two={scores(tmp_path / 'two', OTHERS)}")
    fitted, more = tmp_path / "e.json", ("--features", "logical_recall", "--folds", 2, "--method", "average")
    console = run_meta("ensemble", "fit", *table, *judges, *more, "--out", fitted)
    assert ("one:" in console, "two: samples with other texts than in the set" in console) == (False, True)
    console = run_meta("ensemble", "apply", fitted, *judges, "--out", tmp_path / "n")
    assert "two: samples that are not in the set: 1 (x)." in console
    assert "two: samples with other texts" in console


# The offline splitter makes two sentences of each of these.
DIVIDED = [
    Pair(str(i), f"No effusion or pneumothorax {i}.", "Lungs are clear. No edema or effusion.") for i in range(6)
]


@pytest.mark.parametrize("order", [("split", "whole"), ("whole", "split"), ("split",)])
def test_split_reports_match_and_an_ensemble_has_the_reports_before_the_split(
    tmp_path: Path, order: tuple[str, ...]
) -> None:
    write_results(RadFact(OfflineJudge(), bootstrap=0).score(DIVIDED), tmp_path / "split")
    texts = [row["text"] for _, row in read_jsonl(tmp_path / "split/sentences.jsonl") if row["sample_id"] == "0"]
    assert len(texts) == 5
    assert match_samples(tmp_path / "split", pair_digests(DIVIDED)).notes() == []
    assert match_samples(tmp_path / "split", pair_digests(PAIRS)).other_texts == [pair.sample_id for pair in PAIRS]
    evaluate(DIVIDED, ["rouge_l"], bootstrap=0, out=tmp_path / "whole")
    names = {"split": "logical_precision", "whole": "rouge_l"}
    fit_ensemble({f"{judge}/{names[judge]}": [0.0] for judge in order}, method="average").save(tmp_path / "e.json")
    judges = [f"--judges={judge}={tmp_path / judge}" for judge in order]
    run_meta("ensemble", "apply", tmp_path / "e.json", *judges, "--out", tmp_path / "out")
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
        run_meta("ensemble", "apply", tmp_path / f"{name}.json", *judges, "--out", tmp_path / name)
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
