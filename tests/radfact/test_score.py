"""RadFact scores of pairs of reports, with splitters, failures and the asynchronous form."""

import asyncio
import json
import math
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import yaml
from error_checks import raises
from hypothesis import given
from hypothesis import strategies as st

from radfact.api import RadFact
from radfact.errors import InputError
from radfact.io.pairs import read_pairs
from radfact.judges import EntailmentQuery, Failure, Verdict, load_judge
from radfact.judges.offline import OfflineJudge
from radfact.metrics.radfact.scores import SCORES
from radfact.records import Box, Pair, Pairs, Report, Sentence
from radfact.results.evaluation import SampleScore

CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("invalid_scoring.yaml").read_text("utf-8"))
Result = Verdict | Failure
NO = Verdict("not_entailment")
LEFT, RIGHT = (0.5, 0.0, 1.0, 1.0), (0.0, 0.0, 0.5, 1.0)


class Oracle:
    """A judge that calls a function, records the queries and loses the first verdicts."""

    name = "oracle"
    lost = 0

    def __init__(self, verdict: Callable[[EntailmentQuery], Result]) -> None:
        self.verdict = verdict
        self.calls: list[list[EntailmentQuery]] = []

    def judge(self, queries: Sequence[EntailmentQuery]) -> list[Result]:
        self.calls.append(list(queries))
        return [self.verdict(query) for query in queries][self.lost :]

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}

    def usage(self) -> dict[str, int]:
        return {"calls": len(self.calls)}


def judge_of(table: Mapping[str, Result]) -> Oracle:
    return Oracle(lambda query: table.get(query.hypothesis, NO))


def verbatim(query: EntailmentQuery) -> Result:
    if query.hypothesis not in query.premises:
        return NO
    return Verdict("entailment", (query.premises.index(query.hypothesis),))


def yes(*evidence: int) -> Verdict:
    return Verdict("entailment", evidence)


def located(text: str, *boxes: tuple[float, float, float, float]) -> Sentence:
    return Sentence(text=text, boxes=tuple(Box(x_min=a, y_min=b, x_max=c, y_max=d) for a, b, c, d in boxes))


def texts(*sentences: str) -> Report:
    return [Sentence(text=text) for text in sentences]


def only(judge: Oracle, candidate: Report, reference: Report, **options: Any) -> SampleScore:
    (sample,) = RadFact(judge=judge, bootstrap=0, **options).score([Pair("1", candidate, reference)]).samples
    return sample


POLICIES = ("positive", "negative", "implied")


def policies(judge: Any, candidate: Report, reference: Report) -> list[float]:
    scores = only(judge, candidate, reference).scores
    return [scores[f"logical_precision_{policy}"] for policy in POLICIES]


def test_policies_of_absence_select_sentences_or_imply_them() -> None:
    negatives = ("No pneumothorax.", "Heart size is normal.", "No nodule.")
    candidate = texts("Left effusion.", "Right effusion and no mass.", "The heart is unchanged.", *negatives)
    judge = judge_of(
        {
            "Left effusion.": yes(0),
            "No pneumothorax.": yes(0),
            "Heart size is normal.": Verdict("not_entailment", relation="neutral"),
            "No nodule.": Verdict("not_entailment", (0,), relation="contradiction"),
        }
    )
    # By hand: 1 of 2 findings, 1 of 3 absences, and of all 6 the two entailed and the one that is not contradicted.
    assert policies(judge, candidate, texts("x")) == pytest.approx([1 / 2, 1 / 3, 1 / 2])


@pytest.mark.parametrize(
    ("candidate", "reference", "expected"),
    [
        ("Left effusion.", ["x"], [0.0, math.nan, 0.0]),
        ("No nodule.", ["x"], [math.nan, 0.0, math.nan]),
        ("The heart is unchanged.", ["x"], [math.nan, math.nan, 0.0]),
        # An empty report implies nothing.
        ("No nodule.", [], [math.nan, 0.0, 0.0]),
    ],
)
def test_what_a_judge_does_not_tell_is_unknown(candidate: str, reference: list[str], expected: list[float]) -> None:
    assert policies(judge_of({}), texts(candidate), texts(*reference)) == pytest.approx(expected, nan_ok=True)


def test_the_f1_of_a_policy_has_an_interval_of_its_own() -> None:
    result = RadFact(judge=OfflineJudge(), bootstrap=20).score(["No nodule.", "Mass."], ["No nodule.", "No mass."])
    scores = result.summaries
    assert [scores[f"logical_f1_{policy}"].point for policy in POLICIES] == [None, 2 / 3, 0.5]
    assert scores["logical_f1_implied"].low is not None
    assert "judgments_without_relation" not in result.counts


