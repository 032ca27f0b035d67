"""Phrase grounding and box completion of a whole set: rows, scores on the crop, resume, failures."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_files import read_rows
from error_checks import raises_code
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from long_values import DATA
from maira_command import maira
from numpy.typing import NDArray
from PIL import Image
from test_examples import box

from maira.data.manifest import Failure, read_manifest, write_manifest
from maira.data.study import Study
from maira.generate import drafts
from maira.generate.engine import FailedRequest, GenerationRequest, Response
from maira.grounding.evaluation import BoxResult, complete_boxes, ground_phrases
from maira.grounding.phrases import Phrase
from radfact.errors import ErrorCode
from radfact.records import Mask, Sentence

Script = Callable[[GenerationRequest], str | FailedRequest]


class ScriptedEngine:
    """An engine that responds by a function and records its requests."""

    name = "scripted@0"

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[GenerationRequest] = []

    def generate(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Response | FailedRequest]]:
        # Not in the order of the requests, like real engines.
        for index, request in reversed(list(enumerate(requests))):
            self.asked.append(request)
            text = self.script(request)
            yield index, Response(text, False, 0.5) if isinstance(text, str) else text

    def close(self) -> None:
        pass


Install = Callable[[Script], ScriptedEngine]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Replaces every engine by a scripted one."""

    def install(script: Script) -> ScriptedEngine:
        scripted = ScriptedEngine(script)
        monkeypatch.setattr(drafts, "start_engine", lambda *_: scripted)
        return scripted

    return install


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the marker of a checkpoint and a wide image."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text("{}")
    Image.new("L", (200, 100)).save(tmp_path / "wide.png")
    return tmp_path


def _phrases(*sentences: Sentence) -> list[Phrase]:
    return [Phrase("s", index, sentence) for index, sentence in enumerate(sentences)]


def _scores(out: Path) -> Any:
    return json.loads(out.with_name(f"{out.stem}.scores.json").read_text())


# The crop of the wide image is its middle half: u = 2 x - 0.5.
LEFT = Sentence(text="Left nodule.", boxes=(box(0.5, 0.2, 0.75, 0.4),))
CUT = Sentence(text="Wide opacity.", boxes=(box(0.1, 0, 0.5, 1),))
HIDDEN = Sentence(text="Arm.", boxes=(box(0, 0, 0.2, 1),))
UNKNOWN = Sentence(text="Effusion.")
WHOLE = "<obj>Seen.<box><x0><y0><x99><y99></box></obj>"


@pytest.fixture
def study(folder: Path) -> Study:
    return Study(sample_id="s", frontal=folder / "wide.png", grounded_findings=[UNKNOWN, LEFT, HIDDEN, CUT])


def _ground(study: Study, phrases: Sequence[Phrase], out: Path, **arguments: Any) -> BoxResult:
    return ground_phrases([study], phrases, out.parent / "checkpoint", out, **arguments)


def _complete(studies: Sequence[Study], out: Path) -> BoxResult:
    return complete_boxes(studies, out.parent / "checkpoint", out)


def test_a_run_without_anything_to_locate_is_refused(study: Study, folder: Path) -> None:
    with raises_code(ErrorCode.EMPTY_INPUT, field="phrases"):
        _ground(study, [], folder / "out.jsonl")
    with raises_code(ErrorCode.UNKNOWN_NAME, match="'other'", field="sample_id"):
        _ground(study, [Phrase("other", 0, LEFT)], folder / "out.jsonl")
    with raises_code(ErrorCode.EMPTY_INPUT):
        _complete([study.model_copy(update={"grounded_findings": [UNKNOWN]})], folder / "out.jsonl")
    assert not list(folder.glob("out*"))


