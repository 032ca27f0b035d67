"""Systems compared on shared samples, and published variants of metrics, which names tell apart."""

import csv
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml
from error_checks import raises
from hypothesis import given
from hypothesis import strategies as st
from meta_run import write_scores
from metric_files import fixed_metric
from nltk.translate.bleu_score import corpus_bleu

import radfact
from radfact.api import evaluate
from radfact.errors import InputError
from radfact.io.jsonl import read_json
from radfact.metrics.classical.bleu import CocoBleu, RadEvalBleu
from radfact.metrics.classical.radcliq import InverseRadCliQ
from radfact.metrics.protocol import Counts, Metric, MetricResult, PooledScore
from radfact.metrics.registry import expand_presets, select_metrics
from radfact.pages.comparison_page import difference_table, write_comparison
from radfact.records import Box, Pair, Pairs, Sentence, TextPair
from radfact.results.compare import Comparison, Contrast, compare
from radfact.statistics.bootstrap import CountsFunction, Direction, Summary, scored_rows, summarize
from radfact.statistics.clusters import Resampling
from radfact.statistics.significance import f1_counts, f1_from_counts

CASES = yaml.safe_load(Path(__file__).with_name("score_options.yaml").read_text("utf-8"))

Run = Callable[..., tuple[int, str, str]]
TEXTS = [
    *("The lungs are clear.", "The heart is large.", "There is a small left pleural effusion."),
    *("No pneumothorax is seen.", "Mild pulmonary edema.", "The mediastinum is normal."),
]


