"""The commands evaluate, metrics and compare as a user meets them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from radfact.cli import main
from radfact.metrics.registry import entries

Run = Callable[..., tuple[int, str, str]]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.delenv("RADFACT_JUDGE", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    rows = ["1,The lungs are clear.,The lungs are clear.", "2,Large heart.,The heart is large.", "3,,Normal chest."]
    Path("pairs.csv").write_text("\n".join(["example_id,prediction,target", *rows, ""]))

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["radfact", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return command


def test_all_metrics_that_can_be_computed_are_and_the_others_say_why(run: Run) -> None:
    code, out, _ = run("evaluate", "pairs.csv", "--judge", "offline", "--out", "r")
    assert code == 0
    assert "logical_f1 ↑" in out
    assert "rouge_l ↑" in out
    assert "without chexbert: needs weights: --weights chexbert=FOLDER with chexbert.pth, vocab.txt" in out
    record = json.loads(Path("r/run.json").read_text())
    assert record["judge"]["name"] == "offline"
    assert record["input"]["files"] == ["pairs.csv"]
    assert record["options"]["metrics"] == "all"
    assert Path("r/report.html").is_file()


def test_a_named_metric_that_gives_nothing_is_exit_code_3(run: Run) -> None:
    assert run("evaluate", "pairs.csv", "--metrics", "rouge_l,chexbert", "--out", "r")[0] == 3


def test_without_a_judge_the_others_go_on_and_nothing_is_said_of_one_on_the_page(run: Run) -> None:
    assert run("evaluate", "pairs.csv", "--metrics", "rouge_l,bleu_4", "--out", "r")[0] == 0
    page = Path("r/report.html").read_text()
    assert "Judge:" not in page
    assert "ROUGE-L" in page
    assert "The lungs are clear." in page


def test_a_key_that_is_missing_is_said_in_one_line(run: Run) -> None:
    code, out, _ = run("evaluate", "pairs.csv", "--metrics", "rouge_l,green", "--judge", "openai:m", "--out", "r")
    assert code == 3
    assert any(line.startswith("without green:") and "OPENAI_API_KEY" in line for line in out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metrics", "bleu_5"], "--metrics: no metric and no figure is called 'bleu_5'"),
        (["--metrics", "green"], "no metric can be computed: green: needs a language model: --judge PROVIDER:MODEL"),
        (["--metrics", "nowhere:Metric"], "metric 'nowhere:Metric' cannot be loaded"),
        (["--weights", "lost"], "lost: --weights: no such folder"),
        (["--weights", "bleu=."], "no metric has weights of that name"),
        (["--metrics", ","], "no metric is named"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(run: Run, arguments: list[str], message: str) -> None:
    code, _, err = run("evaluate", "pairs.csv", *arguments, "--out", "r")
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not Path("r").exists()


def test_the_list_has_every_metric_with_its_status(run: Run) -> None:
    code, out, _ = run("metrics", "--judge", "offline")
    assert code == 0
    for name in entries():
        assert re.search(rf"^{name}: ", out, re.M)
    assert "radfact: ready" in out
    assert "rouge_l: ready" in out
    assert "green: needs a language model: --judge PROVIDER:MODEL instead of offline" in out


def test_systems_are_compared_and_the_shared_samples_counted(run: Run) -> None:
    run("evaluate", "pairs.csv", "--metrics", "rouge_l", "--out", "a")
    Path("pairs.csv").write_text(Path("pairs.csv").read_text().replace("Large heart.", "Edema.").replace("3,,", "4,,"))
    run("evaluate", "pairs.csv", "--metrics", "rouge_l", "--out", "b")
    code, out, _ = run("compare", "a", "b", "--rounds", "99", "--out", "c")
    assert code == 0
    assert "a: 3 samples, 2 shared" in out
    assert Path("c/comparison.html").is_file()
    assert run("compare", "a", "nowhere")[0] == 2


def test_the_documentation_has_every_metric_and_its_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = DOCS.read_text("utf-8")
    assert {name for name in entries() if f"`{name}`" not in text} == set()
    example = next(iter(re.findall(r"```python\n(.*?)```", text, re.S)))
    exec(compile(example, "metrics.md", "exec"), {})
    assert capsys.readouterr().out == "2.0\n"
