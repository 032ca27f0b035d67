"""Reports with dropped inputs: prompts, scored studies and the table of runs."""

import csv
import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from draft_files import read_rows
from error_checks import raises, raises_code
from hypothesis import given
from hypothesis import strategies as st
from maira_command import maira

from maira.data.manifest import read_manifest, write_manifest
from maira.data.study import Study
from maira.evaluate import experiments as module
from maira.evaluate.comparison import COMPLETION, compare, reference_scores, tables_of, write_comparison
from maira.evaluate.experiments import COMPARISON_MENTIONS, LATERAL_MENTIONS, Experiment, select_studies, without_inputs
from maira.model.prompts import render
from maira.model.task_examples import INPUTS, Input, drop_inputs, has_inputs, make_example, parse_inputs
from radfact.api import evaluate
from radfact.errors import ErrorCode
from radfact.io.jsonl import write_jsonl
from radfact.llm import ChatClient, mock_client
from radfact.records import Pair, Sentence
from radfact.results.compare import Comparison

CASES = yaml.safe_load(Path(__file__).with_name("experiments.yaml").read_text("utf-8"))
FULL = Study.model_validate(CASES["study"])

some_inputs = st.lists(st.sampled_from(INPUTS), unique=True)


@given(dropped=some_inputs)
def test_a_prompt_shows_exactly_the_inputs_not_dropped(dropped: list[Input]) -> None:
    study = drop_inputs(FULL, dropped)
    assert {name for name in INPUTS if not has_inputs(study, [name])} == set(dropped)
    example = make_example(study, "findings")
    prompt = render(example.messages)
    images = {"f.png": True, "l.png": "lateral" not in dropped, "p.png": "prior" not in dropped}
    assert sorted(map(str, example.images)) == [name for name, is_shown in images.items() if is_shown]
    for name, texts in CASES["shown"].items():
        for text in texts:
            assert (text in prompt) == (name not in dropped)


@pytest.mark.parametrize("text", ["priors", "prior+", "", "prior,lateral"])
def test_an_unknown_input_is_refused_with_the_known_ones(text: str) -> None:
    with raises_code(ErrorCode.UNKNOWN_NAME):
        parse_inputs(text)


def test_equal_input_sets_are_one_run(tmp_path: Path) -> None:
    runs = without_inputs(tmp_path, ["comparison+prior", "prior", "prior+comparison"])
    assert [run.name for run in runs] == ["all-inputs", "no-prior+comparison", "no-prior"]


def _studies() -> list[Study]:
    return [
        FULL,
        FULL.model_copy(update={"sample_id": "b", "comparison": None}),
        FULL.model_copy(update={"sample_id": "c", "prior_frontal": None}),
        FULL.model_copy(update={"sample_id": "d", "findings": None}),
    ]


@pytest.mark.parametrize(
    ("subset", "chosen", "without_input"),
    [("all", "abc", 0), ("with-input", "a", 2), ("prior", "ab", 1), ("lateral", "abc", 0)],
)
def test_a_subset_holds_the_studies_with_its_inputs_and_a_reference(
    subset: str, chosen: str, without_input: int, tmp_path: Path
) -> None:
    experiments = without_inputs(tmp_path, ["prior", "comparison"])
    selected, description = select_studies(_studies(), "findings", subset, experiments)
    assert "".join(study.sample_id for study in selected) == chosen
    reasons = [f"{without_input} without an input of the subset"] if without_input else []
    skipped = ", ".join([*reasons, "1 without a reference report"])
    assert description == f"{len(chosen)} studies; skipped: {skipped}."
    with raises("empty-input"):
        select_studies(_studies()[3:], "findings", subset, experiments)


def test_the_reference_is_that_of_the_task(tmp_path: Path) -> None:
    runs = without_inputs(tmp_path, ["prior"])
    for task, reference in (("findings", "Clear."), ("grounded", [Sentence(text="Clear.")])):
        ((study,), _) = select_studies([FULL], task, "all", runs)  # type: ignore[arg-type]
        references = (study.findings, study.grounded_findings)
        assert [candidate for candidate in references if candidate is not None] == [reference]


