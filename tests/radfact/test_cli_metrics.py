"""The commands evaluate, metrics, compare and green-summary."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from inspect import Parameter
from pathlib import Path
from typing import Literal, get_origin

import numpy as np
import pytest
import yaml
from chat_server import ChatServer
from green_responses import GreenResponse
from results_folder import page_data

from radfact.io.outputs import RECORD
from radfact.judges import load_judge
from radfact.metrics.registry import MetricEntry, entries
from radfact.results import green_summary
from radfact.results.green_summary import Embeddings

Run, Serve = Callable[..., tuple[int, str, str]], Callable[..., ChatServer]
CASES = yaml.safe_load(Path(__file__).with_name("score_options.yaml").read_text("utf-8"))
DOCS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


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


@pytest.mark.parametrize(("arguments", "location", "detail", "error_code"), CASES["refused metrics"])
def test_wrong_input_is_exit_code_2(run: Run, arguments: str, location: str, detail: str, error_code: str) -> None:
    judge = ("--judge", "openai:m", "--base-url", "http://127.0.0.1:9/v1")
    code, _, err = run("evaluate", "pairs.csv", *judge, "--out", "r", "--metrics", *arguments.split())
    assert (code, err.count("\n")) == (2, 1)
    assert {path.name for path in Path().glob("r/*")} <= {"cache", RECORD}
    assert err.startswith(f"radfact: {location}")
    assert err.endswith(f" [{error_code}]\n")
    assert detail in err


def test_the_green_summary_is_computed_by_its_command(run: Run, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path | None] = []

    def load_embedder(folder: Path | None = None) -> Callable[[Sequence[str]], Embeddings]:
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


def test_compare_counts_the_shared_samples(run: Run) -> None:
    run("evaluate", "pairs.csv", "--metrics", "rouge_l", "--out", "a")
    Path("pairs.csv").write_text(Path("pairs.csv").read_text().replace("Large heart.", "Edema.").replace("3,,", "4,,"))
    run("evaluate", "pairs.csv", "--metrics", "rouge_l", "--out", "b")
    code, out, _ = run("compare", "a", "b", "--rounds", "99", "--out", "c")
    assert code == 0
    (row,) = (line for line in out.splitlines() if line.startswith("│ a "))
    # Samples, shared, empty candidates, not scored.
    assert re.findall(r"\d+", row) == ["3", "2", "1", "0"]
    assert Path("c/comparison.html").is_file()
    assert run("compare", "a", "nowhere")[0] == 2


def test_the_documentation_has_every_metric_and_its_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = DOCS.read_text("utf-8")
    assert {name for name in entries() if f"`{name}`" not in text} == set()
    example = next(iter(re.findall(r"```python\n(.*?)```", text, re.S)))
    exec(compile(example, "metrics.md", "exec"), {})
    assert capsys.readouterr().out == "2.0\n"


def test_score_counts_samples_without_precision(run: Run) -> None:
    """An empty candidate and one that the splitter empties; a reference without sentences has no recall."""
    rows = ["1,Clear lungs.,Clear lungs.", "2,,Clear lungs.", "3,Recommend follow up.,Clear lungs.", "4,Edema.,"]
    Path("some.csv").write_text("\n".join(["example_id,prediction,target", *rows]))
    code, out, _ = run("score", "some.csv", "--judge", "offline", "--out", "s")
    assert code == 0
    text = " ".join(out.split())
    assert "4 of 4 samples scored, 2 of them have no candidate sentence (1 empty)" in text
    assert "1 of them have no reference sentence" in text
    counts = json.loads(Path("s/scores.json").read_text())["counts"]
    assert (counts["empty_candidates"], counts["candidates_without_sentences"]) == (1, 2)
