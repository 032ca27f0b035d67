"""Annotation tasks for Label Studio, and grounded studies from its exports by the rules of the protocol.

The annotations have the documented format of Label Studio 1.23.2, checked with one of its exports.
"""

import json
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from box_strategies import boxes
from error_checks import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from maira.data.annotation import protocol
from maira.data.annotation.combine import agreement, cohens_kappa, combine, ground_studies, iou
from maira.data.annotation.protocol import Annotation, PhraseAnnotation, PhraseLabel, Quality
from maira.data.annotation.results import AnnotatedSample, read_label_studio
from maira.data.annotation.tasks import SCENARIOS, coco_dataset, image_address, labeling_config, task_of
from maira.data.manifest import Failure
from maira.data.study import Label, Study
from radfact.errors import InputError
from radfact.io.coco import decode_mask
from radfact.metrics.radfact.regions import covered_share
from radfact.records import Box, Sentence

WIDTH, HEIGHT = 600, 518
FIRST = "1. Left effusion."
CASES = yaml.safe_load(Path(__file__).with_name("annotation.yaml").read_text(encoding="utf-8"))
Result = dict[str, Any]


def study(*phrases: str, prior: bool = False, **fields: Any) -> Study:
    images = {"frontal": Path("/set/images/a.png"), "prior_frontal": Path("/set/images/p.png") if prior else None}
    sentences = [Sentence(text=text) for text in phrases or ("Left effusion.",)]
    values: dict[str, Any] = {"sample_id": "s1", **images, "findings": "Left effusion.", "phrases": sentences}
    return Study(**values | fields)


def shape(kind: str, name: str, phrase: str = FIRST, image: str = "image", **value: Any) -> Result:
    return {
        "original_width": WIDTH,
        "original_height": HEIGHT,
        "image_rotation": 0,
        "value": value | {kind: [phrase]},
        "id": f"{name}-{phrase}-{len(str(value))}",
        "from_name": name,
        "to_name": image,
        "type": kind,
        "origin": "manual",
    }


def rectangle(phrase: str, box: Box, *, prior: bool = False) -> Result:
    width, height = box.x_max - box.x_min, box.y_max - box.y_min
    corners = {"x": box.x_min * 100, "y": box.y_min * 100, "width": width * 100, "height": height * 100}
    name, image = ("prior_box_0", "prior_0") if prior else ("box", "image")
    return shape("rectanglelabels", name, phrase, image, **corners, rotation=0)


def choice(name: str, value: str, to: str = "image") -> Result:
    return {"value": {"choices": [value]}, "id": name, "from_name": name, "to_name": to, "type": "choices"}


def label_results(index: int, label: str, **more: str) -> list[Result]:
    values = {"label": label, **more}
    return [choice(f"{name}_{index}", value, f"phrase_{index}") for name, value in values.items()]


def passed(*results: Result | list[Result]) -> list[Result]:
    lists = [item if isinstance(item, list) else [item] for item in results]
    return [choice("quality", Quality.NO_ISSUE.value), *chain(*lists)]


def exported(tmp_path: Path, annotated: Study, *annotations: list[Result], **more: Any) -> Path:
    task = task_of(annotated, Path("/set"))
    rows = [
        {"id": i, "completed_by": i, "was_cancelled": False, "result": result, "updated_at": f"2026-01-0{i}"} | more
        for i, result in enumerate(annotations, start=1)
    ]
    path = tmp_path / "export.json"
    path.write_text(json.dumps([{"id": 7, **task, "annotations": rows, "predictions": [], "drafts": []}]))
    return path


def back(tmp_path: Path, annotated: Study, *annotations: list[Result]) -> tuple[Study | None, str]:
    """The grounded study, and why there is none."""
    samples = read_label_studio(exported(tmp_path, annotated, *annotations), [annotated])
    outcome = ground_studies([annotated], samples, "skip")
    return (outcome.studies or [None])[0], "".join(failure.reason for failure in outcome.failures)


def grounded(tmp_path: Path, annotated: Study, results: list[Result]) -> list[Sentence]:
    result, reason = back(tmp_path, annotated, results)
    assert result is not None, reason
    assert result.grounded_findings is not None
    return result.grounded_findings