def _scored(folder: Path, model: ChatClient | None = None) -> Experiment:
    """Return an experiment with the results of some metrics."""
    experiment = Experiment(folder, () if folder.name == "all-inputs" else ("prior",))
    texts = ["Two views, unchanged.", "Clear." if experiment.dropped else "Two views.", "Clear.", "Clear.", "Clear."]
    pairs = [Pair(f"s{i}", text, "Clear.") for i, text in enumerate(texts)]
    metrics = ["radfact", LATERAL_MENTIONS, "bleu_1", "radgraph", COMPARISON_MENTIONS]
    evaluate(pairs, metrics, judge="offline", model=model, bootstrap=50, seed=1, out=experiment.results)
    return experiment


@pytest.fixture
def experiments(tmp_path: Path) -> list[Experiment]:
    return [_scored(tmp_path / name) for name in ("all-inputs", "no-prior")]


def test_a_row_is_over_the_same_samples(experiments: list[Experiment], tmp_path: Path) -> None:
    path = experiments[1].results / "samples.jsonl"
    rows = read_rows(path)
    write_jsonl(path, [rows[0] | {"lateral_mentions": None}, *rows[1:]])
    table = compare(experiments, experiments[0])
    contrast = table.scores[LATERAL_MENTIONS][1]
    # Without the first sample, which mentions a view in both, the base has 1 of 4 and not 2 of 5.
    assert (contrast.baseline.point, contrast.paired.point, contrast.difference.point) == (0.25, 0.0, -0.25)
    assert {contrast.baseline.n, contrast.paired.n, contrast.difference.n, contrast.summary.n} == {4}
    page = _page(table, experiments, tmp_path)
    values = "0.400 [0.000, 0.800] | 0.000 [0.000, 0.000]"
    assert f"| lateral_mentions | {values} | -0.250 [-0.500, +0.000] | 4 | 1.0000 | 1.0000 |" in page


def test_the_base_is_first_and_without_it_there_are_no_differences(experiments: list[Experiment]) -> None:
    assert list(compare(experiments[::-1], experiments[0]).systems) == ["all-inputs", "no-prior"]
    table = compare(experiments)
    assert table.scores[LATERAL_MENTIONS][1].difference is None
    assert (list(tables_of(table)), table.tests) == (["Each experiment by itself"], 0)
    assert list(tables_of(compare(experiments[:1], experiments[0]))) == ["Each experiment by itself"]


def test_box_completions_are_compared_by_sentence(experiments: list[Experiment]) -> None:
    for experiment, overlaps in zip(experiments, ((0.5, 0.7, None), (0.5, 0.5, 0.9)), strict=True):
        scores = [dict.fromkeys(("precision", "recall", "iou"), iou) for iou in overlaps]
        write_jsonl(experiment.boxes, [{"sample_id": "s0", "index": n, **own} for n, own in enumerate(scores)])
    contrast = compare(experiments, experiments[0]).scores[f"{COMPLETION}iou"][1]
    assert (contrast.difference.point, contrast.difference.n) == (pytest.approx(-0.1), 2)
    assert contrast.p is not None


def test_a_language_model_detects_mentions_of_comparison(tmp_path: Path) -> None:
    model = mock_client(lambda text: "yes" if "unchanged" in text else "no", name="reader")
    experiments = [_scored(tmp_path / name, model) for name in ("all-inputs", "no-prior")]
    table = compare(experiments, experiments[0])
    contrast = table.scores[COMPARISON_MENTIONS][1]
    assert contrast.summary.point == pytest.approx(0.2)
    assert contrast.difference.point == 0
    assert reference_scores(experiments[0])[COMPARISON_MENTIONS] == 0
    assert any(note.startswith(f"{COMPARISON_MENTIONS}: share of reports") for note in table.notes)


