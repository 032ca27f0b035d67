"""Manifests: reading, writing, statistics, and findings split into sentences."""

import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from box_strategies import boxes
from error_checks import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from maira_command import maira

from maira.data.manifest import Failure as LeftOut
from maira.data.manifest import read_failures, read_manifest, write_failures, write_manifest
from maira.data.sentences import split_findings
from maira.data.statistics import COLUMNS, manifest_statistics
from maira.data.study import Label, Original, Study
from radfact.errors import Failure
from radfact.io.jsonl import read_json
from radfact.judges import SplitSentence
from radfact.judges.offline_splitter import OfflineSplitter
from radfact.records import Box, Sentence

CASES = yaml.safe_load(Path(__file__).with_name("manifest.yaml").read_text(encoding="utf-8"))
nonblank = st.text(st.characters(exclude_categories=("Cs",)), min_size=1).filter(lambda t: bool(t.strip()))
box_lists = st.none() | st.lists(boxes(), min_size=1, max_size=3).map(tuple)
sentences = st.lists(st.builds(Sentence, text=nonblank, boxes=box_lists, prior_boxes=box_lists), min_size=1, max_size=3)
labels = st.builds(Label, kind=nonblank, side=st.sampled_from(["left", "right", "both", None]), boxes=box_lists)
studies = st.builds(
    Study,
    sample_id=nonblank,
    frontal=st.just(Path("images/a.png")),
    findings=st.none() | nonblank,
    grounded_findings=st.none() | sentences,
    phrases=st.none() | sentences,
    labels=st.none() | st.lists(labels, max_size=2),
)


def write_rows(path: Path, *rows: dict[str, Any] | str) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), encoding="utf-8")
    return path


def row(**fields: Any) -> dict[str, Any]:
    return {"sample_id": "s1", "frontal": "a.png"} | fields


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(studies, max_size=4, unique_by=lambda s: s.sample_id))
def test_write_and_read_round_trip(tmp_path: Path, written: list[Study]) -> None:
    path = tmp_path / "manifest.jsonl"
    assert write_manifest(path, written) == len(written)
    assert read_manifest(path) == [s.model_copy(update={"frontal": tmp_path / s.frontal}) for s in written]


def test_relative_images_are_resolved_from_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "set").mkdir()
    write_rows(tmp_path / "set" / "manifest.jsonl", row(lateral="../other/b.png"))
    monkeypatch.chdir(tmp_path)
    [study] = read_manifest("set/manifest.jsonl")
    assert study.frontal == tmp_path / "set" / "a.png"
    assert study.lateral is not None
    assert study.lateral.resolve() == tmp_path / "other" / "b.png"


@pytest.mark.parametrize(("second", "expected"), CASES["invalid lines"])
def test_an_invalid_line_is_an_error_with_a_number(tmp_path: Path, second: dict[str, Any] | str, expected: str) -> None:
    path = write_rows(tmp_path / "manifest.jsonl", row(), second)
    skipped: list[LeftOut] = []
    has_frontal = isinstance(second, str) or second.get("frontal")
    for failures in (None, skipped) if has_frontal else (None,):
        with raises(f"manifest.jsonl:2: {expected}") as caught:
            read_manifest(path, failures)
        assert "\n" not in str(caught.value)
    assert skipped == []


@pytest.mark.parametrize("frontal", [{}, {"frontal": None}, {"frontal": ""}])
def test_samples_without_a_frontal_are_skipped_on_request(tmp_path: Path, frontal: dict[str, str | None]) -> None:
    path = write_rows(tmp_path / "manifest.jsonl", row(), {"sample_id": "s2", "lateral": "b.png"} | frontal)
    left_out: list[LeftOut] = []
    assert [study.sample_id for study in read_manifest(path, left_out)] == ["s1"]
    (failure,) = left_out
    assert (failure.sample_id, failure.stage) == ("s2", "read")
    assert failure.reason == f"{path}:2: frontal: expected the path of the frontal image"


def test_missing_is_null_in_the_file_which_duplicates_leave_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    study = Study(sample_id="s", frontal=Path("a.png"))
    write_manifest(path, [study])
    before = path.read_bytes()
    assert json.loads(before) == dict.fromkeys(Study.model_fields) | {"sample_id": "s", "frontal": "a.png"}
    with raises("manifest.jsonl:2: sample_id: duplicate"):
        write_manifest(path, [study, study])
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["manifest.jsonl"]


