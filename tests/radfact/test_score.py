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

import pytest
from error_checks import raises
from hypothesis import given
from hypothesis import strategies as st

from radfact.api import RadFact
from radfact.errors import InputError
from radfact.io.pairs import read_pairs
from radfact.judges import EntailmentQuery, Failure, Verdict, load_judge
from radfact.judges.offline import OfflineJudge
from radfact.metrics.radfact.scores import SCORES, SentenceScore
from radfact.records import Box, Pair, Pairs, Report, Sentence
from radfact.results.evaluation import SampleScore

Result = Verdict | Failure
NO = Verdict("not_entailment")
LEFT, RIGHT = (0.5, 0.0, 1.0, 1.0), (0.0, 0.0, 0.5, 1.0)


class Oracle:
    """A judge that calls a function and records the queries."""

    name = "oracle"

    def __init__(self, verdict: Callable[[EntailmentQuery], Result]) -> None:
        self.verdict = verdict
        self.calls: list[list[EntailmentQuery]] = []

    def judge(self, queries: Sequence[EntailmentQuery]) -> list[Result]:
        self.calls.append(list(queries))
        return [self.verdict(query) for query in queries]

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}

    def usage(self) -> dict[str, int]:
        return {"calls": len(self.calls)}


def judge_of(table: Mapping[str, Result]) -> Oracle:
    """Return a judge with a verdict per hypothesis; hypotheses outside the table are not entailed."""
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


def sides(rows: Sequence[SentenceScore], side: str) -> list[SentenceScore]:
    return [row for row in rows if row.side == side]


def test_scores_are_the_quotients_of_the_definition() -> None:
    # Candidate: a is entailed in place, b entailed elsewhere, c located but not entailed, d entailed without boxes.
    candidate: Report = [located("a", LEFT), located("b", LEFT), located("c", LEFT), *texts("d")]
    reference: Report = [located("w", LEFT), located("x", RIGHT), *texts("y")]
    judge = judge_of({"a": yes(0), "b": yes(1), "d": yes(2), "w": yes(0)})
    scores = only(judge, candidate, reference).scores
    assert {name: scores[name] for name in SCORES} == pytest.approx(
        {
            "logical_precision": 3 / 4,
            "logical_recall": 1 / 3,
            "logical_f1": 2 * (3 / 4) * (1 / 3) / (3 / 4 + 1 / 3),
            "grounding_precision": 1 / 2,
            "grounding_recall": 1.0,
            "grounding_f1": 2 / 3,
            "spatial_precision": 1 / 3,
            "spatial_recall": 1 / 2,
            "spatial_f1": 2 / 5,
        }
    )


def policies(judge: Any, candidate: Report, reference: Report) -> dict[str, float | None]:
    """Return the precisions by policy; None = no value."""
    scores = only(judge, candidate, reference).scores
    values = {policy: scores[f"logical_precision_{policy}"] for policy in POLICIES}
    return {policy: None if math.isnan(value) else value for policy, value in values.items()}


POLICIES = ("positive", "negative", "implied")
NEGATIVES = ("No pneumothorax.", "Heart size is normal.", "No nodule.")


def test_policies_of_absence_select_sentences_or_imply_them() -> None:
    candidate = texts("Left effusion.", "Right effusion and no mass.", "The heart is unchanged.", *NEGATIVES)
    judge = judge_of(
        {
            "Left effusion.": yes(0),
            "No pneumothorax.": yes(0),
            "Heart size is normal.": Verdict("not_entailment", relation="neutral"),
            "No nodule.": Verdict("not_entailment", (0,), relation="contradiction"),
        }
    )
    # By hand: 1 of 2 findings, 1 of 3 absences, and of all 6 the two entailed and the one that is not contradicted.
    assert policies(judge, candidate, texts("x")) == pytest.approx(
        {"positive": 1 / 2, "negative": 1 / 3, "implied": 1 / 2}
    )


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (texts("Left effusion."), {"positive": 0.0, "negative": None, "implied": 0.0}),
        (texts("No nodule."), {"positive": None, "negative": 0.0, "implied": None}),
        (texts("The heart is unchanged."), {"positive": None, "negative": None, "implied": 0.0}),
    ],
)
def test_what_a_judge_does_not_tell_or_a_report_does_not_have_is_unknown(
    candidate: Report, expected: dict[str, float | None]
) -> None:
    assert policies(judge_of({}), candidate, texts("x")) == expected


def test_an_empty_report_implies_nothing() -> None:
    assert policies(judge_of({}), texts("No nodule."), []) == {"positive": None, "negative": 0.0, "implied": 0.0}


