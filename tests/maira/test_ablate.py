"""Ablations: configs for the rows of the paper, the commands of each, and the table."""

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml
from error_checks import raises
from long_values import DATA
from maira_command import maira
from typer.testing import Result

from maira.data.manifest import read_manifest, write_manifest
from maira.evaluate import ablations
from maira.evaluate.ablations import differences_of, is_trained, plan_trials, read_configs
from maira.train.config.run_config import TrainConfig, read_train_config
from maira.train.config.run_folder import FORMAT, resume_fields
from maira.train.data.dataset import data_fingerprints
from radfact.errors import RunError
from radfact.io.jsonl import write_json

Ablate = Callable[..., Result]
CONFIGS = Path(__file__).resolve().parents[2] / "configs"
CASES = yaml.safe_load(Path(__file__).with_name("experiments.yaml").read_text("utf-8"))
ROWS = CASES["ablations"]


@pytest.mark.parametrize(("folder", "base"), [("ablations", "maira2_7b"), ("ablations/phantom", "phantom")])
@pytest.mark.parametrize("row", ROWS)
def test_each_ablation_config_differs_from_its_base_by_one_component(folder: str, base: str, row: str) -> None:
    config = read_train_config(CONFIGS / folder / f"{row}.yaml")
    changed = differences_of(config, read_train_config(CONFIGS / f"{base}.yaml"))
    changed.pop("validation.best_by", None)
    assert changed == ROWS[row]


def test_shipped_configs_have_unique_folders_and_the_prompts_of_the_paper() -> None:
    paths = [path for path in CONFIGS.rglob("*.yaml") if path.parent.name != "judges"]
    configs = {path: read_train_config(path) for path in paths}
    assert len({config.out for config in configs.values()}) == len(configs) == 10 + 2 * len(ROWS)
    phantom = {path for path in paths if path.stem.startswith("phantom") or path.parent.name == "phantom"}
    presets = {path: "release" if path in phantom else "paper" for path in paths}
    assert {path: config.preset for path, config in configs.items()} == presets


def write_config(folder: Path, name: str, **values: object) -> Path:
    path = folder / f"{name}.yaml"
    out = f"{folder}/runs/{name}"
    whole = {"model": f"{folder}/start", "train": f"{folder}/manifest.jsonl", "out": out, "passes": 1000}
    path.write_text(yaml.safe_dump(whole | values), encoding="utf-8")
    return path


@pytest.fixture
def configs(tmp_path: Path) -> list[Path]:
    write_json(tmp_path / "start" / "config.json", {})
    (tmp_path / "manifest.jsonl").touch()
    return [
        write_config(tmp_path, "base"),
        write_config(tmp_path, "blind", drop=["prior", "comparison"]),
        write_config(tmp_path, "mute", tasks={"grounded": 1}),
    ]


def test_inference_rows_precede_trained_rows(configs: list[Path], tmp_path: Path) -> None:
    def rows(paths: list[Path]) -> list[list[str]]:
        trials = plan_trials(read_configs(paths, []), tmp_path, infer=True)
        return [[trial.name, trial.config.name, *trial.dropped] for trial in trials]

    assert rows(configs) == DATA["rows of ablations"]
    # What the baseline drops is dropped at inference, too.
    drops = {"base": ["technique"], "less": ["technique", "lateral"]}
    more = [write_config(tmp_path, name, drop=drop) for name, drop in drops.items()]
    assert rows(more) == DATA["rows of ablations that drop more"]


def test_no_inputs_to_drop_at_inference_is_an_error(configs: list[Path], tmp_path: Path) -> None:
    with raises("--infer: conflicting-options"):
        plan_trials(read_configs(configs[::2], []), tmp_path, infer=True)


def test_overrides_can_refer_to_the_config_name(configs: list[Path]) -> None:
    named = read_configs(configs, ["out=try/{name}", "passes=500"])
    assert [config.train.out for config in named] == [Path("try/base"), Path("try/blind"), Path("try/mute")]
    assert {config.train.passes for config in named} == {500}