def test_paths_of_originals_move_with_the_manifest(tmp_path: Path) -> None:
    originals = {
        "frontal": Original(path=tmp_path / "dicom/one.dcm"),
        "lateral": Original(path=Path("/archive/films.zip"), member="two.png", is_inverted=True),
    }
    study = Study.model_validate({"sample_id": "s1", "frontal": tmp_path / "a.png", "originals": originals})
    write_manifest(tmp_path / "manifest.jsonl", [study])
    (row,) = (tmp_path / "manifest.jsonl").read_text().splitlines()
    paths = [original["path"] for original in json.loads(row)["originals"].values()]
    assert paths == ["dicom/one.dcm", "/archive/films.zip"]
    assert read_manifest(tmp_path / "manifest.jsonl") == [study]
    tmp_path.rename(moved := tmp_path.with_name("moved"))
    [other] = read_manifest(moved / "manifest.jsonl")
    assert other.frontal == moved / "a.png"


@pytest.mark.parametrize("blank", ["", " \n\t"])
def test_a_blank_optional_text_or_report_without_sentences_is_none(blank: str) -> None:
    empty = {"grounded_findings": [], "phrases": [], "lateral": blank, "prior_frontal": blank}
    texts = ("study_id", "patient_id", "prior_report", "indication", "technique", "comparison", "findings", "split")
    study = Study.model_validate(row(**empty, **dict.fromkeys((*texts, "source"), blank)))
    assert study == Study(sample_id="s1", frontal=Path("a.png"))
    # No finding differs from no labels.
    assert Study.model_validate(row(labels=[])).labels == []


def _study(sample_id: str, findings: str | None = None, **fields: Any) -> Study:
    return Study.model_validate(row(sample_id=sample_id, findings=findings, **fields))


def _write(folder: Path, *studies: Study) -> Path:
    write_manifest(folder / "manifest.jsonl", studies)
    return folder / "manifest.jsonl"


@pytest.mark.parametrize(("studies", "expected"), CASES["statistics"])
def test_counts_are_those_of_table_1(tmp_path: Path, studies: list[dict[str, Any]], expected: dict[str, float]) -> None:
    total = manifest_statistics(_write(tmp_path, *(_study(**fields) for fields in studies)))["total"]
    assert total | expected == total


def test_shares_are_relative_to_the_split(tmp_path: Path) -> None:
    splits = ["test", "train", "train", "train", "train"]
    studies = [_study(f"{n}", findings="Clear.", source=f"s{n % 2}", split=s) for n, s in enumerate(splits)]
    rows = manifest_statistics(_write(tmp_path, *studies), ["source", "split"])["groups"]
    shares = [(row["source"], row["split"], row["share"]) for row in rows]
    assert shares == [("s0", "train", 0.5), ("s0", "test", 1), ("s1", "train", 0.5)]
    for columns in combinations(COLUMNS, 2):
        counted = manifest_statistics(tmp_path / "manifest.jsonl", columns)
        assert sum(row["samples"] for row in counted["groups"]) == counted["total"]["samples"] == len(studies)


def test_the_command_prints_a_row_per_group_and_writes_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    studies = [_study("a", findings="Clear lungs.", source="iu-xray", split="test", lateral="a.png")]
    path, out = _write(tmp_path, *studies), tmp_path / "stats.json"
    output = maira("stats", path).output
    assert "iu-xray test FindGen 1* 1 100.0 100.0 0.0" in " ".join(output.split())
    assert "* studies whose patient is unknown" in output
    maira("stats", path, "--by", "split", "--out", out)
    assert read_json(out) == json.loads(json.dumps(manifest_statistics(path, ["split"])))


LISTING_2 = (
    "Chest x-rays were taken in the upright and lateral positions. Diffuse peribronchovascular opacities are observed "
    "throughout the lungs. No lobar consolidation, effusion, or pneumothorax is detected."
)