def test_duplicate_evidence_means_the_first_or_all_occurrences() -> None:
    reference: Report = [located("Nodule.", RIGHT), located("nodule", LEFT)]
    for compat, evidence, spatial in (("paper", (0,), "not_entailed"), ("exact", (0, 1), "entailed")):
        metric = RadFact(judge=judge_of({"a": yes(1)}), compat=cast("Any", compat), bootstrap=0)
        row = metric.score([[located("a", LEFT)]], [reference]).sentences[0]
        assert (row.evidence, row.spatial) == (evidence, spatial)


def test_a_duplicate_sentence_is_judged_once_and_counted_twice() -> None:
    judge = judge_of({"a": yes(0)})
    sample = only(judge, texts("a", "A.", "b 1-2", "b 12"), texts("x"))
    assert [query.hypothesis for query in judge.calls[0] if query.premises == ("x",)] == ["a", "b 1-2", "b 12"]
    assert sample.scores["logical_precision"] == 1 / 2


@given(st.lists(st.tuples(*[st.lists(st.sampled_from(["a", "b", "c"]), max_size=3)] * 2), min_size=1, max_size=6))
def test_a_dataset_is_one_call_without_duplicates_by_premises(reports: list[tuple[list[str], list[str]]]) -> None:
    judge = Oracle(verbatim)
    RadFact(judge=judge, bootstrap=0).score([Pair(str(i), texts(*a), texts(*b)) for i, (a, b) in enumerate(reports)])
    queries = [query for call in judge.calls for query in call]
    groups = [premises for premises, _ in groupby(queries, key=lambda query: query.premises)]
    assert len(judge.calls) <= 1
    assert len(queries) == len(set(queries))
    assert len(groups) == len(set(groups))


@pytest.mark.parametrize("empty", [[], ""])
def test_an_empty_report_entails_nothing_without_a_query(empty: Report) -> None:
    judge = Oracle(verbatim)
    scores = only(judge, empty, texts("a", "b")).scores
    assert judge.calls == []
    assert math.isnan(scores["logical_precision"])
    assert scores["logical_recall"] == 0.0


class Semicolons:
    """A splitter at semicolons that records its calls, fails on narratives with 'bad' and loses the first ones."""

    name = "semicolons"
    lost = 0

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def split(self, narratives: Sequence[str]) -> list[list[str] | Failure]:
        self.calls.append(list(narratives))
        return [Failure("no JSON") if "bad" in text else text.split("; ") for text in narratives][self.lost :]

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "mark": ";"}

    def usage(self) -> dict[str, int]:
        return {"calls": len(self.calls)}


def test_distinct_narratives_are_split_in_one_call_and_have_no_spatial_scores() -> None:
    splitter = Semicolons()
    metric = RadFact(Oracle(verbatim), bootstrap=10, splitter=splitter)
    result = metric.score(["a; b", "a", ""], [[located("a", LEFT)], "a; b", texts("c")])
    assert splitter.calls == [["a; b", "a"]]
    assert result.counts["candidate_sentences"] == 3
    assert result.samples[0].scores["logical_precision"] == 0.5
    assert all(math.isnan(result.scores[name]) for name in SCORES if not name.startswith("logical"))


def test_the_result_has_the_splitter_and_the_usage_of_its_run_alone() -> None:
    scorer = RadFact(Oracle(verbatim), bootstrap=0, splitter=Semicolons())
    results = [scorer.score([word], [word]) for word in "ab"]
    assert results[0].splitter == {"name": "semicolons", "mark": ";"}
    assert [result.usage for result in results] == [{"judge": {"calls": 1}, "splitter": {"calls": 1}}] * 2
    # Without narratives, nothing is split.
    result = scorer.score([texts("a")], [texts("a")])
    assert (result.splitter, list(result.usage)) == (None, ["judge"])


def test_a_judge_by_name_is_that_object_and_narratives_are_split_offline() -> None:
    reports = ["Small left effusion. No nodule."], ["There is a small left effusion."]
    by_name = RadFact("offline", bootstrap=0).score(*reports)
    by_object = RadFact(load_judge("offline"), splitter="offline", bootstrap=0).score(*reports)
    assert by_name.summaries == by_object.summaries
    assert (by_name.judge, by_name.counts["candidate_sentences"]) == (OfflineJudge().describe(), 2)
    assert by_name.splitter is not None
    assert by_name.splitter["name"] == "offline"
    assert {type(value) for value in by_name.scores.values()} == {float}