def test_scores_are_compared_where_they_have_values(experiments: list[Experiment]) -> None:
    table = compare(experiments, experiments[0])
    assert {"logical_f1", LATERAL_MENTIONS, "bleu_1"} <= table.scores.keys()
    omitted = ("grounding_", "spatial_", COMPLETION)
    assert not any(name.startswith(omitted) or "_reference" in name for name in table.scores)
    # A pooled score comes from the counts, a rate from the samples.
    for name in ("bleu_1", LATERAL_MENTIONS):
        base, without = table.scores[name]
        assert without.difference.point == pytest.approx(without.paired.point - without.baseline.point)
        assert without.difference.point != 0
        assert without.difference.low is not None
    assert (base.summary.point, without.difference.point) == (pytest.approx(0.4), pytest.approx(-0.2))
    assert without.summary.direction == without.difference.direction == "neutral"
    assert reference_scores(experiments[0])[LATERAL_MENTIONS] == 0
    notes = "\n".join(table.notes)
    assert "Not in the table: radgraph (needs weights: radfact weights fetch radgraph, or" in notes
    assert "Not in the table: comparison_mentions (needs a language model" in notes


def _page(table: Comparison, experiments: list[Experiment], folder: Path) -> str:
    write_comparison(table, experiments, folder / "table", "Inputs", {"task": "findings"})
    return (folder / "table.md").read_text()


