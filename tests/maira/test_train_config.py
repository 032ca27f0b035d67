from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from maira.judge.run_config import read_judge_config
from maira.train.config.run_config import AnomalyConfig, DataSource, FromScratch, read_train_config
from radfact.errors import InputError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SMALLEST = {"model": "checkpoint", "train": "manifest.jsonl", "out": "run", "passes": 1000}


def write(folder: Path, **changes: object) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(SMALLEST | changes), encoding="utf-8")
    return path


def fresh(**changes: object) -> dict[str, object]:
    return {"vision_config": {}, "text_config": {}} | changes


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_recipes_can_be_read(path: Path) -> None:
    read_judge_config(path) if path.parent.name == "judges" else read_train_config(path)


def test_the_defaults_are_the_papers(tmp_path: Path) -> None:
    train_config = read_train_config(write(tmp_path))
    # Paper 004, B.2.
    assert (train_config.learning_rate, train_config.warmup, train_config.global_batch) == (2e-5, 0.03, 128)
    assert train_config.preset == "release"


def test_the_path_of_a_manifest_is_a_source_of_its_own(tmp_path: Path) -> None:
    assert read_train_config(write(tmp_path)).train == [DataSource(manifest=Path("manifest.jsonl"))]


def test_shares_of_a_source_are_times_the_recipes(tmp_path: Path) -> None:
    tasks = {"findings": 0.5, "grounded": 2.0, "phrase": 0.0}
    sources = [{"shards": "s"}, {"shards": "s", "tasks": {"findings": 0.5, "phrase": 1.0}}]
    train_config = read_train_config(write(tmp_path, tasks=tasks, train=sources))
    assert train_config.shares(train_config.train[0]) == {"findings": 0.5, "grounded": 2.0}
    assert train_config.shares(train_config.train[1]) == {"findings": 0.25}