def test_duplicate_folders_or_names_are_refused(configs: list[Path], tmp_path: Path) -> None:
    with raises("blind.yaml: out: duplicate"):
        read_configs(configs, ["out=same"])
    (tmp_path / "other").mkdir()
    with raises("base.yaml: duplicate"):
        read_configs([configs[0], write_config(tmp_path / "other", "base")], [])


def finished(config: TrainConfig, step: int = 7) -> None:
    """What a run of seven steps leaves behind at one of them."""
    write_json(config.out / "checkpoint" / "config.json", {})
    record = {"step": step, "steps": 7, "length": [config.epochs, config.passes], "recipe": resume_fields(config)}
    record |= {"format": FORMAT, "origin": data_fingerprints(config)}
    write_json(config.out / "states" / f"step-{step:06d}" / "state.json", record)


def test_a_config_is_trained_once_its_run_is_complete(configs: list[Path]) -> None:
    config = read_train_config(configs[0])
    assert not is_trained(config, pytest.fail)
    write_json(config.out / "checkpoint" / "config.json", {})
    assert is_trained(config, pytest.fail)  # its states have been removed
    finished(config, step=5)
    assert not is_trained(config, pytest.fail)
    finished(config)
    assert is_trained(config, pytest.fail)
    for change, expected in (("log_every=3", True), ("passes=1001", False), ("seed=1", False), ("drop=[prior]", False)):
        assert is_trained(read_train_config(configs[0], [change]), pytest.fail) is expected
    assert config.train[0].manifest is not None
    config.train[0].manifest.write_text("{}\n", encoding="utf-8")
    assert not is_trained(config, pytest.fail)


@pytest.mark.parametrize("fault", ["start/config.json", "manifest.jsonl", '{"format": 99, "version": "9.0"}'])
def test_a_config_stays_trained_if_its_origin_is_unknown(fault: str, configs: list[Path], tmp_path: Path) -> None:
    config, messages = read_train_config(configs[0]), list[str]()
    finished(config)
    if fault.startswith("{"):
        (config.out / "states" / "step-000007" / "state.json").write_text(fault, encoding="utf-8")
    else:
        (tmp_path / fault).unlink()
        assert not is_trained(read_train_config(configs[0], ["seed=1"]), pytest.fail)
    assert is_trained(config, messages.append)
    (line,) = messages
    assert line.startswith(f"{config.out}/checkpoint is used as it is; its origin cannot be checked: ")


@pytest.mark.parametrize(("program", "message"), CASES["launchers"])
def test_a_command_fails_with_its_error_line_or_its_status(program: str, message: str | None, tmp_path: Path) -> None:
    (tmp_path / "launcher.py").write_text(f"import sys\n{program}\n")
    launcher = [sys.executable, str(tmp_path / "launcher.py")]
    with raises("run-failed") if message else nullcontext() as caught:
        ablations.run_command(["train", "config.yaml"], launcher)
    assert message is None or message in str(caught.value)