def test_the_f1_of_a_policy_has_an_interval_of_its_own() -> None:
    result = RadFact(judge=OfflineJudge(), bootstrap=20).score(["No nodule.", "Mass."], ["No nodule.", "No mass."])
    scores = result.summaries
    assert [scores[f"logical_f1_{policy}"].point for policy in POLICIES] == [None, 2 / 3, 0.5]
    assert scores["logical_f1_implied"].low is not None
    assert "judgments_without_relation" not in result.counts


@pytest.mark.parametrize(
    ("compat", "evidence", "spatial"), [("paper", (0,), "not_entailed"), ("exact", (0, 1), "entailed")]
)
def test_duplicate_evidence_means_the_first_or_all_occurrences(
    compat: Any, evidence: tuple[int, ...], spatial: str
) -> None:
    reference: Report = [located("Nodule.", RIGHT), located("nodule", LEFT)]
    judge = judge_of({"a": yes(1)})
    row = RadFact(judge=judge, compat=compat, bootstrap=0).score([[located("a", LEFT)]], [reference]).sentences[0]
    assert (row.evidence, row.spatial) == (evidence, spatial)


def test_a_duplicate_sentence_is_judged_once_and_counted_twice() -> None:
    judge = judge_of({"a": yes(0)})
    sample = only(judge, texts("a", "A.", "b"), texts("x"))
    assert [query.hypothesis for query in judge.calls[0] if query.premises == ("x",)] == ["a", "b"]
    assert sample.scores["logical_precision"] == 2 / 3


def test_sentences_with_different_regions_are_judged_separately() -> None:
    judge = judge_of({"A 1-2 mm nodule.": yes(0)})
    sample = only(judge, texts("A 1-2 mm nodule.", "A 12 mm nodule."), texts("A nodule of 1-2 mm."))
    assert sample.scores["logical_precision"] == 1 / 2


@given(
    reports=st.lists(st.tuples(*[st.lists(st.sampled_from(["a", "b", "c"]), max_size=3)] * 2), min_size=1, max_size=6)
)
def test_a_dataset_is_one_call_without_duplicates_sorted_by_premises(
    reports: list[tuple[list[str], list[str]]],
) -> None:
    judge = Oracle(verbatim)
    RadFact(judge=judge, bootstrap=0).score([Pair(str(i), texts(*a), texts(*b)) for i, (a, b) in enumerate(reports)])
    queries = [query for call in judge.calls for query in call]
    groups = [premises for premises, _ in groupby(queries, key=lambda query: query.premises)]
    assert len(judge.calls) <= 1
    assert len(queries) == len(set(queries))
    assert len(groups) == len(set(groups))


@given(
    pairs=st.lists(
        st.tuples(*[st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=4)] * 2),
        min_size=1,
        max_size=5,
    )
)
def test_swapping_candidate_and_reference_swaps_precision_and_recall(pairs: list[tuple[list[str], list[str]]]) -> None:
    candidates, references = ([texts(*reports) for reports in side] for side in zip(*pairs, strict=True))
    metric = RadFact(judge=Oracle(verbatim), bootstrap=0)
    scores, swapped = metric.score(candidates, references).summaries, metric.score(references, candidates).summaries
    assert scores["logical_precision"] == swapped["logical_recall"]
    assert scores["logical_f1"] == swapped["logical_f1"]


def test_a_report_against_itself_is_perfect() -> None:
    report: Report = [located("a", LEFT), located("b", RIGHT), *texts("c")]
    scores = RadFact(judge=Oracle(verbatim)).score([report], [report]).summaries
    intervals = {name: (scores[name].low, scores[name].point, scores[name].high) for name in SCORES}
    assert intervals == dict.fromkeys(SCORES, (1.0, 1.0, 1.0))


@pytest.mark.parametrize("empty", [[], ""])
def test_an_empty_report_entails_nothing_without_a_query(empty: Report) -> None:
    judge = Oracle(verbatim)
    scores = only(judge, empty, texts("a", "b")).scores
    assert judge.calls == []
    assert math.isnan(scores["logical_precision"])
    assert scores["logical_recall"] == 0.0


def test_narratives_are_split_and_have_no_spatial_scores() -> None:
    metric = RadFact(judge=Oracle(verbatim), bootstrap=10, splitter=lambda text: text.split("; "))
    result = metric.score(["a; b", ""], [[located("a", LEFT)], "c"])
    assert result.counts["candidate_sentences"] == 2
    assert result.samples[0].scores["logical_precision"] == 0.5
    assert all(math.isnan(result.scores[name]) for name in SCORES if not name.startswith("logical"))