def test_functions_may_be_judge_and_splitter_and_an_exception_fails_its_narrative() -> None:
    def fussy(text: str) -> list[str]:
        if text == "verbless":
            raise ValueError("no verb")
        return list(text)

    metric = RadFact(lambda premises, hypothesis: hypothesis in premises, splitter=fussy)
    scored, excluded = metric.score(["ab", "verbless"], [texts("a"), texts("b")]).samples
    assert scored.scores["logical_precision"] == 0.5
    assert "fussy: ValueError: no verb" in str(excluded.failure)


@pytest.mark.parametrize("on_failure", ["drop", "not-entailed"])
def test_a_failed_split_excludes_its_sample(on_failure: Any) -> None:
    judge = Oracle(verbatim)
    metric = RadFact(judge, bootstrap=0, splitter=Semicolons(), on_failure=on_failure)
    result = metric.score(["bad", "a"], ["x; y", "a"])
    excluded, scored = result.samples
    assert excluded.failure == "the candidate report could not be split: no JSON"
    assert (result.scores["logical_precision"], result.summaries["logical_precision"].n) == (1.0, 1)
    assert {query.hypothesis for query in judge.calls[0]} == {"a"}
    assert (result.counts["excluded"], result.counts["failed_narratives"], scored.failure) == (1, 1, None)
    assert [row.status for row in result.sentences if row.sample_id == "0"] == [None, None]


@pytest.mark.parametrize(
    ("verdict", "lossy", "candidate", "on_failure", "error", "num_calls"),
    [
        (verbatim, None, "bad", "stop", "judge-failed", 0),
        (lambda _: Failure("no YAML"), None, "b", "stop", "judge-failed", 1),
        (verbatim, "judge", "b", "drop", "judge-failed", 1),
        (verbatim, "splitter", "b", "drop", "invalid-plugin", 0),
    ],
    ids=["failed split", "failed judgment", "missing verdicts", "missing narratives"],
)
def test_a_run_may_stop_at_a_failure_and_does_at_missing_results(
    verdict: Any, lossy: str | None, candidate: str, on_failure: Any, error: str, num_calls: int
) -> None:
    judge, splitter = Oracle(verdict), Semicolons()
    judge.lost, splitter.lost = lossy == "judge", lossy == "splitter"
    with raises(error):
        RadFact(judge, splitter=splitter, on_failure=on_failure).score([candidate], ["a"])
    assert len(judge.calls) == num_calls


def test_samples_without_scores_are_excluded_from_scores_and_intervals() -> None:
    pairs = tuple(Pair(name, texts("a", name), texts("a")) for name in "abcdef")
    metric = RadFact(Oracle(verbatim), splitter=Semicolons())
    unsplit = Pair("bad", "bad", "a")
    result = metric.score(Pairs((unsplit, *pairs), read=8, without_candidate={"x": "no report"}))
    assert [sample.sample_id for sample in result.samples] == ["bad", *"abcdef", "x"]
    assert [sample.failure for sample in result.samples[1:]] == [None] * 6 + ["no report"]
    assert (result.counts["excluded"], result.summaries["logical_f1"].n) == (2, 6)
    assert result.summaries == metric.score(pairs).summaries


@pytest.mark.parametrize(
    "answer",
    [
        Failure("no YAML"),
        Verdict("entailment"),
        yes(5),
        Verdict(cast("Any", "entailed"), (0,)),
        None,
        *(Verdict("entailment", odd) for odd in cast("Any", (["a"], "a", 0, (0.0,), (False,), None))),
        *(Verdict("not_entailment", odd) for odd in cast("Any", (None, ""))),
    ],
    ids=str,
)
def test_a_failed_judgment_excludes_its_sample_or_is_not_entailed(answer: Any) -> None:
    judge = Oracle(lambda query: answer if query.hypothesis == "bad" else verbatim(query))
    reports = [texts("a", "bad"), texts("a")], [texts("a"), texts("a")]
    result = RadFact(judge=judge).score(*reports)
    excluded, scored = result.samples
    assert excluded.failure
    assert all(math.isnan(value) for value in excluded.scores.values())
    assert scored.failure is None
    assert (result.scores["logical_precision"], result.summaries["logical_precision"].n) == (1.0, 1)
    assert (result.counts["excluded"], result.counts["failed_judgments"]) == (1, 1)
    assert result.sentences[1].status is None
    sample = RadFact(judge=judge, on_failure="not-entailed").score(*reports).samples[0]
    assert (sample.failure, sample.scores["logical_precision"]) == (None, 0.5)


@pytest.mark.parametrize("options", CASES["invalid options"])
def test_an_invalid_option_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(InputError) as error:
        RadFact(**{"judge": Oracle(verbatim), **options})
    assert error.value.field == next(iter(options))


