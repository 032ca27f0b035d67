"""Drafting a test set, by the function and as a user types it: order, resume, failures."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from draft_files import read_rows, without_time
from error_checks import raises_code
from long_values import DATA
from maira_command import maira
from PIL import Image
from typer.testing import Result

from maira.data.manifest import Failure, read_failures, read_manifest, write_failures, write_manifest
from maira.data.study import Study
from maira.generate import drafts
from maira.generate.drafts import ResponseFile, generate_drafts, make_draft
from maira.generate.engine import EngineOptions, GenerationOptions, Response
from maira.model.checkpoint import fingerprint
from maira.model.task_examples import make_example
from radfact.errors import ErrorCode, InputError
from radfact.records import Box, Sentence

Draft = Callable[..., tuple[int, list[Any]]]
Command = Callable[..., Result]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "drafts.jsonl"


@pytest.fixture
def draft(checkpoint: Path, out: Path) -> Draft:
    """Return a function that drafts studies with few tokens."""
    settings: dict[str, Any] = {"options": GenerationOptions(max_new_tokens=12), "engine": EngineOptions(batch_size=2)}

    def run(studies: list[Study], **options: Any) -> tuple[int, list[Any]]:
        return generate_drafts(studies, checkpoint, **{"out": out, **settings, **options})

    return run


@pytest.fixture
def command(checkpoint: Path, out: Path) -> Command:
    """Return a function that runs `maira generate` for a manifest."""

    def run(manifest: Path, *more: str, code: int | None = 0) -> Result:
        paths = ("--checkpoint", checkpoint, "--manifest", manifest, "--out", out)
        return maira("generate", *paths, "--max-new-tokens", 12, "--device", "cpu", *more, code=code)

    return run


def test_drafts_follow_manifest_order_for_any_batch_size(studies: list[Study], draft: Draft, out: Path) -> None:
    assert draft(studies) == (5, [])
    assert [row["sample_id"] for row in read_rows(out)] == [study.sample_id for study in studies]
    one = out.with_name("one.jsonl")
    draft(studies, out=one, engine=EngineOptions(batch_size=1))
    assert without_time(one) == without_time(out)


def test_an_empty_response_is_a_failure(studies: list[Study], draft: Draft, out: Path) -> None:
    with raises_code(ErrorCode.RUN_FAILED, match="empty response ''; it ended at the limit"):
        draft(studies, options=GenerationOptions(max_new_tokens=1))
    failed = read_failures(out.with_name("failures.jsonl"))
    assert [failure.sample_id for failure in failed] == [study.sample_id for study in studies]
    assert not out.exists()


def test_free_decoding_equals_transformers_generate(
    studies: list[Study], draft: Draft, out: Path, model: Any, processor: Any
) -> None:
    draft(studies, engine=EngineOptions(free=True))
    for row, study in zip(read_rows(out), studies, strict=True):
        example = make_example(study, "grounded")
        inputs = processor([example.images], [processor.render(example.messages)])
        ids = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        assert row["raw"] == processor.tokenizer.decode(ids, skip_special_tokens=True).strip()
    with raises_code(ErrorCode.OUTPUT_CONFLICT, match="free", file=out):
        draft(studies)


def test_loops_are_cut_unless_decoding_is_free(studies: list[Study]) -> None:
    example = make_example(studies[0], "grounded")
    raw = "<obj>No mass.</obj>" * 4
    guarded, free = (make_draft(example, Response(raw, False, 0.5), "model", cut_loops=cut) for cut in (True, False))
    assert [len(guarded["report"]), len(free["report"])] == [2, 4]
    assert {"index": 1, "kind": "repetition_cut"} in guarded["irregularities"]


def test_a_finished_run_is_unchanged_even_if_its_images_are_moved(
    studies: list[Study], draft: Draft, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft(studies)
    before = out.read_bytes()
    monkeypatch.delattr(drafts, "start_engine")
    names = [name for name in ("frontal", "lateral", "prior_frontal") if getattr(studies[0], name)]
    moved = {name: shutil.copy(getattr(studies[0], name), tmp_path / f"{name}.png") for name in names}
    assert draft([studies[0].model_copy(update=moved), *studies[1:]]) == (5, [])
    assert out.read_bytes() == before


def test_a_run_without_responses_accepts_new_settings(studies: list[Study], draft: Draft) -> None:
    with raises_code(ErrorCode.INVALID_OPTION, field="device"):
        draft(studies, engine=EngineOptions(device="gpu"))
    assert draft(studies, options=GenerationOptions(task="findings", max_new_tokens=12)) == (5, [])


def test_unrequested_drafts_are_unchanged(studies: list[Study], draft: Draft, tmp_path: Path) -> None:
    draft(studies)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    last = max(study.sample_id for study in studies[:2])
    with raises_code(ErrorCode.OUTPUT_CONFLICT, match=f"holds 1 .* such as {last}"):
        draft([study for study in studies if study.sample_id != last])
    with raises_code(ErrorCode.OUTPUT_CONFLICT, match="holds 3 "):
        draft(studies[:2])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("change", ["indication", "other size", "same size"])
def test_a_changed_study_is_drafted_again(
    studies: list[Study], draft: Draft, tmp_path: Path, requested: list[str], change: str
) -> None:
    images = [tmp_path / "radiograph.png", tmp_path / "other.png"]
    for image, study in zip(images, studies, strict=False):
        Image.open(study.frontal).convert("L").resize((70, 70)).save(image, compress_level=0)
    assert images[0].stat().st_size == images[1].stat().st_size
    first = studies[0].model_copy(update={"frontal": images[0]})
    draft([first, *studies[1:]])
    requested.clear()
    if change == "indication":
        first = first.model_copy(update={"indication": "Another reason."})
    else:
        images[0].write_bytes(images[1].read_bytes() + b"0" * 7 * (change == "other size"))
    reported: list[int] = []
    for _ in range(2):
        draft([first, *studies[1:]], on_changed=reported.append)
    assert (requested, reported) == ([first.sample_id], [1])


def test_after_an_interruption_a_changed_study_does_not_reuse_its_old_draft(
    studies: list[Study], draft: Draft, requested: list[str]
) -> None:
    draft(studies)
    changed = [study.model_copy(update={"indication": "Another reason."}) for study in studies]

    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draft(changed, on_progress=stop)
    requested.clear()
    draft(changed)
    assert sorted(requested) == sorted(study.sample_id for study in studies)


def test_a_draft_remains_if_its_radiograph_is_unreadable(
    studies: list[Study], draft: Draft, out: Path, tmp_path: Path, requested: list[str]
) -> None:
    radiograph = tmp_path / "radiograph.png"
    radiograph.write_bytes(studies[0].frontal.read_bytes())
    ours = [studies[0].model_copy(update={"frontal": radiograph}), studies[1]]
    draft(ours)
    before = read_rows(out)
    radiograph.rename(tmp_path / "away.png")
    drafted, failures = draft(ours)
    assert (drafted, [failure.sample_id for failure in failures]) == (1, [ours[0].sample_id])
    radiograph.write_bytes(studies[0].frontal.read_bytes())
    assert draft(ours) == (2, [])
    assert read_rows(out) == before
    assert len(requested) == 2


def test_a_draft_does_not_depend_on_the_reference(studies: list[Study], draft: Draft) -> None:
    outside = Sentence(text="Arm <obj>.", boxes=(Box(x_min=0, y_min=0, x_max=0.001, y_max=0.001),))
    study = studies[0].model_copy(update={"grounded_findings": [outside]})
    assert draft([study]) == (1, [])


@pytest.mark.parametrize(("name", "text", "out", "line"), DATA["foreign files"])
def test_a_foreign_file_is_not_overwritten(tmp_path: Path, name: str, text: str, out: str, line: int | None) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as caught:
        ResponseFile(tmp_path / out, {}, [])
    assert (caught.value.file, caught.value.line) == (tmp_path / name, line)
    assert caught.value.code is ErrorCode.OUTPUT_CONFLICT or line
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: text}


def test_checkpoints_have_different_fingerprints(checkpoint: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(checkpoint, tmp_path / "other")
    assert fingerprint(copy) == fingerprint(checkpoint)
    result = {fingerprint(copy)}
    # A chat model may have its own template, and weights as pickles.
    (copy / "drafts.jsonl").write_text("{}\n")
    assert fingerprint(copy) in result
    for name, content in (("config.json", " "), ("chat_template.jinja", "{}"), ("model.bin", "0"), ("model.bin", "1")):
        with (copy / name).open("a") as file:
            file.write(content)
        result.add(fingerprint(copy))
    assert len(result) == 5


@pytest.fixture
def mixed(studies: list[Study], tmp_path: Path) -> Path:
    """A manifest of six: a missing radiograph, an invalid image, no image, and a valid study before each."""
    (tmp_path / "radiograph1.png").write_bytes(b"no radiograph")
    bad = [
        study.model_copy(update={"sample_id": f"bad{number}", "frontal": tmp_path / f"radiograph{number}.png"})
        for number, study in enumerate(studies[:2])
    ]
    path = tmp_path / "manifest.jsonl"
    write_manifest(path, [studies[0], bad[0], studies[1], bad[1], studies[2]])
    with path.open("a") as handle:
        handle.write('{"sample_id": "bad2", "indication": "Cough."}\n')
    return path


def test_unusable_studies_are_listed_and_drafted_alone_once_they_are_fixed(
    command: Command, studies: list[Study], mixed: Path, out: Path, tmp_path: Path, requested: list[str]
) -> None:
    result = command(mixed, code=3)
    assert "3 of 6 studies drafted" in result.output
    before = read_rows(out)
    assert [row["sample_id"] for row in before] == [study.sample_id for study in studies[:3]]
    reasons = {failure.sample_id: failure.reason for failure in read_failures(tmp_path / "failures.jsonl")}
    places = {"bad0": "radiograph0.png: ", "bad1": "radiograph1.png: ", "bad2": "manifest.jsonl:6: frontal: "}
    assert reasons.keys() == places.keys()
    assert all(place in reasons[key] and reasons[key] in result.output for key, place in places.items())

    for number in range(2):
        (tmp_path / f"radiograph{number}.png").write_bytes(studies[3].frontal.read_bytes())
    mixed.write_text(mixed.read_text().replace('"bad2", ', f'"bad2", "frontal": "{studies[4].frontal}", '))
    requested.clear()
    command(mixed)
    assert sorted(requested) == ["bad0", "bad1", "bad2"]
    assert [row for row in read_rows(out) if row["sample_id"] not in requested] == before
    assert [row["sample_id"] for row in read_rows(out)] == [study.sample_id for study in read_manifest(mixed)]
    assert not (tmp_path / "failures.jsonl").exists()


@pytest.mark.parametrize(("option", "code"), [((), 3), (("--image-check", "off"), 0)])
def test_a_black_image_is_a_failure_unless_the_check_is_off(
    command: Command, studies: list[Study], tmp_path: Path, option: tuple[str, ...], code: int
) -> None:
    Image.new("L", (64, 64)).save(tmp_path / "black.png")
    black = studies[1].model_copy(update={"frontal": tmp_path / "black.png"})
    write_manifest(tmp_path / "set.jsonl", [studies[0], black])
    command(tmp_path / "set.jsonl", *option, code=code)
    failures = read_failures(tmp_path / "failures.jsonl")
    assert [failure.sample_id for failure in failures] == ([black.sample_id] if code else [])
    assert all("black.png: expected a chest radiograph" in failure.reason for failure in failures)


def test_failures_of_other_studies_remain(command: Command, mixed: Path, studies: list[Study], tmp_path: Path) -> None:
    others = [
        Failure(source="1.dcm", stage="dicom", reason="has no pixels"),
        Failure(sample_id="bad0", source="other.jsonl", stage="generate", reason="no such file"),
    ]
    write_failures(tmp_path / "failures.jsonl", others)
    for _ in range(2):
        command(mixed, code=3)
        failures = read_failures(tmp_path / "failures.jsonl")
        assert failures[:2] == others
        expected = [(f"bad{number}", "drafts.jsonl") for number in (2, 0, 1)]
        assert [(failure.sample_id, failure.source) for failure in failures[2:]] == expected
    write_manifest(mixed, studies[:3])
    command(mixed)
    assert read_failures(tmp_path / "failures.jsonl") == others


@pytest.mark.parametrize("drops", [("prior", "lateral"), ("lateral+prior",)])
def test_drops_are_joined_or_repeated(drops: tuple[str, ...], command: Command, phantoms: Path, tmp_path: Path) -> None:
    command(phantoms, *(word for drop in drops for word in ("--drop", drop)), code=None)
    assert json.loads((tmp_path / "drafts.run.json").read_text())["drop"] == ["lateral", "prior"]


def test_studies_with_unused_inputs_and_changed_studies_are_counted(
    command: Command, studies: list[Study], tmp_path: Path
) -> None:
    wide = Sentence(text="Arm.", boxes=(Box(x_min=0, y_min=0, x_max=1, y_max=1),))
    inputs = {"prior_report": "Clear.", "prior_frontal": None, "grounded_findings": [wide]}
    unused = studies[1].model_copy(update=inputs)
    write_manifest(tmp_path / "set.jsonl", [studies[0], unused])
    with warnings.catch_warnings(action="error"):
        result = command(tmp_path / "set.jsonl")
    assert f"1 of 2 studies, such as {unused.sample_id}: a prior report without a prior image" in result.stdout
    assert "Warning" not in result.output
    assert "changed" not in result.stderr
    write_manifest(tmp_path / "set.jsonl", [studies[0].model_copy(update={"indication": "Another reason."}), unused])
    result = command(tmp_path / "set.jsonl")
    assert "studies changed since the last run and drafted again: 1" in result.stderr