def pairs(candidates: Sequence[str], first: int = 0) -> list[Pair]:
    return [Pair(str(place), text, TEXTS[place]) for place, text in enumerate(candidates, start=first)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("systems")
    evaluate(pairs(TEXTS), ["rouge_l", "bleu", "radfact"], judge="offline", out=root / "good")
    evaluate(pairs(["Nothing of note."] * 5), ["rouge_l", "bleu_4", "radfact"], judge="offline", out=root / "bad")
    evaluate(pairs(TEXTS), ["rouge_l", "bleu_4", "radfact"], judge="offline", bootstrap=0, out=root / "third")
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


def test_main_scores_are_one_of_each_metric_or_the_chosen_ones(folders: list[Path], run_radfact: Run) -> None:
    """Holm's method runs over them alone, and three systems can differ significantly in each."""
    three = compare([*folders, folders[0].with_name("third")])
    assert three.main_scores == ["rouge_l", "bleu_4", "logical_f1"]
    assert three.tests == 6
    assert (three.options["rounds"] + 1) * 0.05 / three.tests > 1
    assert [row[1].p_holm is None for name, row in three.scores.items()] == [
        name not in three.main_scores for name in three.scores
    ]
    chosen = compare(folders, scores=["radfact", "bleu_4"], rounds=99)
    assert (set(chosen.main_scores), chosen.tests) == ({"logical_f1", "bleu_4"}, 2)
    with raises("scores: unknown-name"):
        compare(folders, scores=["rouge_1"])
    code, out, _ = run_radfact("compare", *map(str, folders), "--scores", "rouge_l", "--rounds", "99")
    assert code == 0
    # Samples, shared, empty candidates, not scored.
    assert re.search(r"^good +6 +5 +0 +0\b", out, re.M)
    assert "logical_f1" not in out.partition("is better")[0]
    assert "logical_f1" in run_radfact("compare", *map(str, folders), "--verbose", "--rounds", "99")[1]


def test_results_in_memory_are_compared_as_their_folders(folders: list[Path]) -> None:
    results = [evaluate(pairs(texts), ["rouge_l"]) for texts in (TEXTS, ["Nothing of note."] * 5)]
    comparison = radfact.compare(*results, names=["one", "two"], rounds=99)
    expected = radfact.compare(*folders, scores=["rouge_l"], rounds=99)
    assert comparison.systems == ["one", "two"]
    assert comparison.scores["rouge_l"] == expected.scores["rouge_l"]
    frame = comparison.to_dataframe()
    assert (list(frame["system"]), list(frame["is_main"])) == (["one", "two"], [True, True])
    assert results[0].to_dataframe("scores")["score"].tolist() == ["rouge_l"]
    assert "| ROUGE-L ↑ | 1.000 [1.000, 1.000] |" in results[0].to_markdown()
    assert results[0].to_latex(["rouge_l"]) == results[0].to_latex()
    with raises("scores: unknown-name"):
        results[0].to_latex(["rouge_l", "logical_f1"])
    wrong: list[dict[str, Any]] = [{"names": ["one"] * 2}, {"rounds": -1}, {"bootstrap": -1}, {"scores": "spatial_f1"}]
    for options in wrong:
        with pytest.raises(InputError, match=f"^{next(iter(options))}: "):
            radfact.compare(*folders, **options)


def test_tables_for_papers_are_printed_and_written(folders: list[Path], run_radfact: Run) -> None:
    names = [str(folder) for folder in folders]
    comparison = compare(folders, scores=["rouge_l"])
    for kind, text in (("latex", comparison.to_latex()), ("markdown", comparison.to_markdown())):
        assert run_radfact("compare", *names, "--scores", "rouge_l", "--format", kind) == (0, text, "")
    rows = list(csv.DictReader(run_radfact("compare", *names, "--format", "csv")[1].splitlines()))
    assert {row["score"] for row in rows} == {"rouge_l", "bleu_4", "logical_f1"}
    code, out, _ = run_radfact("export", names[0], "--format", "markdown", "--scores", "radfact,bleu_1")
    assert (code, [line.split(" |")[0] for line in out.splitlines()[4:]]) == (
        0,
        ["| Logical F1 ↑", "| BLEU-1 ↑ (0 to 100)"],
    )
    assert run_radfact("export", names[0], "--format", "csv", "--out", "scores.csv")[0] == 0
    with Path("scores.csv").open() as handle:
        (row,) = (row for row in csv.DictReader(handle) if row["score"] == "rouge_l")
    assert (float(row["point"]), row["n"]) == (pytest.approx(1.0), "6")
    assert "--scores" in run_radfact("export", names[0], "--scores", "rouge_l")[2]


def test_a_row_holds_scores_of_the_same_samples(tmp_path: Path, run_radfact: Run) -> None:
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
    assert re.search(r"^b +6 +6 +2 +0\b", run_radfact("compare", "a", "b", "--rounds", "9")[1], re.M)
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


def test_notes_of_other_references_metrics_judges(folders: list[Path], comparison: Comparison, tmp_path: Path) -> None:
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
    evaluate(
        pairs(TEXTS), ["radfact"], judge=lambda premises, hypothesis: hypothesis in premises, out=tmp_path / "judge"
    )
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
    assert {path.suffix for path in tmp_path.glob("comparison_forest.*")} == {".png", ".svg"}
    assert 'alt="Differences to good with 95% intervals. bad, ROUGE-L: -' in page.read_text()
    record = json.loads((tmp_path / "comparison.json").read_text())
    with (tmp_path / "comparison.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == 2 * len(record["scores"])
    assert (rows[0]["p"], rows[0]["n"], rows[0]["own_n"]) == ("", "", "5")
    assert float(rows[1]["p"]) > 0
    assert float(rows[1]["difference"]) == pytest.approx(float(rows[1]["point"]) - float(rows[1]["baseline"]))
    write_comparison(replace(comparison, main_scores=[]), tmp_path)
    assert "there is no plot of differences" in page.read_text()


@pytest.mark.parametrize(
    ("p", "rounds", "shown"),
    [(1 / 1001, 1000, "≤ 0.001"), (2 / 1001, 1000, "0.002"), (1 / 3001, 3000, "≤ 0.0004"), (1.0, 1000, "1.000")],
)
def test_the_smallest_p_is_shown_as_a_bound(p: float, rounds: int, shown: str) -> None:
    points = [Summary(value, n=3) for value in (0.5, 0.4, 0.5, 0.1)]
    comparison = two_systems(Contrast(points[1]), Contrast(*points, p), rounds=rounds)
    assert difference_table(comparison, 1).rows == [["x ↑ (0 to 100)", "0.400", "0.500", "+0.100", 3, shown, None, ""]]


def two_systems(*contrasts: Contrast, names: Sequence[str] = ("a", "b"), rounds: int = 1000) -> Comparison:
    unknown = [None, None]
    described = (["x"], 3, [3, 3], unknown, unknown, [{"radfact": "offline"}] * 2, ["1.0", None])
    return Comparison(names, *described, {"x": contrasts}, {"x": "0 to 100"}, [], {"rounds": rounds}, 1, SINGLE)


SINGLE = Resampling(None, 3, 3)


@pytest.mark.parametrize(("difference", "direction", "p", "result"), CASES["results in words"])
def test_the_result_is_said_in_a_sentence(difference: float, direction: Direction, p: float, result: str) -> None:
    value = Summary(0.5, direction=direction)
    second = Contrast(value, value, value, Summary(difference), p, p)
    comparison = two_systems(Contrast(value), second)
    assert comparison.results() == [result]
    marks = 0 if result.startswith("No") else 1
    assert comparison.to_latex().count("$^{*}$") == comparison.to_markdown().count(r"0.500\*") == marks


def test_a_table_for_a_paper_has_bold_best_values_and_escaped_names() -> None:
    values = [Summary(0.25, 0.2, 0.2, 0.25, 0.3, 0.3, 3), Summary(0.7504, n=2), Summary(0.75, n=3), Summary(None)]
    names = ["50%_a & b", "c|*d", '"e"', "~\\f"]
    comparison = two_systems(*map(Contrast, values), names=names)
    table = comparison.to_latex()
    assert r"Score & 50\%\_a \& b & c\textbar{}*d & ''e'' & \textasciitilde{}\textbackslash{}f \\" in table
    # Equal as they are shown, so that both are the best.
    expected = r"& 0.250 [0.200, 0.300] & \textbf{0.750} (n = 2) & \textbf{0.750} & -- \\"
    assert rf"X $\uparrow$ (0 to 100) {expected}" in table
    assert r"n = 3 samples" in table
    assert "RadFact: offline. Computed with maira-radfact 1.0." in table
    assert (table.count("{"), table.count(r"\begin")) == (table.count("}"), 2)
    markdown = comparison.to_markdown().splitlines()
    assert markdown[2] == r'| Score | 50%\_a & b | c\|\*d | "e" | ~\\f |'
    assert markdown[4] == "| X ↑ (0 to 100) | 0.250 [0.200, 0.300] | **0.750** (n = 2) | **0.750** | – |"


def ratio(counts: Counts) -> float:
    return float(counts[0] / counts[1])


class Words(Metric):
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
    direction: Direction, tag: str, mark: str, run_radfact: Run, tmp_path: Path
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


PAIRS = [
    TextPair("1", "The heart is large. No pleural effusion.", "The heart is large; no pleural effusion is seen."),
    TextPair("2", "Lungs are clear bilaterally.", "The lungs are clear bilaterally."),
]
REPORTS = [Pair(pair.sample_id, pair.candidate, pair.reference) for pair in PAIRS]


@pytest.mark.parametrize("metric", [CocoBleu, RadEvalBleu])
def test_bleu_without_smoothing_is_that_of_nltk(metric: type[Metric]) -> None:
    tokens = [
        ("the heart is large no pleural effusion", "the heart is large no pleural effusion is seen"),
        ("lungs are clear bilaterally", "the lungs are clear bilaterally"),
    ]
    if metric is RadEvalBleu:
        tokens = [(pair.candidate, pair.reference) for pair in PAIRS]
    candidates, references = zip(*((left.split(), [right.split()]) for left, right in tokens), strict=True)
    orders = (1, 2, 3) if metric is RadEvalBleu else (1, 2, 3, 4)
    expected = [corpus_bleu(references, candidates, weights=[1 / order] * order) for order in orders]
    pooled = list(metric().score(PAIRS).pooled.values())[: len(orders)]
    assert [score.value(score.counts.sum(axis=0)) for score in pooled] == pytest.approx(expected, rel=1e-6)


def test_scores_of_different_variants_are_not_compared(tmp_path: Path) -> None:
    for folder, compat in (("none", ()), ("coco", ["coco", "exact"]), ("again", ["coco", "exact"])):
        metrics = ["bleu", "rouge_l", "radfact"]
        evaluate(REPORTS, metrics, judge="offline", compat=compat, bootstrap=0, out=tmp_path / folder)
    comparison = compare([tmp_path / "none", tmp_path / "coco"], replicates=0, rounds=9)
    assert {name.partition("_")[0] for name in comparison.scores} == {"logical"}
    for metric, variant in (("bleu", "coco"), ("rouge_l", "coco"), ("radfact", "exact")):
        note = f"{metric}: the variant {variant} in coco, none in none"
        assert [text.startswith(note) for text in comparison.notes].count(True) == 1
    evaluate(REPORTS, "bleu", bootstrap=0, out=tmp_path / "bleu")
    with pytest.raises(InputError, match="have different variants of bleu"):
        compare([tmp_path / "bleu", tmp_path / "coco"], replicates=0, rounds=9)
    same = compare([tmp_path / "coco", tmp_path / "again"], replicates=0, rounds=9)
    assert same.scores["bleu_4.coco"][1].difference is not None
    assert not any("variant" in note for note in same.notes)


@pytest.mark.parametrize(("metrics", "compat", "error"), CASES["refused variants"])
def test_refused_variants(metrics: Any, compat: list[str], error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [fixed_metric("part", [1.0])] * 3
    monkeypatch.setattr(InverseRadCliQ, "create", classmethod(lambda cls, _: cls(*parts)))
    monkeypatch.setattr("radfact.metrics.resources.MetricResources.find_weights", lambda *_: [])
    with raises(error):
        evaluate(REPORTS, metrics, compat=compat)


def test_variants_are_an_option_of_the_commands(run_radfact: Run) -> None:
    Path("pairs.csv").write_text("example_id,prediction,target\n1,Clear lungs.,The lungs are clear.\n")
    Path("run.yaml").write_text("compat: [coco]\n")
    command = ("evaluate", "pairs.csv", "--out", "r", "--metrics")
    code, out, _ = run_radfact(*command, "bleu_2,rouge_l,lateral_mentions", "--config", "run.yaml")
    assert (code, "bleu_2.coco ↑" in out) == (0, True)
    results, record = read_json("r/scores.json"), read_json("r/run.json")
    assert set(results["scores"]) >= {"bleu_2.coco", "rouge_l.coco"}
    variants = {"bleu": "coco", "rouge_l": "coco", "lateral_mentions": None}
    assert {name: metric["variant"] for name, metric in results["metrics"].items()} == variants
    assert (record["options"]["variants"], record["metrics"]["bleu"]["variant"]) == (["coco"], "coco")
    assert "bleu_2.coco" in Path("r/report.html").read_text("utf-8")
    code, out, _ = run_radfact(*command, "bleu", "--compat", "radeval")
    assert "variants ['coco']" in out
    code, _, err = run_radfact(*command, "bleu", "--compat", "cocoa")
    assert (code, "--compat: unknown variant 'cocoa'; did you mean 'coco'?" in err) == (2, True)
    assert "variant --compat coco" in run_radfact("metrics")[1]


def test_the_preset_of_rexrank_selects_its_metrics_in_its_variants(run_radfact: Run) -> None:
    rows = (f"{report.sample_id},{report.candidate},{report.reference}\n" for report in REPORTS)
    Path("pairs.csv").write_text("example_id,prediction,target\n" + "".join(rows))
    assert run_radfact("evaluate", "pairs.csv", "--metrics", "rexrank,rouge_l", "--out", "r")[0] == 3
    results = read_json("r/scores.json")
    assert set(results["scores"]) == {"bleu_2.rexrank", "rouge_l"}
    # BLEU-2 is the mean of the reports; values of fast-bleu 0.0.90.
    bleu = results["scores"]["bleu_2.rexrank"]["point"]
    assert bleu == pytest.approx((0.5580303566223722 + 0.8187307530779819) / 2)
    assert set(results["unavailable"]) == {"bertscore", "chexbert", "radgraph", "radcliq", "ratescore", "green"}
    assert all("weights fetch" in why or "--judge" in why for why in results["unavailable"].values())
    options = read_json("r/run.json")["options"]
    assert options["variants"] == ["rexrank", "inverse"]
    assert "radcliq_v1" in options["metrics"]
    assert "rexrank: preset" in run_radfact("metrics")[1]
    names, compat = expand_presets(["rexrank", "rouge_l"], "rrg")
    assert compat == ("rrg", "rexrank", "inverse")
    selections = select_metrics(names, compat[1:])
    scores = [score for selection in selections for score in selection.select(selection.entry.load())]
    # GREEN comes with its counts.
    assert [score for score in scores if not score.startswith("green_")] == [
        *("bleu_2.rexrank", "bertscore", "chexbert_similarity", "radgraph_f1", "radcliq_v1.inverse"),
        *("ratescore.rexrank", "green", "rouge_l"),
    ]
