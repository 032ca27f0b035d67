import csv
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meta_run import write_scores

from radfact.api import evaluate
from radfact.errors import InputError
from radfact.metrics.protocol import Counts, Metric, MetricResult, PooledScore
from radfact.pages.comparison_page import difference_table, write_comparison
from radfact.records import Box, Pair, Pairs, Sentence
from radfact.results.compare import Comparison, Contrast, compare
from radfact.statistics.bootstrap import CountsFunction, Direction, Summary, scored_rows, summarize
from radfact.statistics.clusters import Resampling
from radfact.statistics.significance import f1_counts, f1_from_counts

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


@pytest.fixture(scope="module")
def comparison(folders: list[Path]) -> Comparison:
    return compare(folders)


def test_systems_are_compared_on_shared_samples_and_scores(comparison: Comparison) -> None:
    assert (comparison.systems, comparison.shared, comparison.own) == (["good", "bad"], 5, [6, 5])
    assert {"rouge_l", "bleu_4", "logical_f1"} <= set(comparison.scores)
    assert "bleu_1" not in comparison.scores
    assert any("bleu_1" in note for note in comparison.notes)
    assert not {name for name in comparison.scores if name.startswith(("grounding", "spatial"))}
    assert any(note.startswith("Without a value in any system: grounding_precision") for note in comparison.notes)
    first, second = comparison.scores["rouge_l"]
    assert (first.summary.point, first.summary.n, first.difference) == (pytest.approx(1.0), 5, None)
    assert second.difference is not None
    assert second.summary.point is not None
    assert second.difference.point == pytest.approx(second.summary.point - 1.0)
    # Five samples have 32 swaps, of which two differ as much.
    assert second.p == pytest.approx(2 / 32, abs=0.03)


def test_a_row_holds_scores_of_the_same_samples(tmp_path: Path) -> None:
    """A system that writes only the easy reports is compared on these, and its empty candidates are counted."""
    wrong = ["Nothing of note."] * 2
    evaluate(pairs([*TEXTS[:4], *wrong]), ["radfact"], judge="offline", out=tmp_path / "a")
    evaluate(pairs([*TEXTS[:4], "", " "]), ["radfact"], judge="offline", out=tmp_path / "b")
    comparison = compare([tmp_path / "a", tmp_path / "b"])
    _, second = comparison.scores["logical_precision"]
    assert (second.baseline, second.paired) == (Summary(1.0, n=4), Summary(1.0, n=4))
    assert second.difference is not None
    assert (second.difference.point, second.difference.n, second.p) == (0.0, 4, 1.0)
    # All its own samples, of which two more are in the first system's.
    assert [row.summary.n for row in comparison.scores["logical_precision"]] == [6, 4]
    assert comparison.scores["logical_precision"][0].summary.point == pytest.approx(4 / 6)
    assert (comparison.empty_candidates, comparison.excluded) == ([0, 2], [0, 0])
    assert comparison.models[0] == {"radfact": "offline, narratives split by offline"}


def test_pooled_scores_are_recomputed_from_the_shared_samples(comparison: Comparison) -> None:
    from sacrebleu.metrics.bleu import BLEU

    first, second = comparison.scores["bleu_4"]
    expected = BLEU(lowercase=True).corpus_score(["Nothing of note."] * 5, [TEXTS[:5]]).score
    assert first.summary.point == pytest.approx(100.0)
    assert second.summary.point == pytest.approx(expected)


def test_scores_of_the_references_alone_are_not_tested(tmp_path: Path) -> None:
    for name in "ab":
        evaluate(pairs(TEXTS), ["lateral_mentions"], bootstrap=0, out=tmp_path / name)
    comparison = compare([tmp_path / "a", tmp_path / "b"])
    assert (list(comparison.scores), comparison.tests) == (["lateral_mentions"], 1)