class Semicolons:
    """A splitter at semicolons that records its calls and fails on narratives with 'bad'."""

    name = "semicolons"

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def split(self, narratives: Sequence[str]) -> list[list[str] | Failure]:
        self.calls.append(list(narratives))
        return [Failure("no JSON") if "bad" in text else text.split("; ") for text in narratives]

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "mark": ";"}

    def usage(self) -> dict[str, int]:
        return {"calls": len(self.calls)}


def test_distinct_narratives_are_split_in_one_call() -> None:
    splitter = Semicolons()
    RadFact(Oracle(verbatim), bootstrap=0, splitter=splitter).score(["a; b", "a", ""], ["a", "a; b", texts("c")])
    assert splitter.calls == [["a; b", "a"]]


def test_the_result_has_the_splitter_and_its_usage() -> None:
    result = RadFact(Oracle(verbatim), bootstrap=0, splitter=Semicolons()).score(["a"], ["a"])
    assert result.splitter == {"name": "semicolons", "mark": ";"}
    assert result.usage == {"judge": {"calls": 1}, "splitter": {"calls": 1}}


def test_usage_of_earlier_runs_is_not_counted() -> None:
    scorer = RadFact(Oracle(verbatim), bootstrap=0, splitter=Semicolons())
    first, second = (scorer.score([word], [word]).usage for word in "ab")
    assert first == second == {"judge": {"calls": 1}, "splitter": {"calls": 1}}


def test_without_narratives_the_result_has_no_splitter() -> None:
    result = RadFact(Oracle(verbatim), bootstrap=0, splitter=Semicolons()).score([texts("a")], [texts("a")])
    assert (result.splitter, list(result.usage)) == (None, ["judge"])


def test_the_default_splitter_is_offline() -> None:
    result = RadFact(Oracle(verbatim), bootstrap=0).score(["There is a nodule. No effusion."], ["No effusion."])
    assert result.splitter is not None
    assert result.splitter["name"] == "offline"
    assert result.counts["candidate_sentences"] == 2


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


def test_a_failed_split_may_stop_the_run_before_the_judge_is_queried() -> None:
    judge = Oracle(verbatim)
    with raises("judge-failed"):
        RadFact(judge, splitter=Semicolons(), on_failure="stop").score(["bad"], ["a"])
    assert judge.calls == []


def test_a_splitter_with_missing_results_stops_the_run() -> None:
    class Lossy(Semicolons):
        def split(self, narratives: Sequence[str]) -> list[list[str] | Failure]:
            return super().split(narratives)[1:]

    with raises("invalid-plugin"):
        RadFact(Oracle(verbatim), splitter=Lossy()).score(["a"], ["b"])


def test_an_exception_of_a_splitter_function_fails_its_narrative() -> None:
    def fussy(_: str) -> list[str]:
        raise ValueError("no verb")

    result = RadFact(Oracle(verbatim), splitter=fussy).score(["a"], [texts("b")])
    assert "fussy: ValueError: no verb" in str(result.samples[0].failure)


def test_a_function_may_be_the_judge() -> None:
    result = RadFact(lambda premises, hypothesis: hypothesis in premises).score([texts("a", "b")], [texts("a")])
    assert result.samples[0].scores["logical_precision"] == 0.5


def test_references_without_a_candidate_are_excluded() -> None:
    pairs = Pairs(
        (Pair("a", texts("x"), texts("x")),), read=3, without_candidate=dict.fromkeys("bc", "no candidate report")
    )
    result = RadFact(Oracle(verbatim)).score(pairs)
    assert [(sample.sample_id, sample.failure) for sample in result.samples] == [
        ("a", None),
        ("b", "no candidate report"),
        ("c", "no candidate report"),
    ]
    assert (result.scores["logical_f1"], result.summaries["logical_f1"].n, result.counts["excluded"]) == (1, 1, 2)


def test_scores_and_intervals_use_judged_samples_only() -> None:
    pairs = tuple(Pair(name, texts("a", name), texts("a")) for name in "abcdef")
    metric = RadFact(Oracle(verbatim), splitter=Semicolons())
    unsplit = Pair("bad", "bad", "a")
    assert (
        metric.score(Pairs((unsplit, *pairs), read=8, without_candidate={"x": "none"})).summaries
        == metric.score(pairs).summaries
    )


def failing(query: EntailmentQuery) -> Result:
    return Failure("no YAML") if query.hypothesis == "bad" else verbatim(query)


