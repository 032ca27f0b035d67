"""The figures of a review: the paper's own corrections give the paper's own figures."""

import csv
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from error_checks import raises
from long_values import DATA
from maira_command import maira
from review_files import CASES, REPORT, change, finish, new_store

from maira.review.database import Draft
from maira.review.store import Store
from maira.review.summary import summarize
from maira.review.times import NOT_RECORDED
from radfact.records import parse_sentences

CORRECTIONS: dict[str, list[tuple[int, str, int]]] = CASES["corrections of the paper"]


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Twenty reports of 135 sentences in all, corrected as in the paper."""
    items = list(dict.fromkeys(item for kind in ("edit", "add", "delete") for item, _, _ in CORRECTIONS[kind]))
    names = [*map(str, items), *(f"fine-{number}" for number in range(20 - len(items)))]
    # Seven sentences in the first 15 reports, six in the others.
    reports = {name: [{"text": "Clear."}] * (7 if place < 15 else 6) for place, name in enumerate(names)}
    with closing(new_store(tmp_path_factory.mktemp("paper"), reports)) as store:
        touched: dict[int, int] = {}
        for kind, rows in CORRECTIONS.items():
            for item, error_type, severity in rows:
                number = names.index(str(item)) + 1
                sentence = f"d{touched.get(item, 0)}"
                if kind == "add":
                    sentence = change(store, "add", number=number, text="Finding.").state.sentences[-1].id
                else:
                    touched[item] = touched.get(item, 0) + 1
                    fields = {"text": "Corrected."} if kind == "edit" else {}
                    change(store, kind, number=number, sentence=sentence, **fields)
                change(store, "assess", number=number, sentence=sentence, severity=severity, error_type=error_type)
        for number in range(1, 21):
            finish(store, number=number)
        yield store


def run_summary(path: Path, out: Path, *arguments: str) -> str:
    return maira("review", "summary", path, "--out", out, *arguments).output


def totals(by_kind: dict[str, dict[str, int]]) -> dict[str, int]:
    return {name: sum(kinds.values()) for name, kinds in by_kind.items()}


def test_corrections_of_the_paper_give_its_counts(paper: Store) -> None:
    """Appendix F.2 and figure 4; 11 edits and 2 deletions leave 122 of 135 sentences (123 in the paper)."""
    summary = summarize(paper, paper.readers())["readers"]["Ada"]
    assert (summary["finished"], summary["sentences"], summary["unchanged_sentences"]) == (20, 135, 122)
    assert summary["kinds"] == {"edit": 11, "deletion": 2, "addition": 12}
    assert summary["reports_without_corrections"] == 6
    assert summary["reports_with_fewer_than_two"] == 14
    spread = summary["corrections_per_corrected_report"]
    assert (spread["median"], round(spread["mean"], 2), spread["min"], spread["max"]) == (1, 1.79, 1, 5)
    assert totals(summary["severities"]) == {"minor": 15, "no": 8, "significant": 2}
    assert summary["error_types"]["OMISSION"] == {"edit": 3, "deletion": 0, "addition": 12}
    assert totals(summary["error_types"]) == DATA["agreement"]
    assert sum(worst.get("significant", 0) for worst in summary["reports_by_corrections"].values()) == 2


def test_unfinished_studies_are_excluded(tmp_path: Path) -> None:
    with closing(new_store(tmp_path, {"one": REPORT, "two": REPORT})) as store:
        change(store, "delete", sentence="d0")
        change(store, "comment", text="Rotated.")
        summary = summarize(store, store.readers())["readers"]["Ada"]
        assert (summary["finished"], summary["sentences"], summary["corrections"]) == (0, 0, 0)
        assert summary["comments"] == {"one": "Rotated."}
        with raises("review.sqlite: empty-input"):
            run_summary(store.path, tmp_path / "out")
        assert not (tmp_path / "out").exists()
        finish(store, number=2)
        assert summarize(store, store.readers())["readers"]["Ada"]["sentences"] == 2


def test_agreement_covers_studies_finished_by_both(tmp_path: Path) -> None:
    """Three studies that two readers have finished, and one that only one of them has."""
    reports = {name: [{"text": f"Sentence {number}."} for number in range(2)] for name in ("one", "two", "six", "ten")}
    with closing(new_store(tmp_path, reports, ["Ada", "Ben"])) as store:
        for reader, corrected in (("Ada", {1: 0, 2: 2}), ("Ben", {1: 1, 2: 2})):
            for number, severity in corrected.items():
                change(store, "delete", number=number, reader=reader, sentence="d0")
                answers: dict[str, Any] = {"severity": severity, "error_type": "OVERSPECIFIC"}
                change(store, "answer", number, reader, unit="d0", values=answers)
            for number in range(1, 4):
                finish(store, number=number, reader=reader)
        finish(store, number=4, reader="Ben")
        (summary,) = summarize(store, store.readers())["agreement"]
    assert (summary["readers"], summary["studies"]) == (["Ada", "Ben"], 3)
    assert summary["needs_correction"] == {"kappa": 1.0, "low": 1.0, "high": 1.0, "n": 6}
    # Of (0, 1) and (2, 2): 1 apart in all, where chance would be 1 + 2 + 1 + 0 in four pairs.
    assert summary["severity"]["n"] == 2
    assert summary["severity"]["kappa"] == pytest.approx(1 - (1 / 2) / (4 / 4))
    assert summary["worst_severity"]["n"] == 3
    assert list(summary["error_types"]) == ["OVERSPECIFIC"]
    assert (summary["error_types"]["OVERSPECIFIC"]["kappa"], summary["error_types"]["OVERSPECIFIC"]["n"]) == (1, 3)


def test_the_command_writes_numbers_and_a_figure_with_escaped_names(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with closing(new_store(tmp_path, {"one": REPORT}, ["$\\frac{1}$ <script>", "Ben"])) as store:
        change(store, "delete", sentence="d0", reader=store.readers()[0])
        change(store, "assess", sentence="d0", reader=store.readers()[0], error_type="$x_1$ & $")
        for reader in store.readers():
            finish(store, reader=reader)
        out = tmp_path / "out"
        run_summary(store.path, out)
        numbers = json.loads((out / "summary.json").read_text("utf-8"))
        assert numbers.items() >= summarize(store, store.readers()).items()
    assert (out / "figure4.png").read_bytes().startswith(b"\x89PNG")
    figure = (out / "figure4.svg").read_text("utf-8")
    assert ("<script>" in figure, figure.count("no corrections")) == (False, 2)


def test_the_tables_have_outcomes_by_arm_without_training_cases(tmp_path: Path) -> None:
    pytest.importorskip("statsmodels")
    report = tuple(parse_sentences(REPORT, file=tmp_path / "drafts.jsonl"))
    drafts = [
        Draft(f"s{sample}", report, False, {}, arm, sample == 0) for sample in range(4) for arm in ("plain", "tuned")
    ]
    with closing(Store(tmp_path / "review.sqlite", drafts)) as store:
        for reader in ("Ada", "Ben"):
            store.add_reader(reader)
            for number, draft in enumerate(drafts, 1):
                if draft.arm == "plain" or (reader, draft.sample_id) == ("Ada", "s1"):
                    change(store, "delete", number, reader, sentence="d1")
                finish(store, number, reader, severity=2)
        change(store, "reopen", 8, "Ben")
    out = tmp_path / "out"
    output = run_summary(tmp_path / "review.sqlite", out, "--baseline", "tuned", "--margin", "corrections=2")
    numbers = json.loads((out / "summary.json").read_text("utf-8"))
    assert numbers["readings"] == {"counted": 11, "unfinished": 1, "training": 4, "excluded": 0}
    means = numbers["outcomes"]["corrections"]["means"]
    assert [(means[arm]["n"], means[arm]["samples"]) for arm in ("tuned", "plain")] == [(5, 3), (6, 3)]
    [difference] = numbers["outcomes"]["corrections"]["differences"]
    assert (difference["arms"], difference["paired_readings"]) == (["tuned", "plain"], 5)
    [row] = csv.DictReader((out / "noninferiority.csv").read_text("utf-8").splitlines())
    assert (row["arm"], row["baseline"], row["result"]) == ("plain", "tuned", "non-inferior")
    # Times were not recorded: they are missing and counted.
    assert numbers["outcomes"]["active_seconds"]["means"]["tuned"]["value"] is None
    rows = list(csv.DictReader((out / "times.csv").read_text("utf-8").splitlines()))
    cells = [(row["readings"], row["with a time"], row[NOT_RECORDED]) for row in rows[:2]]
    assert cells == [("5", "0", "5"), ("6", "0", "6")]
    assert "5 of 6" in output


def test_invalid_margins_are_refused(paper: Store, tmp_path: Path) -> None:
    for options, expected in CASES["refused margins"]:
        with raises(expected):
            run_summary(paper.path, tmp_path / "out", *options.split())