class Commands:
    """Runs the commands in this process; training is a copy of a checkpoint, so that only its order is tested."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.trained: list[str] = []
        self.failing: set[str] = set()

    def run(self, words: Sequence[str], *_: object, **__: object) -> None:
        if words[0] != "train":
            maira(*words)
            return
        out = read_train_config(Path(words[1]), list(words[2:])).out
        self.trained.append(out.name)
        if out.name in self.failing:
            raise RunError("train: the loss is nan")
        shutil.copytree(self.checkpoint, out / "checkpoint")


@pytest.fixture
def commands(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = Commands(checkpoint)
    monkeypatch.setattr(ablations, "run_command", made.run)
    return made


@pytest.fixture
def ablate(configs: list[Path], phantoms: Path, tmp_path: Path) -> Ablate:
    """`maira ablate` on two phantoms with a prior and one without one, their texts as short as the model is small."""
    studies = [
        study.model_copy(update={"prior_report": None, "grounded_findings": located[:1]})
        for study in read_manifest(phantoms)
        if (located := [sentence for sentence in study.grounded_findings or () if sentence.boxes])
    ]
    studies.sort(key=lambda study: study.prior_frontal is None)
    number = sum(study.prior_frontal is not None for study in studies)
    write_manifest(tmp_path / "set.jsonl", [*studies[:2], studies[number]])

    def run(*more: str, code: int = 0) -> Result:
        files = ("--test", tmp_path / "set.jsonl", "--out", tmp_path / "out")
        return maira("ablate", *configs, *files, "--judge", "offline", "--max-new-tokens", 12, *more, code=code)

    return run


def test_a_wrong_option_is_refused_before_any_training(ablate: Ablate, commands: Commands) -> None:
    for options, error in CASES["refused ablations"]:
        with raises(error):
            ablate(*options)
    assert commands.trained == []


@pytest.mark.slow
def test_the_table_has_a_row_per_model_and_input_set(
    ablate: Ablate, commands: Commands, configs: list[Path], tmp_path: Path
) -> None:
    base = read_train_config(configs[0])
    shutil.copytree(commands.checkpoint, base.out / "checkpoint")
    write_json(base.out / "states" / "step-000007" / "state.json", {"format": 99, "version": "9.0"})
    result = ablate("--infer", "--task", "grounded", "--subset", "prior")
    assert result.output.count("is used as it is") == 1
    assert commands.trained == ["blind", "mute"]
    assert "2 studies; skipped: 1 without an input of the subset." in result.output
    record = json.loads((tmp_path / "out" / "ablation.json").read_text())
    rows = record["experiments"]
    assert list(rows) == ["base", "infer-no-prior+comparison", "blind", "mute"]
    assert [row["at_inference"] for row in rows.values()] == [False, True, False, False]
    assert rows["blind"]["differs_in"] == {"drop": ["prior", "comparison"]}
    for kind in ("drafts", "boxes"):
        settings = json.loads((tmp_path / "out" / "blind" / f"{kind}.run.json").read_text())
        assert settings["drop"] == ["comparison", "prior"]
    for name in ("logical_f1", "completion_iou", "lateral_mentions"):
        assert rows["mute"]["scores"][name]["difference"]["point"] == 0  # the same weights, shown the same
    page = (tmp_path / "out" / "ablation.md").read_text()
    assert 'blind: trained as base, except drop = ["prior", "comparison"].' in page
    assert "mute: trained as base, except" in page
    assert "mute: the model was not trained on this task." not in page


@pytest.mark.slow
def test_only_failed_configs_are_trained_again(
    ablate: Ablate, commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out" / "ablation.json"
    commands.failing = {"base", "blind", "mute"}
    with raises("run-failed") as caught:
        ablate()
    assert "base: train: the loss is nan" in str(caught.value)
    assert not file.exists()
    # Without the base config there are scores but no differences.
    commands.failing = {"base"}
    ablate("--infer", code=3)
    record = json.loads(file.read_text())
    assert (record["base"], list(record["experiments"])) == (None, ["blind", "mute"])
    scores = [score for row in record["experiments"].values() for score in row["scores"].values()]
    assert {score["difference"] for score in scores} == {None}
    assert "compared with" not in (tmp_path / "out" / "ablation.md").read_text()
    commands.failing = {"blind"}
    shutil.rmtree(tmp_path / "runs" / "blind")
    result = ablate(code=3)
    assert "skipped: blind: train: the loss is nan" in result.output
    assert "mute: the model was not trained on this task." in result.output
    record = json.loads(file.read_text())
    assert list(record["experiments"]) == ["base", "mute"]
    assert record["failures"] == [["blind", "train: the loss is nan"]]
    commands.failing = set()
    ablate()
    assert commands.trained == ["base", "blind", "mute"] * 2 + ["base", "blind", "blind"]
    complete = file.read_text()
    monkeypatch.delattr("maira.generate.drafts.start_engine")
    ablate()
    assert len(commands.trained) == 9
    assert file.read_text() == complete
