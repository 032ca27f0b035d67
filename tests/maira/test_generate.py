"""Drafting a test set: order, boxes on the original image, resume, failures."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from draft_files import read_rows, without_time
from error_checks import raises_code
from PIL import Image

from maira.data.manifest import read_failures
from maira.data.study import Study
from maira.generate import drafts
from maira.generate.drafts import ResponseFile, generate_drafts, make_draft
from maira.generate.engine import EngineOptions, GenerationOptions, Response
from maira.model.checkpoint import fingerprint
from maira.model.task_examples import make_example
from radfact.errors import ErrorCode, InputError
from radfact.records import Box, Sentence


def _run(studies: list[Study], checkpoint: Path, out: Path, **options: Any) -> tuple[int, list[Any]]:
    settings: dict[str, Any] = {"options": GenerationOptions(max_new_tokens=12), "engine": EngineOptions(batch_size=2)}
    return generate_drafts(studies, checkpoint, out, **settings | options)


def test_drafts_follow_manifest_order_for_any_batch_size(
    studies: list[Study], checkpoint: Path, tmp_path: Path
) -> None:
    assert _run(studies, checkpoint, tmp_path / "two.jsonl") == (5, [])
    assert [row["sample_id"] for row in read_rows(tmp_path / "two.jsonl")] == [study.sample_id for study in studies]
    _run(studies, checkpoint, tmp_path / "one.jsonl", engine=EngineOptions(batch_size=1))
    assert without_time(tmp_path / "one.jsonl") == without_time(tmp_path / "two.jsonl")


def test_an_empty_response_is_a_failure(studies: list[Study], checkpoint: Path, tmp_path: Path) -> None:
    with raises_code(ErrorCode.RUN_FAILED, match="empty response ''; it ended at the limit"):
        _run(studies, checkpoint, tmp_path / "drafts.jsonl", options=GenerationOptions(max_new_tokens=1))
    failed = read_failures(tmp_path / "failures.jsonl")
    assert [failure.sample_id for failure in failed] == [study.sample_id for study in studies]
    assert not (tmp_path / "drafts.jsonl").exists()


def test_free_decoding_equals_transformers_generate(
    studies: list[Study], checkpoint: Path, tmp_path: Path, model: Any, processor: Any
) -> None:
    out = tmp_path / "drafts.jsonl"
    _run(studies, checkpoint, out, engine=EngineOptions(free=True))
    for row, study in zip(read_rows(out), studies, strict=True):
        example = make_example(study, "grounded")
        inputs = processor([example.images], [processor.render(example.messages)])
        ids = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        assert row["raw"] == processor.tokenizer.decode(ids, skip_special_tokens=True).strip()
    with raises_code(ErrorCode.OUTPUT_CONFLICT, match="free", file=out):
        _run(studies, checkpoint, out)


def test_loops_are_cut_unless_decoding_is_free(studies: list[Study]) -> None:
    example = make_example(studies[0], "grounded")
    raw = "<obj>No mass.</obj>" * 4
    guarded, free = (make_draft(example, Response(raw, False, 0.5), "model", cut_loops=cut) for cut in (True, False))
    assert [len(guarded["report"]), len(free["report"])] == [2, 4]
    assert {"index": 1, "kind": "repetition_cut"} in guarded["irregularities"]


def test_a_finished_run_is_unchanged_even_if_its_images_are_moved(
    studies: list[Study], checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(studies, checkpoint, tmp_path / "drafts.jsonl")
    before = (tmp_path / "drafts.jsonl").read_bytes()
    monkeypatch.delattr(drafts, "start_engine")
    names = [name for name in ("frontal", "lateral", "prior_frontal") if getattr(studies[0], name)]
    moved = {name: shutil.copy(getattr(studies[0], name), tmp_path / f"{name}.png") for name in names}
    assert _run([studies[0].model_copy(update=moved), *studies[1:]], checkpoint, tmp_path / "drafts.jsonl") == (5, [])
    assert (tmp_path / "drafts.jsonl").read_bytes() == before


def test_a_run_without_responses_accepts_new_settings(studies: list[Study], checkpoint: Path, tmp_path: Path) -> None:
    with raises_code(ErrorCode.INVALID_OPTION, field="device"):
        _run(studies, checkpoint, tmp_path / "drafts.jsonl", engine=EngineOptions(device="gpu"))
    assert _run(
        studies, checkpoint, tmp_path / "drafts.jsonl", options=GenerationOptions(task="findings", max_new_tokens=12)
    ) == (5, [])


def test_unrequested_drafts_are_unchanged(studies: list[Study], checkpoint: Path, tmp_path: Path) -> None:
    _run(studies, checkpoint, tmp_path / "drafts.jsonl")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    last = max(study.sample_id for study in studies[:2])
    with raises_code(ErrorCode.OUTPUT_CONFLICT, match=f"holds 1 .* such as {last}"):
        _run([study for study in studies if study.sample_id != last], checkpoint, tmp_path / "drafts.jsonl")
    with raises_code(ErrorCode.OUTPUT_CONFLICT, match="holds 3 "):
        _run(studies[:2], checkpoint, tmp_path / "drafts.jsonl")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("change", ["indication", "other size", "same size"])
def test_a_changed_study_is_drafted_again(
    studies: list[Study], checkpoint: Path, tmp_path: Path, requested: list[str], change: str
) -> None:
    images = [tmp_path / "radiograph.png", tmp_path / "other.png"]
    for image, study in zip(images, studies, strict=False):
        Image.open(study.frontal).convert("L").resize((70, 70)).save(image, compress_level=0)
    assert images[0].stat().st_size == images[1].stat().st_size
    first = studies[0].model_copy(update={"frontal": images[0]})
    _run([first, *studies[1:]], checkpoint, tmp_path / "drafts.jsonl")
    requested.clear()
    if change == "indication":
        first = first.model_copy(update={"indication": "Another reason."})
    else:
        images[0].write_bytes(images[1].read_bytes() + b"0" * 7 * (change == "other size"))
    reported: list[int] = []
    for _ in range(2):
        _run([first, *studies[1:]], checkpoint, tmp_path / "drafts.jsonl", on_changed=reported.append)
    assert (requested, reported) == ([first.sample_id], [1])


def test_after_an_interruption_a_changed_study_does_not_reuse_its_old_draft(
    studies: list[Study], checkpoint: Path, tmp_path: Path, requested: list[str]
) -> None:
    out = tmp_path / "drafts.jsonl"
    _run(studies, checkpoint, out)
    changed = [study.model_copy(update={"indication": "Another reason."}) for study in studies]

    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(changed, checkpoint, out, on_progress=stop)
    requested.clear()
    _run(changed, checkpoint, out)
    assert sorted(requested) == sorted(study.sample_id for study in studies)


def test_a_draft_remains_if_its_radiograph_is_unreadable(
    studies: list[Study], checkpoint: Path, tmp_path: Path, requested: list[str]
) -> None:
    radiograph = tmp_path / "radiograph.png"
    radiograph.write_bytes(studies[0].frontal.read_bytes())
    ours = [studies[0].model_copy(update={"frontal": radiograph}), studies[1]]
    _run(ours, checkpoint, tmp_path / "drafts.jsonl")
    before = read_rows(tmp_path / "drafts.jsonl")
    radiograph.rename(tmp_path / "away.png")
    drafted, failures = _run(ours, checkpoint, tmp_path / "drafts.jsonl")
    assert (drafted, [failure.sample_id for failure in failures]) == (1, [ours[0].sample_id])
    radiograph.write_bytes(studies[0].frontal.read_bytes())
    assert _run(ours, checkpoint, tmp_path / "drafts.jsonl") == (2, [])
    assert read_rows(tmp_path / "drafts.jsonl") == before
    assert len(requested) == 2


def test_a_draft_does_not_depend_on_the_reference(studies: list[Study], checkpoint: Path, tmp_path: Path) -> None:
    outside = Sentence(text="Arm <obj>.", boxes=(Box(x_min=0, y_min=0, x_max=0.001, y_max=0.001),))
    study = studies[0].model_copy(update={"grounded_findings": [outside]})
    assert _run([study], checkpoint, tmp_path / "drafts.jsonl") == (1, [])


@pytest.mark.parametrize(
    ("name", "text", "out", "line"),
    [
        ("failures.jsonl", "mine\n", "failures.jsonl", None),
        ("failures.jsonl", "mine\n", "a.jsonl", 1),
        ("a.jsonl", '{"mine": 1}\n', "a.jsonl", None),
        ("a.jsonl", "mine", "a.jsonl", None),
    ],
)
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
