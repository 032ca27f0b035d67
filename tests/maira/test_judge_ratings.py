"""A VERT scorer's data from experts' ratings, as paper 003 has it (section 4.1.4)."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from maira.cli.main import app
from maira.judge.data import make_rated_data
from radfact.errors import ErrorCode, ExitCode, InputError
from radfact.io.jsonl import read_json, read_jsonl
from radfact.meta.datasets.layouts import read_ratings
from radfact.metrics.llm.vert import VertTuned

RATE_EVAL = ["gt_report", "similar_report", "Score"]


def write(path: Path, columns: list[str], rows: list[list[object]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows([columns, *rows])
    return path


def rate_eval(folder: Path, name: str = "rate_train.csv", count: int = 200) -> Path:
    """Pairs of which two share a reference."""
    rows: list[list[object]] = [[f"Nodule {n // 2}.", f"Mass {n}.", n % 11 / 2] for n in range(count)]
    return write(folder / name, RATE_EVAL, rows)


def samples(folder: Path) -> list[dict[str, object]]:
    return [dict(row) for _, row in read_jsonl(folder / "samples.jsonl")]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["judge-data", *map(str, arguments)])


def test_ratings_of_rate_eval_become_scores_with_one_decimal(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("--task", "vert", "--ratings", rate_eval(tmp_path), "--layout", "rate-eval", "--out", out)
    assert result.exit_code == ExitCode.SUCCESS, result.output
    rows = samples(out)
    assert [row["answer"] for row in rows[:11]] == [f"{n / 10:.1f}" for n in range(11)]
    assert {row["task"] for row in rows} == {"vert"}
    messages = VertTuned.request(VertTuned.__new__(VertTuned), "Mass 0.", "Nodule 0.").messages
    assert rows[0]["messages"] == [{"role": role, "content": content} for role, content in messages]
    about = read_json(out / "about.json")
    assert about["samples"]["heldout"] == pytest.approx(20, abs=10)
    assert (about["ratings"], about["scale"], about["held_out"]) == ("rate-eval", [0, 5], 0.1)


def test_pairs_of_a_reference_stay_in_one_split_and_agreement_reads_held_out_pairs(tmp_path: Path) -> None:
    data = make_rated_data(rate_eval(tmp_path), "rate-eval", tmp_path / "out", held_out=0.3)
    held_out = read_ratings(data.held_out, better="higher").samples
    assert len(held_out) == data.samples["heldout"]
    references = [reference.pair.reference for reference in held_out]
    assert all(references.count(reference) == 2 for reference in references)


def test_a_folder_means_its_training_set(tmp_path: Path) -> None:
    rate_eval(tmp_path, "rate_test.csv", 4)
    with pytest.raises(InputError, match=r"rate_train.csv"):
        make_rated_data(tmp_path, "rate-eval", tmp_path / "out")
    rate_eval(tmp_path, count=6)
    assert sum(make_rated_data(tmp_path, "rate-eval", tmp_path / "out").samples.values()) == 6


def test_lower_is_better_ratings_are_inverted_and_unrated_pairs_named(tmp_path: Path) -> None:
    rows: list[list[object]] = [["a", "R.", "C.", 0], ["b", "S.", "C.", 4], ["c", "T.", "C.", 3], ["d", "U.", "C.", ""]]
    path = write(tmp_path / "plain.csv", ["id", "reference", "candidate", "expert"], rows)
    written = make_rated_data(path, "plain", tmp_path / "out", better="lower", scale=(0, 4))
    assert {row["sample_id"]: row["answer"] for row in samples(tmp_path / "out")} == {
        "a": "1.0",
        "b": "0.0",
        "c": "0.2",
    }
    assert list(written.failures) == ["d"]


@pytest.mark.parametrize(("scale", "wrong"), [(None, "rating"), ((0, 3), "rating 4 of 'b'"), ((5, 0), "found 5 0")])
def test_a_missing_or_wrong_scale_is_an_error(scale: tuple[float, float] | None, wrong: str, tmp_path: Path) -> None:
    rows: list[list[object]] = [["a", "R.", "C.", 1], ["b", "R.", "D.", 4]]
    path = write(tmp_path / "plain.csv", ["id", "reference", "candidate", "expert"], rows)
    with pytest.raises(InputError, match=wrong):
        make_rated_data(path, "plain", tmp_path / "out", better="higher", scale=scale)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        (["--task", "green", "--ratings", "r.csv"], ErrorCode.CONFLICTING_OPTIONS, "--ratings"),
        (
            ["--task", "vert", "--ratings", "r.csv", "--teacher", "injected"],
            ErrorCode.CONFLICTING_OPTIONS,
            "--teacher",
        ),
        (
            ["--task", "vert", "reports.csv", "--teacher", "injected", "--scale", "0", "5"],
            ErrorCode.CONFLICTING_OPTIONS,
            "--scale",
        ),
        (["--task", "vert"], ErrorCode.CONFLICTING_OPTIONS, None),
        (["--task", "vert", "reports.csv"], ErrorCode.MISSING_OPTION, "--teacher"),
    ],
)
def test_conflicting_options_are_refused(
    arguments: list[str], code: ErrorCode, field: str | None, tmp_path: Path
) -> None:
    result = run(*arguments, "--out", tmp_path / "out")
    assert isinstance(result.exception, InputError)
    assert (result.exception.code, result.exception.field) == (code, field)