def test_other_references_metrics_and_judges_are_reported(
    folders: list[Path], comparison: Comparison, tmp_path: Path
) -> None:
    class Own(Metric):
        name = "own"
        scores: Mapping[str, Direction] = {"rouge_l": "higher"}

        def score(self, pairs: Sequence[Pair]) -> MetricResult:
            return MetricResult({"rouge_l": [1.0] * len(pairs)})

    other = [Pair("0", TEXTS[0], "Something else."), *pairs(TEXTS[1:], first=1)]
    evaluate(other, ["rouge_l"], out=tmp_path / "other")
    notes = compare([folders[0], tmp_path / "other"]).notes
    assert any(note.startswith("1 samples have another reference") for note in notes)
    evaluate(pairs(TEXTS), [Own()], out=tmp_path / "own")
    assert "rouge_l: of another metric in own than in good." in compare([folders[0], tmp_path / "own"]).notes
    evaluate(pairs(TEXTS), ["radfact"], judge=lambda premises, text: text in premises, out=tmp_path / "judge")
    assert any(note.startswith("radfact: another judge") for note in compare([folders[0], tmp_path / "judge"]).notes)
    assert not any("another judge" in note for note in comparison.notes)


def test_folders_that_cannot_be_compared_are_refused(folders: list[Path], tmp_path: Path) -> None:
    good, bad = folders
    evaluate([Pair("x", "a", "b")], ["rouge_l"], out=tmp_path / "other")
    (tmp_path / "link").symlink_to(good)
    for systems, message in (
        ([good, tmp_path / "other"], "a sample in common"),
        ([good, tmp_path / "nowhere"], r"no scores\.json"),
        ([good], "two or more"),
        ([good, bad, good], "twice"),
        ([good, tmp_path / "link"], "link: .*twice"),
        ([good, bad / ".." / "good"], "twice"),
    ):
        with pytest.raises(InputError, match=message):
            compare(systems)