ROW = CASES["row"]


@pytest.mark.parametrize(
    ("reports", "error"),
    [
        *CASES["refused"],
        ([[Pair("1", [], []), Pair("1", [], [])]], "[1].sample_id: duplicate"),
        ([texts("a"), texts("a")], "0.candidate: invalid-value"),
    ],
)
def test_invalid_lists_of_reports_are_refused(reports: list[Any], error: str) -> None:
    with raises(error):
        RadFact(judge=Oracle(verbatim)).score(*reports)


@pytest.mark.parametrize(
    "reports",
    [
        ([ROW],),
        ([[{"text": "a"}]], [[{"text": "a"}, {"text": "b"}]]),
        ([Pair("1", [{"text": "a"}], texts("a", "b"))],),  # type: ignore[list-item]
        ([{**ROW, "prediction": "a"}],),
        (pd.DataFrame([{"id": 1, "candidate": "a", "reference": "a b", "patient_id": 7.0}]),),
        (pd.DataFrame([{"id": 1, "candidate": "a", "reference": "a b", "patient_id": math.nan}]),),
        ([{**ROW, "example_id": np.int64(1), "patient_id": np.int64(7)}],),
        ([Pair(np.int64(1), texts("a"), texts("a", "b"))],),  # type: ignore[arg-type]
    ],
)
def test_objects_of_the_published_layout_are_reports(reports: tuple[Any, ...]) -> None:
    result = RadFact(judge=Oracle(verbatim), splitter=str.split).score(*reports)
    assert (result.scores["logical_precision"], result.scores["logical_recall"]) == (1.0, 0.5)


def test_objects_are_read_as_a_file_with_them(tmp_path: Path) -> None:
    rows = [{**ROW, "example_id": str(i), "patient_id": "p"} for i in range(3)]
    (tmp_path / "pairs.json").write_text(json.dumps(rows))
    metric = RadFact(judge=Oracle(verbatim))
    assert metric.score(rows).summaries == metric.score(read_pairs(tmp_path / "pairs.json")).summaries
    assert metric.score(rows).resampling.by == "patient_id"


def test_a_result_is_shown_as_one_line_and_as_a_table() -> None:
    judge = Oracle(verbatim)
    judge.name = "<script>"
    result = RadFact(judge=judge).score([texts("a"), texts("b")], [texts("a"), texts("a")])
    assert repr(result) == "EvaluationResult(2 samples: logical_f1 0.500)"
    table = cast(Any, result)._repr_html_()
    rows = re.findall(r"<tr><td>(\w+) ↑</td><td>([\d.]+)</td><td>([\d.]+ to [\d.]+)</td><td>(\d+)</td></tr>", table)
    assert ("logical_precision", "0.500", "0.000 to 1.000", "2") in rows
    assert "spatial" not in table
    assert "radfact: &lt;script&gt;" in table
    assert "<script>" not in table


def test_sentences_as_a_dataframe(monkeypatch: pytest.MonkeyPatch) -> None:
    result = RadFact(Oracle(verbatim)).score([Pair("x", [located("a", LEFT)], texts("a", "b"))])
    frame = result.to_dataframe("sentences")
    assert frame["text"].tolist() == ["a", "a", "b"]
    assert frame.query("side == 'reference'")["status"].tolist() == ["entailment", "not_entailment"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pandas"):
        result.to_dataframe()


class Held(Oracle):
    def __init__(self) -> None:
        super().__init__(verbatim)
        self.started, self.released, self.done = threading.Event(), threading.Event(), threading.Event()

    def judge(self, queries: Sequence[EntailmentQuery]) -> list[Result]:
        self.started.set()
        self.released.wait(10)
        self.done.set()
        return super().judge(queries)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_ascore_equals_score_without_blocking_the_event_loop_and_can_be_cancelled(is_cancelled: bool) -> None:
    judge, pairs = Held(), [Pair("1", texts("a", "b"), texts("a"))]

    async def score_and_release() -> None:
        scoring = asyncio.create_task(RadFact(judge).ascore(pairs))
        # Only a running event loop can release the judge.
        await asyncio.to_thread(judge.started.wait, 10)
        if is_cancelled:
            scoring.cancel()
            with pytest.raises(asyncio.CancelledError):
                await scoring
            return
        judge.released.set()
        assert (await scoring).summaries == RadFact(Oracle(verbatim)).score(pairs).summaries
        with pytest.raises(InputError):
            await RadFact(judge).ascore([texts("a")], [])

    asyncio.run(score_and_release())
    assert judge.done.is_set() != is_cancelled
    judge.released.set()