def mask_of(tmp_path: Path, shape: Result) -> np.ndarray:
    """The mask of a misplaced device, which has a region as other findings do."""
    label = label_results(0, PhraseLabel.FINDING, category="Misplaced Support Devices")
    [sentence] = grounded(tmp_path, study(), passed(label, shape))
    assert sentence.masks is not None
    pixels: np.ndarray = decode_mask(sentence.masks[0])
    return pixels


BOX, OTHER_BOX = Box(x_min=0.2, y_min=0.2, x_max=0.5, y_max=0.7), Box(x_min=0.6, y_min=0.1, x_max=0.9, y_max=0.3)

drawn = st.lists(boxes(smallest=0.001), min_size=1, max_size=3, unique=True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(drawn, drawn)
def test_boxes_are_read_as_drawn(tmp_path: Path, current: list[Box], prior: list[Box]) -> None:
    rectangles = [*(rectangle(FIRST, box) for box in current), *(rectangle(FIRST, box, prior=True) for box in prior)]
    [sentence] = grounded(tmp_path, study(prior=True), passed(rectangles, label_results(0, PhraseLabel.TEMPORAL)))
    for actual, expected in ((sentence.boxes, current), (sentence.prior_boxes, prior)):
        assert actual is not None
        np.testing.assert_allclose([box.as_tuple() for box in actual], [b.as_tuple() for b in expected], atol=1e-9)


@pytest.mark.parametrize(("label", "more", "is_sentence"), CASES["without boxes"])
def test_phrases_become_sentences(tmp_path: Path, label: str, more: dict[str, str], is_sentence: bool) -> None:
    labels = label_results(0, label, **more), label_results(1, PhraseLabel.NON_FINDING)
    sentences = grounded(tmp_path, study("Left effusion.", "No edema."), passed(*labels, rectangle(FIRST, BOX)))
    assert sentences == [Sentence(text=text) for text in ("Left effusion.", "No edema.")][not is_sentence :]


def test_a_resolved_finding_with_a_prior_image_is_located_on_both(tmp_path: Path) -> None:
    resolved = label_results(0, PhraseLabel.TEMPORAL, progression=protocol.Progression.RESOLVED.value)
    results = passed(resolved, rectangle(FIRST, BOX), rectangle(FIRST, OTHER_BOX, prior=True))
    [sentence] = grounded(tmp_path, study(prior=True), results)
    assert sentence.boxes is not None
    assert sentence.prior_boxes is not None


def test_polygons_become_masks(tmp_path: Path) -> None:
    points = [[25, 50], [75, 50], [75, 100], [25, 100]]
    pixels = mask_of(tmp_path, shape("polygonlabels", "polygon", points=points, closed=True))
    expected = np.zeros((HEIGHT, WIDTH), dtype=bool)
    expected[HEIGHT // 2 :, WIDTH // 4 : WIDTH * 3 // 4] = True
    assert (pixels != expected).mean() < 0.005


def test_lines_become_masks(tmp_path: Path) -> None:
    vertices = [{"x": x, "y": y, "id": str(x), "isBezier": False} for x, y in ((50, 10), (50, 60), (80, 60))]
    pixels = mask_of(tmp_path, shape("vectorlabels", "line", vertices=vertices, closed=False))
    assert pixels[int(0.3 * HEIGHT), WIDTH // 2]
    assert pixels[int(0.6 * HEIGHT), int(0.7 * WIDTH)]
    # 0.5 of the height and 0.3 of the width, five pixels wide.
    assert pixels.sum() == pytest.approx((0.5 * HEIGHT + 0.3 * WIDTH) * 5, rel=0.05)


@pytest.mark.parametrize(("results", "reason"), CASES["unusable"])
def test_unusable_samples_are_listed_with_a_reason(tmp_path: Path, results: list[Result], reason: str) -> None:
    grounded_study, listed_reason = back(tmp_path, study(prior=True), results)
    assert grounded_study is None
    assert reason in listed_reason


def test_a_skipped_annotation_is_none(tmp_path: Path) -> None:
    annotated = study()
    path = exported(tmp_path, annotated, passed(label_results(0, PhraseLabel.NON_FINDING)), was_cancelled=True)
    assert read_label_studio(path, [annotated]) == [AnnotatedSample("s1")]


def test_the_latest_annotation_of_a_person_counts(tmp_path: Path) -> None:
    annotated = study()
    first, second = passed(label_results(0, PhraseLabel.OTHER)), passed(label_results(0, PhraseLabel.NON_FINDING))
    path = exported(tmp_path, annotated, first, second, completed_by={"id": 4, "email": "reader@example.org"})
    [sample] = read_label_studio(path, [annotated])
    labels = [(annotation.annotator, annotation.phrases[0].label) for annotation in sample.annotations]
    assert labels == [("reader@example.org", PhraseLabel.NON_FINDING)]


def test_categories_become_study_labels(tmp_path: Path) -> None:
    results = passed(label_results(0, PhraseLabel.FINDING, category="Pleural Effusion"), rectangle(FIRST, BOX))
    result, _ = back(tmp_path, study(), results)
    assert result is not None
    assert (result.phrases, result.labels) == (None, [Label(kind="Pleural Effusion", boxes=(BOX,))])


@pytest.mark.parametrize(("place", "value", "field"), CASES["invalid"])
def test_an_invalid_export_is_an_error_with_its_field(tmp_path: Path, place: str, value: Any, field: str) -> None:
    annotated = study()
    file = exported(tmp_path, annotated, passed(label_results(0, PhraseLabel.FINDING), rectangle(FIRST, BOX)))
    tasks = parent = json.loads(file.read_text())
    *parents, last = [int(key) if key.isdigit() else key for key in ("0", *filter(None, place.split(".")))]
    for key in parents:
        parent = parent[key]
    parent[last] = value
    file.write_text(json.dumps(tasks))
    with pytest.raises(InputError) as caught:
        read_label_studio(file, [annotated])
    assert (caught.value.file, caught.value.field) == (file, ".".join(filter(None, ("[0]", field))))


def test_a_duplicate_task_is_an_error(tmp_path: Path) -> None:
    file = exported(tmp_path, study())
    file.write_text(json.dumps(json.loads(file.read_text()) * 2))
    with raises("export.json: [1].data.sample_id: duplicate"):
        read_label_studio(file, [study()])


def test_every_control_refers_to_an_object() -> None:
    categories = resources.files("maira.data").joinpath("static", "chexpert.txt").read_text("utf-8").splitlines()
    assert protocol.PLACED_DEVICE in categories
    root = ElementTree.fromstring(labeling_config(categories))
    objects = {element.get("name") for element in root.iter() if element.get("name") and element.get("toName") is None}
    assert {element.get("toName") for element in root.iter() if element.get("toName")} <= objects
    headings = {element.get("value") for element in root.iter("Header")}
    assert {rule for rules in SCENARIOS.values() for rule in rules} < headings
    choices = {element.get("name") for element in root.iter("Choices")}
    assert {element.get("whenTagName") for element in root.iter() if element.get("whenTagName")} <= choices


def test_images_are_addressed_below_a_root_or_url() -> None:
    image = Path("/archive/set/images/a b.png")
    assert image_address(image, Path("/archive")) == "/data/local-files/?d=set/images/a%20b.png"
    assert image_address(image, Path("/archive/set"), "https://host/x/") == "https://host/x/images/a%20b.png"
    with raises("a b.png: invalid-option"):
        image_address(image, Path("/elsewhere"))


def test_phrases_with_equal_text_stay_separate(tmp_path: Path) -> None:
    labels = [label_results(number, PhraseLabel.FINDING) for number in range(2)]
    results = passed(*labels, rectangle("1. Rib fracture.", BOX), rectangle("2. Rib fracture.", OTHER_BOX))
    first, second = grounded(tmp_path, study("Rib fracture.", "Rib fracture."), results)
    assert first.boxes != second.boxes


def test_the_coco_dataset_has_the_existing_boxes(tmp_path: Path) -> None:
    for name in ("a.png", "p.png"):
        Image.new("L", (200, 100)).save(tmp_path / name)
    phrases = [Sentence(text="Effusion.", boxes=(BOX,), prior_boxes=(OTHER_BOX,)), Sentence(text="Nodule.")]
    annotated = study(frontal=tmp_path / "a.png", prior_frontal=tmp_path / "p.png", phrases=phrases)
    lost = study(sample_id="s2", frontal=tmp_path / "lost.png")
    left_out: list[Failure] = []
    dataset = coco_dataset([annotated, lost], tmp_path, left_out)
    assert [failure.sample_id for failure in left_out] == ["s2"]
    images = [(image["file_name"], image["role"], image["phrase_ids"]) for image in dataset["images"]]
    assert images == [("a.png", "current", [1, 2]), ("p.png", "prior", [1, 2])]
    [drawn, prior] = dataset["annotations"]
    assert drawn["bbox"] == pytest.approx([40, 20, 60, 50])
    assert (drawn["image_id"], prior["image_id"], drawn["category_id"], prior["category_id"]) == (1, 2, 1, 1)
    assert [category["name"] for category in dataset["categories"]] == ["Effusion.", "Nodule."]


LARGE = Box(x_min=0.0, y_min=0.0, x_max=0.4, y_max=0.4)
NEAR = Box(x_min=0.1, y_min=0.0, x_max=0.4, y_max=0.4)  # Within LARGE, three quarters of it.
FAR = Box(x_min=0.6, y_min=0.6, x_max=0.8, y_max=0.8)


def by(annotator: str, *phrases: PhraseAnnotation, quality: Quality = Quality.NO_ISSUE) -> Annotation:
    return Annotation(annotator, phrases, quality)


def finding(*regions: Box) -> PhraseAnnotation:
    return PhraseAnnotation(PhraseLabel.FINDING, boxes=regions)


NON_FINDING = PhraseAnnotation(PhraseLabel.NON_FINDING)


def test_annotators_are_united_by_majority_with_each_box_once_or_are_an_error_that_names_them() -> None:
    annotations = [by("a", NON_FINDING), by("b", finding(LARGE)), by("c", finding(NEAR, FAR))]
    [united] = combine(annotations, "union").phrases
    assert (united.label, united.boxes) == (PhraseLabel.FINDING, (LARGE, FAR))
    with pytest.raises(protocol.Rejected, match=r"2 annotators \(a, b\)"):
        combine(annotations[:2], "skip")


@given(
    st.lists(st.lists(boxes(st.integers(0, 1000).map(lambda n: n / 1000), 0.011), max_size=3), min_size=2, max_size=3)
)
def test_the_union_covers_all_boxes(annotated: list[list[Box]]) -> None:
    united = combine([by(str(i), finding(*drawn)) for i, drawn in enumerate(annotated)], "union").phrases[0].boxes
    evidence = Sentence(text="union", boxes=united)
    for box in (box for drawn in annotated for box in drawn):
        assert covered_share(Sentence(text="x", boxes=(box,)), [evidence], compat="exact") == pytest.approx(1)


def test_iou_of_hand_computed_regions() -> None:
    assert iou((LARGE,), (), (NEAR,), ()) == pytest.approx(0.75)
    assert iou((LARGE,), (), (FAR,), ()) == 0
    assert iou((LARGE, NEAR), (), (LARGE,), ()) == pytest.approx(1)
    assert iou((), (), (LARGE,), ()) == 0


def test_kappa_of_the_textbook_table() -> None:
    # 20 and 15 of 50 alike, 5 and 10 not: observed 0.7, by chance 0.5.
    pairs = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    assert cohens_kappa(pairs) == pytest.approx(0.4)
    # None without variety.
    assert cohens_kappa([]) is cohens_kappa([("a", "a")] * 3) is None


def test_agreement_of_two_annotators() -> None:
    samples = [
        [by("a", finding(LARGE), NON_FINDING), by("b", finding(NEAR), finding(FAR))],
        [by("b", NON_FINDING, quality=Quality.IMAGE), by("a", NON_FINDING)],
        [by("a", finding(LARGE))],
    ]
    [pair] = agreement(samples)
    expected = {"annotators": ("a", "b"), "samples": 2, "quality_agreement": 0.5, "phrases": 2, "label_agreement": 0.5}
    assert pair | expected | {"located": 1, "located_by_one": 1, "mean_iou": pytest.approx(0.75)} == pair