ODD_VERDICTS: Sequence[Any] = (
    ("entailment", ["a"]),
    ("entailment", "a"),
    ("entailment", 0),
    ("entailment", (0.0,)),
    ("entailment", (False,)),
    ("entailment", None),
    ("not_entailment", None),
    ("not_entailment", ""),
)
INVALID: Sequence[Callable[[EntailmentQuery], Result]] = (
    failing,
    lambda query: Verdict("entailment") if query.hypothesis == "bad" else verbatim(query),
    lambda query: yes(5) if query.hypothesis == "bad" else verbatim(query),
    lambda query: Verdict(cast("Any", "entailed"), (0,)) if query.hypothesis == "bad" else verbatim(query),
    lambda query: cast("Any", None) if query.hypothesis == "bad" else verbatim(query),
    *(lambda query, odd=odd: Verdict(*odd) if query.hypothesis == "bad" else verbatim(query) for odd in ODD_VERDICTS),
)


@pytest.mark.parametrize("answer", INVALID)
def test_a_failed_judgment_excludes_its_sample(answer: Callable[[EntailmentQuery], Result]) -> None:
    result = RadFact(judge=Oracle(answer)).score([texts("a", "bad"), texts("a")], [texts("a"), texts("a")])
    excluded, scored = result.samples
    assert excluded.failure
    assert all(math.isnan(value) for value in excluded.scores.values())
    assert scored.failure is None
    assert (result.scores["logical_precision"], result.summaries["logical_precision"].n) == (1.0, 1)
    assert (result.counts["excluded"], result.counts["failed_judgments"]) == (1, 1)
    assert result.sentences[1].status is None


def test_a_failed_judgment_may_count_as_not_entailed() -> None:
    sample = only(Oracle(failing), texts("a", "bad"), texts("a"), on_failure="not-entailed")
    assert (sample.failure, sample.scores["logical_precision"]) == (None, 0.5)


def test_a_failed_judgment_may_stop_the_run() -> None:
    with raises("judge-failed"):
        only(Oracle(failing), texts("a", "bad"), texts("a"), on_failure="stop")


def test_a_judge_with_missing_verdicts_stops_the_run() -> None:
    class Lossy(Oracle):
        def judge(self, queries: Sequence[EntailmentQuery]) -> list[Result]:
            return super().judge(queries)[1:]

    with raises("judge-failed"):
        only(Lossy(verbatim), texts("a"), texts("b"))


def test_sentences_have_the_order_of_their_reports() -> None:
    result = RadFact(judge=Oracle(verbatim), bootstrap=0).score([texts("b", "a")], [texts("a", "c")])
    assert [(row.side, row.index, row.text, row.status) for row in result.sentences] == [
        ("candidate", 0, "b", "not_entailment"),
        ("candidate", 1, "a", "entailment"),
        ("reference", 0, "a", "entailment"),
        ("reference", 1, "c", "not_entailment"),
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"compat": "papre"},
        {"on_failure": "ignore"},
        {"threshold": 1.5},
        {"threshold": math.nan},
        {"bootstrap": -1},
        {"seed": -1},
        {"judge": "ofline"},
        {"judge": 3},
        {"splitter": "ofline"},
        {"base_url": "http://127.0.0.1/v1"},
        {"thresold": 0.5, "judge": "offline"},
    ],
)
def test_an_invalid_option_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(InputError) as error:
        RadFact(**{"judge": Oracle(verbatim), **options})
    assert error.value.field == next(iter(options))


REPORT = texts("a")
ROW = {"example_id": "1", "prediction": [{"text": "a", "boxes": []}], "target": [{"text": "a"}, {"text": "b"}]}


@pytest.mark.parametrize(
    ("reports", "error"),
    [
        (([REPORT], [REPORT, REPORT]), "mismatch"),
        (([Pair("1", [], []), Pair("1", [], [])],), "sample_id: duplicate"),
        ((REPORT, REPORT), "0.candidate: invalid-value"),
        (([[{"txt": "a"}]],) * 2, "0.candidate[0].txt: unknown-field"),
        (([{"text": "a"}],) * 2, "0.candidate: invalid-value"),
        (([None], [None]), "0.candidate: invalid-value"),
        (([REPORT, 3],) * 2, "1.candidate: invalid-value"),
        (("a report", "a report"), "invalid-value"),
        (({"1": "a report"}, {"1": "a report"}), "invalid-value"),
        ((["a report"],), "invalid-value"),
        (([REPORT], 3), "invalid-value"),
        ((ROW,), "invalid-value"),
        (([ROW, 3],), "invalid-value"),
        (([ROW, ROW],), "[1].example_id: duplicate"),
        (([{"sample_id": "1", "report": "a"}],), "[0].example_id: missing-field"),
        (([{**ROW, "target": None}],), "[0].target: invalid-value"),
        (([{**ROW, "target": [{"text": "a", "boxes": [[0, 0, 1, 1]]}]}],), "[0].target[0].boxes[0]: invalid-value"),
    ],
)
def test_invalid_lists_of_reports_are_refused(reports: tuple[Any, ...], error: str) -> None:
    with raises(error):
        RadFact(judge=Oracle(verbatim)).score(*reports)


