from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radfact.errors import InputError
from radfact.files import Pair
from radfact.metrics.compare import compare, write_comparison
from radfact.metrics.evaluate import evaluate
from radfact.significance import f1_counts, set_f1
from radfact.stats import scored_rows, summarise

TEXTS = [
    "The lungs are clear.",
    "The heart is large.",
    "There is a small left pleural effusion.",
    "No pneumothorax is seen.",
    "Mild pulmonary edema.",
    "The mediastinum is normal.",
]


def pairs(candidates: Sequence[str], first: int = 0) -> list[Pair]:
    return [Pair(str(place), text, TEXTS[place]) for place, text in enumerate(candidates, start=first)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("systems")
    evaluate(pairs(TEXTS), ["rouge_l", "bleu", "radfact"], judge="offline", out=root / "good")
    evaluate(pairs(["Nothing of note."] * 5), ["rouge_l", "bleu_4", "radfact"], judge="offline", out=root / "bad")
    return [root / "good", root / "bad"]


def test_systems_are_compared_on_the_samples_and_figures_that_they_share(folders: list[Path]) -> None:
    found = compare(folders)
    assert (found.systems, found.shared, found.own) == (["good", "bad"], 5, [6, 5])
    assert {"rouge_l", "bleu_4", "logical_f1"} <= set(found.figures)
    assert "bleu_1" not in found.figures
    assert any("bleu_1" in note for note in found.notes)
    first, second = found.figures["rouge_l"]
    assert (first.summary.point, first.summary.n, first.difference) == (pytest.approx(1.0), 5, None)
    assert second.difference is not None
    assert second.summary.point is not None
    assert second.difference.point == pytest.approx(second.summary.point - 1.0)
    # Five samples have 32 swaps, of which two differ as much.
    assert second.p == pytest.approx(2 / 32, abs=0.03)


def test_a_pooled_figure_is_computed_anew_from_the_shared_samples(folders: list[Path]) -> None:
    from sacrebleu.metrics.bleu import BLEU

    first, second = compare(folders).figures["bleu_4"]
    expected = BLEU(lowercase=True).corpus_score(["Nothing of note."] * 5, [TEXTS[:5]]).score
    assert first.summary.point == pytest.approx(100.0)
    assert second.summary.point == pytest.approx(expected)


def test_references_that_differ_are_said(folders: list[Path], tmp_path: Path) -> None:
    other = [Pair("0", TEXTS[0], "Something else."), *pairs(TEXTS[1:], first=1)]
    evaluate(other, ["rouge_l"], out=tmp_path / "other")
    notes = compare([folders[0], tmp_path / "other"]).notes
    assert any(note.startswith("1 samples have another reference") for note in notes)


def test_results_without_a_common_sample_are_refused(folders: list[Path], tmp_path: Path) -> None:
    evaluate([Pair("x", "a", "b")], ["rouge_l"], out=tmp_path)
    with pytest.raises(InputError, match="no sample in common"):
        compare([folders[0], tmp_path])
    with pytest.raises(InputError, match=r"no scores\.json"):
        compare([folders[0], tmp_path / "nowhere"])
    with pytest.raises(InputError, match="two or more"):
        compare(folders[:1])


def test_what_is_written(folders: list[Path], tmp_path: Path) -> None:
    page = write_comparison(compare(folders), tmp_path)
    assert "Rouge l" in page.read_text()
    record = json.loads((tmp_path / "comparison.json").read_text())
    with (tmp_path / "comparison.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == 2 * len(record["figures"])
    assert rows[0]["p"] == ""
    assert float(rows[1]["p"]) > 0


values = st.one_of(st.floats(0, 1), st.just(math.nan))


@given(st.lists(st.tuples(values, values), min_size=1, max_size=12))
def test_f1_by_counts_is_that_of_the_sets_precision_and_recall(parts: list[tuple[float, float]]) -> None:
    import numpy as np

    columns = {"p": [one[0] for one in parts], "r": [one[1] for one in parts]}
    expected = summarise(columns, f1={"f1": ("p", "r")}, replicates=0)["f1"].point
    counts = f1_counts(np.array(parts))
    found = set_f1(counts[scored_rows(counts)].sum(axis=0))
    assert (math.nan if expected is None else expected) == pytest.approx(found, nan_ok=True)