class Failing(OfflineSplitter):
    """Splits every narrative except those that contain "failure", and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def explain(self, narratives: Sequence[str]) -> list[list[SplitSentence] | Failure]:
        self.asked += narratives
        return [
            Failure("no valid answer") if "failure" in text else [SplitSentence(text, tuple(text.split("; ")))]
            for text in narratives
        ]


def texts(sentences: Sequence[Sentence] | None) -> list[str]:
    return [sentence.text for sentence in sentences or ()]


def test_listing_2_is_split_and_mapped() -> None:
    result = split_findings([_study("a", LISTING_2)], OfflineSplitter())
    assert texts(result.studies[0].grounded_findings) == CASES["sentences of listing 2"]
    assert [len(sentence.new) for sentence in result.splits["a"]] == [0, 1, 3]
    assert list(result.counts.values()) == [1, 3, 4, 1, 1, len(LISTING_2.split()), 8 + 5 + 4 + 4]


def test_studies_are_split_once_kept_or_listed_with_a_reason() -> None:
    splitter, box = Failing(), Box(x_min=0, y_min=0, x_max=1, y_max=1)
    kept = _study("kept", "One; two", grounded_findings=[Sentence(text="Kept.", boxes=(box,))])
    findings = {"a": "One; two", "b": "One; two", "none": None, "bad": "A failure"}
    result = split_findings([*(_study(*item) for item in findings.items()), kept], splitter)
    assert splitter.asked == ["One; two", "A failure"]
    assert [texts(study.grounded_findings) for study in result.studies[:-1]] == [["One", "two"]] * 2
    assert (result.studies[-1], result.unchanged, result.counts["reports"]) == (kept, 1, 1)
    reasons = [(failure.sample_id, failure.reason) for failure in result.failures]
    assert reasons == [("none", "no findings section"), ("bad", "no valid answer")]


def test_the_command_writes_manifest_map_statistics_and_failures(tmp_path: Path) -> None:
    write_manifest(tmp_path / "manifest.jsonl", [_study("a", LISTING_2), _study("b", None)])
    write_failures(tmp_path / "failures.jsonl", [LeftOut(source="radiograph.dcm", stage="convert", reason="damaged")])
    out = tmp_path / "sentences.jsonl"
    options = ("--judge", "offline", "--compare", "offline", "--out", out)
    maira("sentences", tmp_path / "manifest.jsonl", *options, code=3)
    [made] = read_manifest(out)
    assert made.grounded_findings is not None
    rows = [json.loads(line) for line in (tmp_path / "sentences.map.jsonl").read_text().splitlines()]
    assert [sentence for row in rows for sentence in row["new"]] == texts(made.grounded_findings)
    record = json.loads((tmp_path / "sentences.changes.json").read_text())
    assert record["changes"]["removed"] == 1
    assert record["scores"]["logical_precision"]["point"] == 1.0
    # Failures of the preparation are still listed.
    assert [f.source for f in read_failures(tmp_path / "failures.jsonl")] == ["radiograph.dcm", "sentences.jsonl"]


@pytest.mark.parametrize("words", [["sentences", "--judge", "offline"], ["annotate", "export"]])
def test_an_empty_manifest_is_refused(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "manifest.jsonl").write_text("")
    with raises("manifest.jsonl: empty-input"):
        maira(*words, tmp_path / "manifest.jsonl", "--out", "out")


def test_annotated_sentences_become_a_grounded_manifest(tmp_path: Path) -> None:
    manifest, phrases = (tmp_path / "set" / f"{name}.jsonl" for name in ("manifest", "phrases"))
    rows = {"a": "Left effusion.", "b": None}
    write_manifest(manifest, [_study(name, text, frontal=f"images/{name}.png") for name, text in rows.items()])
    maira("sentences", manifest, "--judge", "offline", "--as", "phrases", "--out", phrases, code=3)
    maira("annotate", "export", phrases, "--out", tmp_path / "tasks")
    tasks = json.loads((tmp_path / "tasks" / "tasks.json").read_text())
    assert tasks[0]["data"]["image"] == "/data/local-files/?d=set/images/a.png"
    assert "## Prior image\n\n- Finding that is not temporal" in (tmp_path / "tasks" / "guide.md").read_text()
    [phrase] = tasks[0]["data"]["phrases"]
    box = {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 0, "rectanglelabels": [phrase["value"]]}
    results = [
        {"from_name": "quality", "to_name": "image", "type": "choices", "value": {"choices": ["No issue"]}},
        {"from_name": "label_0", "to_name": "phrase_0", "type": "choices", "value": {"choices": ["A. Finding"]}},
        {"from_name": "box", "to_name": "image", "type": "rectanglelabels", "value": box},
    ]
    annotations = [{"completed_by": who, "result": results} for who in (1, 2)]
    (tmp_path / "export.json").write_text(json.dumps([tasks[0] | {"annotations": annotations}]))
    out = tmp_path / "grounded" / "manifest.jsonl"
    imported = ("annotate", "import", tmp_path / "export.json", "--manifest", phrases, "--out", out)
    assert "2 annotators (1, 2)" in maira(*imported, code=3).output
    maira(*imported, "--combine", "union", "--overwrite")
    [made] = read_manifest(out)
    assert made.grounded_findings is not None
    assert made.grounded_findings[0].boxes is not None
    assert made.grounded_findings[0].boxes[0].as_tuple() == pytest.approx((0.1, 0.2, 0.4, 0.6))
    [pair] = json.loads((out.parent / "manifest.agreement.json").read_text())["pairs"]
    assert pair["mean_iou"] == pytest.approx(1)
    assert len((out.parent / "manifest.annotations.jsonl").read_text().splitlines()) == 2
    assert not (out.parent / "failures.jsonl").exists()