def test_a_recipe_says_only_what_it_does_otherwise_than_its_base(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    base = write(tmp_path, faults={"spike": 3.0, "most_skipped": 5}, betas=[0.9, 0.95])
    middle, top = tmp_path / "rows" / "middle.yaml", tmp_path / "rows" / "top.yaml"
    middle.write_text("base: ../recipe.yaml\nfaults: {most_skipped: 7}\nbetas: [0.8, 0.9]\n", encoding="utf-8")
    top.write_text("base: middle.yaml\ndrop: [prior]\n", encoding="utf-8")
    train_config, plain = read_train_config(top, ["seed=3"]), read_train_config(base)
    changed = {"faults": AnomalyConfig(spike=3.0, most_skipped=7), "betas": (0.8, 0.9), "drop": ("prior",), "seed": 3}
    assert train_config == plain.model_copy(update=changed)


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("recipe.yaml", "base: a recipe cannot be its own base"),
        ("none.yaml", r"recipe\.yaml: base: .*none\.yaml: no such file"),
        (3, "base: expected the path of a recipe"),
    ],
)
def test_a_base_that_is_none_is_refused(tmp_path: Path, base: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_train_config(write(tmp_path, base=base))


def test_overrides_reach_into_nested_keys(tmp_path: Path) -> None:
    model = {"vision_config": {"image_size": 70}, "text_config": {"hidden_size": 32}}
    train_config = read_train_config(
        write(tmp_path, model=model), ["model.text_config.hidden_size=48", "learning_rate=1.0e-3"]
    )
    assert isinstance(train_config.model, FromScratch)
    assert train_config.model.text_config == {"hidden_size": 48}
    assert train_config.model.vision_config.image_size == 70
    assert train_config.learning_rate == 1e-3


def test_overrides_reach_into_lists_by_number(tmp_path: Path) -> None:
    train_config = read_train_config(write(tmp_path, train=[{"shards": "a"}, {"shards": "b"}]), ["train.1.split=dev"])
    assert [source.split for source in train_config.train] == [None, "dev"]


def test_no_is_a_precision_without_quotes(tmp_path: Path) -> None:
    assert read_train_config(write(tmp_path), ["precision=no"]).precision == "no"


def test_powers_of_ten_are_numbers(tmp_path: Path) -> None:
    train_config = read_train_config(
        write(tmp_path, model=fresh()), ["passes=3e2", "model.text_config.rms_norm_eps=1e-5"]
    )
    assert train_config.passes == 300
    assert isinstance(train_config.model, FromScratch)
    assert train_config.model.text_config == {"rms_norm_eps": 1e-5}


def test_an_override_can_hold_an_equals_sign(tmp_path: Path) -> None:
    assert read_train_config(write(tmp_path), ["out=a=b"]).out == Path("a=b")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"pases": 3}, "pases"),
        ({"passes": 0}, "passes"),
        ({"passes": "many"}, "passes"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"learning_rate": float("inf")}, "learning_rate"),
        ({"warmup": 1.5}, "warmup"),
        ({"betas": [0.9, 1.0]}, r"betas\[1\]"),
        ({"precision": "fp8"}, "precision"),
        ({"tasks": {"phrases": 1}}, "tasks.phrases"),
        ({"tasks": {"phrase": -1}}, "tasks.phrase"),
        ({"seed": -1}, "seed"),
        ({"drop": ["history"]}, r"drop\[0\]"),
        ({"trained": ["decoder"]}, r"trained\[0\]"),
        ({"lora": {"rank": 0}}, r"lora\.rank"),
        ({"faults": {"spike": 1.0}}, r"faults\.spike"),
        ({"train": [{"manifest": "m", "tasks": {"phrases": 1}}]}, r"train\[0\]\.tasks\.phrases"),
        ({"preset": "mine"}, "preset"),
        ({"model": 3}, "model"),
        ({"model": {"vision_config": {}}}, r"model\.text_config"),
        ({"model": {"vision_config": {"patch_sise": 16}, "text_config": {}}}, r"model\.vision_config\.patch_sise"),
        ({"model": {"vision_config": {"stem": "mlp"}, "text_config": {}}}, r"model\.vision_config\.stem"),
    ],
)
def test_a_wrong_value_is_named_by_file_and_field(tmp_path: Path, changes: dict[str, object], field: str) -> None:
    with pytest.raises(InputError, match=rf"recipe\.yaml, field '{field}") as caught:
        read_train_config(write(tmp_path, **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": {}}, "at least one task needs a share above 0"),
        ({"tasks": {"grounded": 0}}, "at least one task needs a share above 0"),
        ({"tasks": {"grounded": 1}, "train": [{"shards": "s3://b", "tasks": {"phrase": 1}}]}, "needs a share above 0"),
        ({"train": []}, "train: give at least one source"),
        ({"train": [{"split": "train"}]}, "give a manifest or shards, one of the two"),
        ({"train": [{"manifest": "m.jsonl", "shards": "s3://b"}]}, "give a manifest or shards, one of the two"),
        ({"passes": 127}, "127 samples are less than one global_batch of 128"),
        ({"passes": None}, "give epochs or passes, one of the two"),
        ({"epochs": 3}, "give epochs or passes, one of the two"),
        ({"weights": "bfloat16"}, "bfloat16 needs the optimizer adamw_8bit"),
        ({"patch_loss": 1.0}, "the encoder is not trained"),
        ({"trained": ["encoder"], "lora": {}}, "lora: the language model is not trained"),
        ({"model": fresh(vision_config={"image_size": 60, "patch_size": 16})}, "image_size: 60 .*; 48 or 64 would be"),
        ({"model": fresh(vision_config={"num_attention_heads": 7})}, "hidden_size: 768 is no multiple of num_att"),
        ({"model": fresh(text_config={"hidden_size": "big"})}, "hidden_size: expected a whole number above 0, found"),
        ({"model": fresh(text_config={"hidden_size": 32, "num_attention_heads": 7})}, "28 or 35 would be"),
        ({"model": fresh(image_merge=5)}, "image_merge, which is 5; 35 or 40 would be"),
        ({"out": None}, r"recipe\.yaml: out: expected a path, found None"),
    ],
)
def test_a_recipe_whose_values_do_not_fit_together_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_train_config(write(tmp_path, **changes))


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("model: checkpoint\nout: run\npasses: 1000\n", encoding="utf-8")
    with pytest.raises(InputError, match="field 'train'"):
        read_train_config(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2", "line 2: not YAML"),
        ("- a", "keys and values"),
        ("", "keys and values"),
        ("seed: 1\nfaults:\n  spike: 2\n  spike: 3\n", "line 4: the key 'spike' is given twice"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_train_config(path)


def test_a_recipe_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml: no such file"):
        read_train_config(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("passes", "the command line: expected key=value, got 'passes'"),
        ("=3", "the command line: expected key=value, got '=3'"),
        ("validaton.every=3", "the command line: validaton: unknown field; did you mean 'validation'?"),
        ("faults.spik.x=5", "the command line: faults.spik: unknown field; did you mean 'spike'?"),
        ("passes.more=3", "the command line: passes.more: 'passes' has no keys of its own: it is 1000"),
        ("tasks=[", "the command line: tasks: not a YAML value: '['"),
        ("pases=3", "the command line: pases: unknown field; did you mean 'passes'?"),
        ("passes=0", "the command line: passes: input should be greater than 0, found 0"),
        ("faults.spiek=3", "the command line: faults.spiek: unknown field; did you mean 'spike'?"),
        ("faults={spiek: 3}", "the command line: faults.spiek: unknown field; did you mean 'spike'?"),
        ("train.0.splitt=a", "the command line: train[0].splitt: unknown field; did you mean 'split'?"),
        ("xyz=1", "the command line: xyz: unknown field; leave it out or mend its name"),
        ("betas.2=0.9", "the command line: betas.2: '2' is no item of a list of 2, which are numbered from 0"),
    ],
)
def test_a_wrong_override_is_refused(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_train_config(write(tmp_path, betas=[0.9, 0.95], train=[{"shards": "a"}]), [override])
    assert str(caught.value) == message


def test_a_fault_is_looked_for_in_the_file_that_says_it(tmp_path: Path) -> None:
    write(tmp_path, pases=3, faults={"spike": 1.0}, train=[{"manifest": "m", "splitt": "a"}])
    top = tmp_path / "top.yaml"

    def said(text: str, *overrides: str) -> str:
        top.write_text(f"base: recipe.yaml\n{text}\n", encoding="utf-8")
        with pytest.raises(InputError) as caught:
            read_train_config(top, list(overrides))
        return str(caught.value).replace(f"{tmp_path}/", "")

    assert said("").startswith("recipe.yaml: train[0].splitt: unknown field; did you mean 'split'?")
    own = "train: [{manifest: m, spilt: a}]"
    assert said(own).startswith("top.yaml: train[0].spilt: unknown field")
    assert said("train: m").startswith("recipe.yaml: faults.spike: input should be greater than 1")
    assert said("train: m\nfaults: {spike: 0.5}").startswith("top.yaml: faults.spike")
    assert said("train: m", "faults.spike=3").startswith("recipe.yaml: pases: unknown field")


def test_a_misspelt_key_that_is_needed_is_named_and_not_the_missing_one(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("model: checkpoint\ntrian: m.jsonl\nout: run\npasses: 1000\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"trian: unknown field; did you mean 'train'\?$"):
        read_train_config(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "none.jsonl: no such file; it is the recipe's 'train', and train=FILE names another"),
        (
            {"train": [{"manifest": "none.jsonl", "split": "train"}]},
            "none.jsonl: no such file; it is the recipe's 'train.0.manifest', and train.0.manifest=FILE names another",
        ),
        (
            {"train": "there.jsonl", "validation": {"sources": [{"manifest": "none.jsonl"}]}},
            "none.jsonl: no such file; it is the recipe's 'validation.sources.0.manifest', and "
            'validation.sources.0.manifest=FILE names another, and "validation.sources=[]" validates on nothing',
        ),
    ],
)
def test_a_manifest_that_is_not_there_is_named_with_the_key_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.jsonl").touch()
    with pytest.raises(InputError) as caught:
        read_train_config(write(tmp_path, **({"train": "none.jsonl"} | changes))).check_sources()
    assert str(caught.value) == message
    read_train_config(write(tmp_path, train="there.jsonl")).check_sources()