def test_compare_writes_its_files(comparison: Comparison, tmp_path: Path) -> None:
    write_comparison(comparison, tmp_path)
    page = tmp_path / "comparison.html"
    assert "ROUGE-L" in page.read_text()
    record = json.loads((tmp_path / "comparison.json").read_text())
    with (tmp_path / "comparison.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == 2 * len(record["scores"])
    assert (rows[0]["p"], rows[0]["n"], rows[0]["own_n"]) == ("", "", "5")
    assert float(rows[1]["p"]) > 0
    assert float(rows[1]["difference"]) == pytest.approx(float(rows[1]["point"]) - float(rows[1]["baseline"]))


@pytest.mark.parametrize(
    ("p", "rounds", "shown"),
    [
        (1 / 1001, 1000, "≤ 0.001"),
        (2 / 1001, 1000, "0.002"),
        (1 / 3001, 3000, "≤ 0.0004"),
        (1.0, 1000, "1.000"),
    ],
)
def test_the_smallest_p_is_shown_as_a_bound(p: float, rounds: int, shown: str) -> None:
    points = [Summary(value, n=3) for value in (0.5, 0.4, 0.5, 0.1)]
    scores, unknown = {"x": [Contrast(points[0]), Contrast(*points, p)]}, [None, None]
    described = (["a", "b"], 3, [3, 3], unknown, unknown, [{}, {}])
    resampled = ({"rounds": rounds}, 1, Resampling(None, 3, 3))
    comparison = Comparison(*described, scores, {"x": "0 to 100"}, [], *resampled)
    assert difference_table(comparison, 1).rows == [["x ↑ (0 to 100)", 3, 0.4, 0.5, "+0.100", shown, None, ""]]


def ratio(counts: Counts) -> float:
    return float(counts[0] / counts[1])


class Words(Metric):
    """A custom metric with a pooled score."""

    name = "words"
    scores: Mapping[str, Direction] = {"words_ratio": "neutral"}
    pooled: ClassVar[Mapping[str, CountsFunction]] = {"words_ratio": ratio}

    def score(self, pairs: Sequence[Pair]) -> MetricResult:
        counts = [[len(str(text).split()) for text in (pair.candidate, pair.reference)] for pair in pairs]
        return MetricResult({}, pooled={"words_ratio": PooledScore(np.array(counts, float), ratio)})


def test_a_pooled_score_of_a_custom_metric_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, texts in (("a", TEXTS), ("b", ["Nothing of note."] * 6)):
        evaluate(pairs(texts), [Words(), "rouge_l"], out=tmp_path / name)
    systems = [tmp_path / "a", tmp_path / "b"]
    without = compare(systems)
    assert list(without.scores) == ["rouge_l"]
    (note,) = (note for note in without.notes if "words_ratio" in note)
    assert "the metric that pools them is not known here: words_ratio; name it with --metric MODULE:OBJECT" in note
    monkeypatch.setitem(sys.modules, "own_words", sys.modules[__name__])
    first, second = compare(systems, metrics=["own_words:Words"]).scores["words_ratio"]
    assert first.summary.point == 1.0
    assert second.summary.point == pytest.approx(18 / sum(len(text.split()) for text in TEXTS))


@pytest.mark.parametrize(
    ("direction", "tag", "mark"), [("higher", "yes", "↑"), ("lower", "no", "↓"), ("neutral", "", "")]
)
def test_a_score_without_a_direction_is_neither_better_nor_worse(
    direction: Direction, tag: str, mark: str, run_radfact: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    for name, values in (("a", [0.0, 0.1, 0.2, 0.1, 0.0, 0.1]), ("b", [0.8, 0.9, 1.0, 0.9, 0.8, 0.9])):
        write_scores(tmp_path / name, list(values), name="rate", direction=direction)
    _, second = compare([tmp_path / "a", tmp_path / "b"]).scores["rate"]
    assert second.difference is not None
    assert second.difference.point == pytest.approx(0.8)
    assert second.p == pytest.approx(2 / 64, abs=0.02)
    code, table, _ = run_radfact("compare", "a", "b", "--out", "c")
    assert code == 0
    assert set("↑↓") & set(table.partition("↑ higher is better")[0]) == set(mark)
    page = (tmp_path / "c" / "comparison.html").read_text()
    assert re.search(rf'<th scope="row">[^<↑↓]*{mark}</th>', page)
    assert re.findall('class="tag (yes|no)"', page) == [tag] * bool(tag)
    with (tmp_path / "c" / "comparison.csv").open() as handle:
        assert {row["direction"] for row in csv.DictReader(handle)} == {direction}


def test_samples_excluded_from_both_are_not_counted(tmp_path: Path) -> None:
    for name, texts in (("a", TEXTS), ("b", ["Nothing of note."] * 6)):
        partial = Pairs(tuple(pairs(texts)), read=7, without_candidate={"x": "none"})
        evaluate(partial, ["bleu_2", "rouge_l"], out=tmp_path / name)
    comparison = compare([tmp_path / "a", tmp_path / "b"])
    assert comparison.shared == 7
    evaluate([*pairs(TEXTS), Pair("x", "Clear.", "Clear.")], ["rouge_l"], out=tmp_path / "all")
    assert not any("another" in note for note in compare([tmp_path / "a", tmp_path / "all"]).notes)
    assert [comparison.scores[name][1].summary.n for name in ("bleu_2", "rouge_l")] == [6, 6]


@pytest.mark.parametrize("chosen", [["radfact"], ["grounding_f1"]])
def test_n_of_an_f1_equals_that_of_the_results(tmp_path: Path, chosen: list[str]) -> None:
    box = (Box(x_min=0, y_min=0, x_max=1, y_max=1),)
    here, nowhere = (Sentence(text="Left pleural effusion.", boxes=where) for where in (box, None))
    reports = [(here, here), (here, nowhere), (Sentence(text="The heart is large."), here)]
    pairs = [Pair(str(place), [candidate], [reference]) for place, (candidate, reference) in enumerate(reports)]
    for name in "ab":
        results = evaluate(pairs, chosen, judge="offline", out=tmp_path / name, bootstrap=20)
    summary = results.summaries["grounding_f1"]
    first, second = compare([tmp_path / "a", tmp_path / "b"], replicates=20, rounds=20).scores["grounding_f1"]
    assert second.difference is not None
    # The second sample has a precision and no recall: it counts in the F1's precision, and has none itself.
    assert (summary.n, first.summary.n, second.summary.n, second.difference.n) == (1, 1, 1, 1)
    assert first.summary.point == summary.point


values = st.one_of(st.floats(0, 1), st.just(math.nan))


@given(st.lists(st.tuples(values, values), min_size=1, max_size=12))
def test_f1_from_counts_equals_f1_of_mean_precision_and_recall(parts: list[tuple[float, float]]) -> None:
    columns = {"p": [part[0] for part in parts], "r": [part[1] for part in parts]}
    expected = summarize(columns, f1={"f1": ("p", "r")}, replicates=0)["f1"].point
    counts = f1_counts(np.array(parts))
    f1 = f1_from_counts(counts[scored_rows(counts)].sum(axis=0))
    assert (math.nan if expected is None else expected) == pytest.approx(f1, nan_ok=True)