@pytest.mark.parametrize(
    "reports",
    [
        ([ROW],),
        ([[{"text": "a"}]], [[{"text": "a"}, {"text": "b"}]]),
        ([Pair("1", [{"text": "a"}], texts("a", "b"))],),  # type: ignore[list-item]
        ([{**ROW, "prediction": "a"}],),
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


def test_judge_and_splitter_by_name() -> None:
    reports = ["Small left effusion."], ["There is a small left effusion."]
    by_name = RadFact("offline", splitter="offline", bootstrap=0).score(*reports)
    assert by_name.summaries == RadFact(load_judge("offline"), bootstrap=0).score(*reports).summaries
    assert by_name.judge == OfflineJudge().describe()


def test_scores_are_numbers() -> None:
    result = RadFact("offline").score(["Small left effusion."], ["There is a small left effusion."])
    assert {type(value) for value in result.scores.values()} == {float}
    assert list(result.scores) == list(result.summaries)
    assert math.isnan(result.scores["spatial_f1"])


def test_a_result_is_shown_as_one_line_and_as_a_table() -> None:
    result = RadFact(judge=Oracle(verbatim)).score([texts("a"), texts("b")], [texts("a"), texts("a")])
    assert repr(result) == "EvaluationResult(2 samples: logical_f1 0.500)"
    table = cast(Any, result)._repr_html_()
    rows = re.findall(r"<tr><td>(\w+) ↑</td><td>([\d.]+)</td><td>([\d.]+ to [\d.]+)</td><td>(\d+)</td></tr>", table)
    assert ("logical_precision", "0.500", "0.000 to 1.000", "2") in rows
    assert "spatial" not in table
    assert "radfact: oracle" in table


def test_a_table_has_no_markup_of_names() -> None:
    judge = Oracle(verbatim)
    judge.name = "<script>"
    assert "<script>" not in cast(Any, RadFact(judge).score([texts("a")], [texts("a")]))._repr_html_()


def test_sentences_as_a_dataframe() -> None:
    pytest.importorskip("pandas")
    frame = (
        RadFact(Oracle(verbatim)).score([Pair("x", [located("a", LEFT)], texts("a", "b"))]).to_dataframe("sentences")
    )
    assert frame["text"].tolist() == ["a", "a", "b"]
    assert frame.query("side == 'reference'")["status"].tolist() == ["entailment", "not_entailment"]


def test_without_pandas_a_dataframe_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    result = RadFact(judge=Oracle(verbatim)).score([texts("a")], [texts("a")])
    with pytest.raises(ImportError, match="pandas"):
        result.to_dataframe()


def test_ascore_equals_score() -> None:
    metric = RadFact(Oracle(verbatim))
    pairs = [Pair("1", texts("a", "b"), texts("a"))]
    assert asyncio.run(metric.ascore(pairs)).summaries == metric.score(pairs).summaries
    with pytest.raises(InputError):
        asyncio.run(metric.ascore([texts("a")], []))


class Held(Oracle):
    """A judge that waits until it is released."""

    def __init__(self) -> None:
        super().__init__(verbatim)
        self.started, self.released, self.done = threading.Event(), threading.Event(), threading.Event()

    def judge(self, queries: Sequence[EntailmentQuery]) -> list[Result]:
        self.started.set()
        self.released.wait(10)
        self.done.set()
        return super().judge(queries)


def test_ascore_does_not_block_the_event_loop() -> None:
    judge = Held()

    async def score_and_release() -> float | None:
        scoring = asyncio.create_task(RadFact(judge).ascore([texts("a")], [texts("a")]))
        # Only a running event loop can release the judge.
        await asyncio.to_thread(judge.started.wait, 10)
        judge.released.set()
        return (await scoring).scores["logical_f1"]

    assert asyncio.run(score_and_release()) == 1.0


def test_ascore_can_be_cancelled() -> None:
    judge = Held()

    async def give_up() -> None:
        scoring = asyncio.create_task(RadFact(judge).ascore([texts("a")], [texts("a")]))
        await asyncio.to_thread(judge.started.wait, 10)
        scoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scoring

    asyncio.run(give_up())
    assert not judge.done.is_set()
    judge.released.set()