def test_a_row_has_its_boxes_on_the_original_image(study: Study, folder: Path, engine: Install) -> None:
    scripted = engine(lambda _: "<obj>Nodule.<box><x0><y20><x49><y39></box></obj>")
    _ground(study, _phrases(LEFT), folder / "out.jsonl")
    (row,) = read_rows(folder / "out.jsonl")
    (sentence,) = row["report"]
    assert (sentence["text"], row["phrase"]) == ("Nodule.", "Left nodule.")
    assert list(sentence["boxes"][0].values()) == pytest.approx([0.2525, 0.205, 0.4975, 0.395])
    assert row["reference"] == [box(0.5, 0.2, 0.75, 0.4).model_dump()]
    assert scripted.asked[0].example.text.endswith("Finding: Left nodule.")
    assert (scripted.asked[0].form, scripted.asked[0].max_new_tokens) == ("report", 150)


bins, regions = (
    st.tuples(*[numbers] * 4).map(lambda c: (min(c[0], c[2]), min(c[1], c[3]), max(c[0], c[2]), max(c[1], c[3])))
    for numbers in (st.integers(0, 99), st.floats(0, 1))
)


def _drawn(corners: Sequence[Sequence[float]], x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of the points (x, y) of a grid lie in one of the boxes; the points keep clear of every edge."""
    mask = np.zeros((len(y), len(x)), bool)
    for x_min, y_min, x_max, y_max in corners:
        for low, high, points in ((x_min, x_max, x), (y_min, y_max, y)):
            assume(np.abs(points - low).min() > 1e-9 and np.abs(points - high).min() > 1e-9)
        mask |= np.outer((y > y_min) & (y < y_max), (x > x_min) & (x < x_max))
    return mask


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(bins, max_size=3), st.lists(regions, min_size=1, max_size=3), st.integers(20, 90), st.integers(20, 90))
def test_scores_use_crop_pixels_mapped_to_the_original(
    folder: Path, engine: Install, answered: list[Any], reference: list[Any], width: int, height: int
) -> None:
    middles = (np.arange(518) + 0.5) / 518
    shorter = min(width, height)
    x, y = ((middles * shorter + (side - shorter) // 2) / side for side in (width, height))
    true = _drawn(reference, x, y)
    predicted = _drawn([[(value + 0.5) / 100 for value in corners] for corners in answered], middles, middles)
    assume(true.any())

    Image.new("L", (width, height)).save(folder / "radiograph.png")
    study = Study(sample_id="s", frontal=folder / "radiograph.png")
    boxes = "".join("<box><x{}><y{}><x{}><y{}></box>".format(*corners) for corners in answered)
    engine(lambda _: f"<obj>Seen.{boxes}</obj>")
    phrase = Sentence(text="Seen.", boxes=tuple(box(*corners) for corners in reference))
    out = folder / "out.jsonl"
    for left in folder.glob("out.*"):
        left.unlink()
    run = _ground(study, _phrases(phrase), out)
    intersection = (predicted & true).sum()
    expected = {
        "precision": intersection / predicted.sum() if predicted.any() else 0,
        "recall": intersection / true.sum(),
        "iou": intersection / (predicted | true).sum(),
    }
    (row,) = read_rows(out)
    assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    assert run.scores["mean_iou"].point == pytest.approx(expected["iou"], abs=1e-12)


def test_outside_references_are_not_scored_and_masks_are_counted(study: Study, folder: Path, engine: Install) -> None:
    engine(lambda _: WHOLE)
    masked = LEFT.model_copy(update={"masks": (Mask(size=(1, 1), counts=[0, 1]),)})
    run = _ground(study, _phrases(LEFT, CUT, HIDDEN, UNKNOWN, masked), folder / "out.jsonl")
    assert (run.requested, run.answered, run.compared, run.clipped, run.outside, run.masked) == (5, 5, 3, 1, 1, 1)
    rows = read_rows(folder / "out.jsonl")
    assert [row["is_clipped"] for row in rows] == [False, True, True, None, False]
    assert [row["iou"] is None for row in rows] == [False, False, True, True, False]
    written = _scores(folder / "out.jsonl")
    assert written["scores"]["mean_iou"]["point"] == pytest.approx((2 * rows[0]["iou"] + rows[1]["iou"]) / 3)
    assert written["scores"]["mean_iou"]["n"] == 3
    assert written["counts"]["outside"] == 1


@pytest.mark.parametrize(
    "changed", [CUT, LEFT.model_copy(update={"boxes": CUT.boxes}), LEFT.model_copy(update={"text": "Right nodule."})]
)
def test_a_changed_phrase_is_located_again(study: Study, folder: Path, engine: Install, changed: Sentence) -> None:
    scripted = engine(lambda _: WHOLE)
    _ground(study, _phrases(LEFT, HIDDEN), folder / "out.jsonl")
    scripted.asked.clear()
    reported: list[int] = []
    _ground(study, _phrases(changed, HIDDEN), folder / "out.jsonl", on_changed=reported.append)
    assert (len(scripted.asked), reported) == (1, [1])
    _ground(study, _phrases(changed, HIDDEN), folder / "once.jsonl")
    assert read_rows(folder / "out.jsonl") == read_rows(folder / "once.jsonl")


def test_failures_are_listed_and_the_run_continues(study: Study, folder: Path, engine: Install) -> None:
    engine(lambda request: FailedRequest("too long") if "opacity" in request.example.text else WHOLE)
    gone = Study(sample_id="gone", frontal=folder / "none.png")
    phrases = [Phrase("gone", 0, LEFT), Phrase("gone", 1, CUT), Phrase("no radiograph", 0, LEFT), *_phrases(LEFT, CUT)]
    known = Failure(sample_id="no radiograph", stage="read", reason="no frontal")
    run = ground_phrases([gone, study], phrases, folder / "checkpoint", folder / "out.jsonl", failures=[known])
    assert [[f.sample_id, f.reason.split(": ")[-1]] for f in run.failures] == DATA["failures of phrases"]
    assert (run.requested, run.answered, run.compared) == (5, 1, 1)
    assert len((folder / "failures.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("text", ["<obj>", "<image>", "..."])
def test_an_unrepresentable_phrase_is_a_failure(study: Study, folder: Path, engine: Install, text: str) -> None:
    engine(lambda _: WHOLE)
    run = _ground(study, _phrases(Sentence(text=text), LEFT), folder / "out.jsonl")
    assert (run.answered, [failure.sample_id for failure in run.failures]) == (1, ["s"])


def test_an_empty_response_to_a_phrase_is_a_failure_and_one_without_a_box_is_not(
    study: Study, folder: Path, engine: Install
) -> None:
    engine(lambda request: "</obj>" if "opacity" in request.example.text else "<obj>Nodule.</obj>")
    run = _ground(study, _phrases(LEFT, CUT), folder / "out.jsonl")
    assert (run.answered, run.compared, len(run.failures)) == (1, 1, 1)
    assert "'</obj>'" in run.failures[0].reason


def test_a_completion_may_have_no_box(study: Study, folder: Path, engine: Install) -> None:
    engine(lambda _: "")
    run = _complete([study], folder / "out.jsonl")
    assert (run.answered, run.failures, run.scores["recall"].point) == (2, [], 0)


def test_completions_are_scored_per_sentence(study: Study, folder: Path, engine: Install) -> None:
    scripted = engine(lambda request: str(request.example.target))
    plain = Study(sample_id="plain", frontal=study.frontal, grounded_findings=[UNKNOWN])
    run = _complete([plain, study], folder / "out.jsonl")
    assert (run.requested, run.answered, run.compared, run.clipped, run.outside) == (2, 2, 2, 1, 1)
    assert {(request.form, request.max_new_tokens) for request in scripted.asked} == {("boxes", 150)}
    nodule, opacity = read_rows(folder / "out.jsonl")
    assert [[row["sample_id"], row["index"], row["text"]] for row in (nodule, opacity)] == DATA["completed sentences"]
    # The model's own bins: half a bin off at most, on an image twice as wide as the crop.
    assert list(nodule["boxes"][0].values()) == pytest.approx([0.5, 0.2, 0.75, 0.4], abs=0.005 + 1e-9)
    assert nodule["iou"] > 0.9
    assert (nodule["is_clipped"], opacity["is_clipped"]) == (False, True)
    assert opacity["reference"] == [box(0.1, 0, 0.5, 1).model_dump()]


def test_a_changed_reference_is_completed_again(study: Study, folder: Path, engine: Install) -> None:
    scripted = engine(lambda request: str(request.example.target))
    _complete([study], folder / "out.jsonl")
    scripted.asked.clear()
    wider = CUT.model_copy(update={"boxes": (box(0.1, 0, 0.6, 1),)})
    _complete([study.model_copy(update={"grounded_findings": [UNKNOWN, LEFT, HIDDEN, wider]})], folder / "out.jsonl")
    assert len(scripted.asked) == 1
    assert read_rows(folder / "out.jsonl")[1]["reference"] == [box(0.1, 0, 0.6, 1).model_dump()]


def test_an_unrepresentable_reference_is_listed(study: Study, folder: Path, engine: Install) -> None:
    engine(lambda request: str(request.example.target))
    gone = study.model_copy(update={"sample_id": "gone", "lateral": folder / "none.png"})
    run = _complete([gone, study], folder / "out.jsonl")
    assert [(failure.sample_id, failure.stage) for failure in run.failures] == [("gone", "read")]
    assert {row["sample_id"] for row in read_rows(folder / "out.jsonl")} == {"s"}
    assert (run.answered, run.requested) == (2, 5)


def test_an_unreadable_radiograph_is_listed_once(study: Study, folder: Path, engine: Install) -> None:
    engine(lambda request: WHOLE if "Arm" in request.example.text else FailedRequest("the radiograph cannot be read"))
    run = _ground(study, _phrases(LEFT, CUT, HIDDEN), folder / "out.jsonl")
    assert [failure.reason for failure in run.failures] == ["the radiograph cannot be read"]
    assert len(read_rows(folder / "failures.jsonl")) == 1
    assert (run.answered, run.requested) == (1, 3)


def test_ground_as_a_command(phantoms: Path, checkpoint: Path, tmp_path: Path) -> None:
    studies = read_manifest(phantoms)[:2]
    rows = [{"sample_id": s.sample_id, "phrase": "A mass.", "boxes": [LEFT.model_dump()["boxes"][0]]} for s in studies]
    rows.append({"sample_id": "gone", "phrase": "A mass."})
    (tmp_path / "phrases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    manifest = tmp_path / "manifest.jsonl"
    left_out = [{"sample_id": "gone", "frontal": None}, {"sample_id": "not asked", "frontal": None}]
    lines = [study.model_dump(mode="json") for study in studies]
    manifest.write_text("".join(json.dumps(row) + "\n" for row in [*lines, *left_out]))
    arguments = ("--checkpoint", checkpoint, "--manifest", manifest, "--phrases", tmp_path / "phrases.jsonl")
    options = ("--max-new-tokens", 12, "--device", "cpu")
    result = maira("ground", *arguments, "--out", tmp_path / "out.jsonl", *options, code=3)
    assert "2 of 3 phrases located" in result.stdout
    assert "mean_iou" in result.stdout
    assert "skipped: gone: " in result.stdout
    assert "not asked" not in result.stdout
    assert _scores(tmp_path / "out.jsonl")["scores"]["precision"]["n"] == 2


def test_boxes_as_a_command(phantoms: Path, checkpoint: Path, tmp_path: Path) -> None:
    studies = [study for study in read_manifest(phantoms) if study.prior_frontal is None]
    write_manifest(tmp_path / "set.jsonl", studies)
    arguments = ("--checkpoint", checkpoint, "--manifest", tmp_path / "set.jsonl", "--out", tmp_path / "out.jsonl")
    result = maira("boxes", *arguments, "--max-new-tokens", 12, "--device", "cpu")
    requests_seen = sum(bool(sentence.boxes) for study in studies for sentence in study.grounded_findings or ())
    assert f"boxes of {requests_seen} of {requests_seen} sentences completed" in result.stdout
    plain = sum(not any(s.boxes for s in study.grounded_findings or ()) for study in studies)
    assert (f"{plain} of {len(studies)} studies have no sentence with boxes" in result.stdout) == (plain > 0)
    assert _scores(tmp_path / "out.jsonl")["counts"]["compared"] == requests_seen