def test_a_chart_has_a_row_per_score_and_needs_matplotlib(
    experiments: list[Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = compare(experiments, experiments[0])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = _page(table, experiments, tmp_path)
    assert "Without plots: needs the package matplotlib" in page
    assert "![" not in page
    monkeypatch.undo()
    assert "![One row per score](table.png)" in _page(table, experiments, tmp_path)
    chart = (tmp_path / "table.svg").read_text()
    names = ["Logical precision ↑", "Logical recall ↑", "Logical F1 ↑", "Lateral mentions", "reference reports"]
    assert all(f"<!-- {name} -->" in chart for name in names)
    assert "implied" not in chart


def test_the_table_is_written_in_three_forms(experiments: list[Experiment], tmp_path: Path) -> None:
    table = compare(experiments, experiments[0])
    page = _page(table, experiments, tmp_path)
    record = json.loads((tmp_path / "table.json").read_text())
    assert record["experiments"]["no-prior"]["dropped"] == ["prior"]
    with (tmp_path / "table.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == 2 * len(table.scores)
    for row in rows:
        contrast = record["experiments"][row["system"]]["scores"][row["score"]]
        assert float(row["own_point"]) == contrast["summary"]["point"]
        if row["system"] == "no-prior":
            assert float(row["difference"]) == contrast["difference"]["point"]
            assert (int(row["n"]), float(row["p"])) == (contrast["difference"]["n"], contrast["p"])
    assert "## no-prior compared with all-inputs\n\n| Score | all-inputs | no-prior |" in page
    assert "Judge: offline." in page


def test_presets_and_variants_of_a_configuration_apply_to_metrics(tmp_path: Path) -> None:
    config = tmp_path / "judge.yaml"
    config.write_text("judge: offline\nmetrics: bleu\ncompat: [coco, exact]\ngrounded: true\nrepeat: 2\nprice: 1,2\n")
    scoring = module.read_scoring(tmp_path / "manifest.jsonl", config)
    assert (scoring.inputs.narrative, scoring.metrics["repeat"]) == (False, 2)
    assert (scoring.metrics["compat"], scoring.metrics["radfact"]["compat"]) == (("coco", "exact"), "paper")
    scoring = module.read_scoring(tmp_path / "manifest.jsonl", judge="offline", metrics="rexrank")
    assert {"bleu_2", "radcliq_v1"} <= set(scoring.metrics["metrics"])
    assert scoring.metrics["compat"] == ("rexrank", "inverse")


@pytest.fixture
def arguments(checkpoint: Path, phantoms: Path, tmp_path: Path) -> list[str]:
    """Four phantoms, two with a prior, of which one has no reference report."""
    studies = read_manifest(phantoms)
    priors = [study for study in studies if study.prior_frontal is not None][:2]
    others = [study for study in studies if study.prior_frontal is None][:2]
    others[1] = others[1].model_copy(update={"grounded_findings": None, "findings": None})
    write_manifest(tmp_path / "set.jsonl", [*priors, *others])
    return [
        *("evaluate", "inputs", "--checkpoint", str(checkpoint), "--manifest", str(tmp_path / "set.jsonl")),
        *("--task", "grounded", "--drop", "prior", "--max-new-tokens", "12", "--out", str(tmp_path / "out")),
    ]


@pytest.mark.slow
def test_the_command_drafts_scores_and_compares_and_scores_existing_drafts_again(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    output = maira(*arguments, "--drop", "lateral", "--judge", "offline").output
    assert "3 studies; skipped: 1 without a reference report." in output
    for run in ("all-inputs", "no-prior", "no-lateral"):
        assert output.count(f"{run}: 3 studies scored: {tmp_path / 'out' / run / 'results'}\n") == 1
        assert len((tmp_path / "out" / run / "drafts.jsonl").read_text().splitlines()) == 3
        assert (tmp_path / "out" / run / "results" / "report.html").is_file()
    settings = json.loads((tmp_path / "out" / "no-prior" / "drafts.run.json").read_text())
    assert settings["drop"] == ["prior"]
    record = json.loads((tmp_path / "out" / "table.json").read_text())
    scores = record["experiments"]["no-prior"]["scores"]
    assert all(scores[name]["difference"]["n"] for name in ("logical_f1", "rouge_l", "bleu_4"))
    for name in ("meteor", "chexbert", "radgraph", "radcliq"):
        assert output.count(f"Not in the table: {name} (needs weights: ") == 1
    assert max(len(line) for line in output.splitlines() if "─" in line) <= 80
    assert len(re.findall(r"logical_f1\b", output)) >= 3
    (tmp_path / "strict.py").write_text("def judge(premises, hypothesis):\n    return hypothesis in premises\n")
    (tmp_path / "judge.yaml").write_text("judge: python:strict:judge\nbootstrap: 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delattr("maira.generate.drafts.start_engine")
    maira(*arguments, "--score-config", tmp_path / "judge.yaml")
    assert "Judge: python:strict:judge." in (tmp_path / "out" / "table.md").read_text()
    scores = json.loads((tmp_path / "out" / "table.json").read_text())["experiments"]["no-prior"]["scores"]
    assert scores[LATERAL_MENTIONS]["difference"]["low"] is None
    assert scores[LATERAL_MENTIONS]["difference"]["point"] is not None


def test_only_named_metrics_are_computed_and_required(arguments: list[str], tmp_path: Path) -> None:
    options = ("--judge", "offline", "--metrics", "rouge_l,radfact,rg_er", "--weights", tmp_path)
    result = maira(*arguments, *options, code=3)
    assert "skipped: all-inputs: radgraph: needs weights: radfact weights fetch radgraph, or" in result.output
    scores = json.loads((tmp_path / "out" / "table.json").read_text())["experiments"]["no-prior"]["scores"]
    assert [name for name in scores if not re.search("_(precision|recall|f1)", name)] == [LATERAL_MENTIONS, "rouge_l"]


def test_options_of_scoring_are_checked_before_drafting(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RADFACT_JUDGE", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("judge.yaml").write_text("judge: offline\nmetrics: bleu\ncompat: cocoa\n")
    for options, error in CASES["refused scoring"]:
        with raises(error):
            maira(*arguments, *options.split())
        assert not (tmp_path / "out" / "all-inputs").exists()


def test_failed_studies_are_reported_per_run(arguments: list[str], tmp_path: Path) -> None:
    manifest = tmp_path / "set.jsonl"
    first, *others = read_manifest(manifest)
    write_manifest(manifest, [first.model_copy(update={"prior_frontal": tmp_path / "none.png"}), *others])
    result = maira(*arguments, "--judge", "offline", code=3)
    assert f"skipped: all-inputs: {first.sample_id}" in result.output
    assert f"skipped: no-prior: {first.sample_id}" not in result.output
    record = json.loads((tmp_path / "out" / "table.json").read_text())
    assert record["experiments"]["no-prior"]["scores"]["logical_precision"]["difference"]["n"] == 2
