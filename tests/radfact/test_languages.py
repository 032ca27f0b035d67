import math
from pathlib import Path
from typing import Any

import pytest
from error_checks import raises_code

from radfact import RadFact, load_judge
from radfact.errors import ErrorCode, Failure
from radfact.judges.offline_splitter import OfflineSplitter
from radfact.languages import Language
from radfact.metrics.protocol import score_pairs
from radfact.metrics.registry import MetricEntry, entries
from radfact.records import Pair, Sentence

RUSSIAN = "Пневмоторакса нет."
CHINESE = "未见气胸。"
THAI = "ไม่พบลมในช่องเยื่อหุ้มปอด"


@pytest.mark.parametrize(
    ("text", "english", "spaced"),
    [
        ("No pneumothorax.", True, True),
        ("", True, True),
        ("3 × 4 mm ± 1", True, True),
        ("Épanchement pleural à droite.", True, True),
        ("Nodule of 5 µm in the right β-segment.", True, True),
        (RUSSIAN, False, True),
        ("기흉은 없습니다.", False, True),
        (CHINESE, False, False),
        (THAI, False, False),
        (f"CT: {CHINESE}", False, False),
        ("Clear lungs, see 图.", True, True),
    ],
)
def test_the_script_decides_what_is_read(text: str, english: bool, spaced: bool) -> None:
    matches = [language.matches(text) for language in (Language.ENGLISH, Language.SPACED, Language.ANY)]
    assert matches == [english, spaced, True]


@pytest.mark.parametrize("name", ["rouge_l", "bleu", "lateral_mentions"])
def test_a_report_that_cannot_be_read_is_not_scored(name: str) -> None:
    english = Pair("a", "Small left effusion. Lateral view.", "Small left effusion. Lateral view.")
    pairs = [english, Pair("b", CHINESE, CHINESE), Pair("c", "Clear lungs.", "Normal heart size.")]
    metric = entries()[name].load()()
    result, readable = score_pairs(metric, pairs), score_pairs(metric, [english, pairs[2]])
    assert result.failures == {1: metric.language.skip_reason}
    for score, values in result.values.items():
        assert math.isnan(values[1])
        assert [values[0], values[2]] == list(readable.values[score])
    assert metric.aggregate(result, list(metric.scores), replicates=0, seed=0) == metric.aggregate(
        readable, list(metric.scores), replicates=0, seed=0
    )


def test_nothing_readable_is_an_error_which_depends_on_the_metric() -> None:
    with raises_code(ErrorCode.NOTHING_SCORED):
        score_pairs(entries()["rouge_l"].load()(), [Pair("a", RUSSIAN, RUSSIAN)])
    assert score_pairs(entries()["bleu"].load()(), [Pair("a", RUSSIAN, RUSSIAN)]).failures == {}


def test_the_offline_judge_does_not_judge_other_scripts() -> None:
    reports = {"a": [Sentence(text=RUSSIAN)], "b": [Sentence(text="Clear lungs.")]}
    result = RadFact(load_judge("offline")).score([Pair(name, report, report) for name, report in reports.items()])
    assert [sample.failure for sample in result.samples] == [Language.ENGLISH.skip_reason, None]
    assert result.summaries["logical_f1"].n == 1
    split, failure = OfflineSplitter().split(["Clear lungs. No effusion.", RUSSIAN])
    assert not isinstance(split, Failure)
    assert len(split) == 2
    assert isinstance(failure, Failure)


def test_reports_that_cannot_be_read_are_counted_in_one_line(run_radfact: Any) -> None:
    reports = {str(number): RUSSIAN for number in range(12)} | {"english": "Clear lungs."}
    rows = ["example_id,prediction,target", *(f"{name},{text},{text}" for name, text in reports.items())]
    Path("pairs.csv").write_text("\n".join(rows), encoding="utf-8")
    code, out, error = run_radfact("evaluate", "pairs.csv", "--metrics", "rouge_l", "--out", "out")
    assert code == 3
    assert [line for line in (out + error).splitlines() if "another script" in line] == [
        f"rouge_l: 12 samples not scored: {Language.ENGLISH.skip_reason}"
    ]


@pytest.mark.parametrize(
    "entry", [entry for entry in entries().values() if entry.is_builtin], ids=lambda entry: entry.name
)
def test_only_metrics_with_a_model_read_any_language(entry: MetricEntry) -> None:
    assert (entry.declared.language is Language.ANY) == (entry.declared.requirements.judge is not None)
