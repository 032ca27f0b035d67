"""Files: JSON and CSV, readers of pairs, drafts, COCO and ReXrank files, and the export for ReXrank."""

import gzip
import json
import math
import re
import stat
import tracemalloc
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import yaml
from error_checks import full_disk, raises, reports_of_coco
from hypothesis import given
from hypothesis import strategies as st
from pycocotools import mask as coco
from results_folder import write_manifest as write_rows

from radfact.errors import InputError
from radfact.io.coco import decode_mask, read_coco
from radfact.io.csv_tables import read_csv, write_csv
from radfact.io.jsonl import append_jsonl, read_json, read_jsonl, write_json, write_jsonl
from radfact.io.pairs import read_candidates_and_references, read_pairs
from radfact.io.rexrank import findings_of
from radfact.meta.datasets.reports import read_counts, read_reports
from radfact.records import Pair, PatientContext, Sentence

CASES = yaml.safe_load(Path(__file__).with_name("invalid_tables.yaml").read_text("utf-8"))
# Half of a surrogate pair is no text that a UTF-8 file could hold.
encodable = st.text(alphabet=st.characters(codec="utf-8"))


@given(
    rows=st.lists(
        st.dictionaries(encodable, encodable | st.integers() | st.none() | st.lists(encodable), max_size=4), max_size=5
    )
)
def test_written_rows_are_unchanged(rows: list[dict[str, object]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    assert write_jsonl(path, rows) == len(rows)
    assert [row for _, row in read_jsonl(path)] == rows


def test_lines_are_those_of_editors_without_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": "x\u2028y"}\n\n{"a": 2}\n', encoding="utf-8-sig")
    assert list(read_jsonl(path)) == [(1, {"a": "x\u2028y"}), (3, {"a": 2})]


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_non_finite_number_is_refused_and_keeps_the_old_file(number: float, tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    write_json(path, {"point": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"point": number})
    assert read_json(path) == {"point": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_written_files_are_private(tmp_path: Path) -> None:
    write_json(tmp_path / "new" / "scores.json", {})
    append_jsonl(tmp_path / "new" / "rows.jsonl", [{}])
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"new": 0o700, "scores.json": 0o600, "rows.jsonl": 0o600}


TOO_MUCH = ["[" * 100_000, '{"a": ' + "9" * 5_000 + "}"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *(("rows.jsonl", *case) for case in CASES["lines"]),
        *(("rows.jsonl", text, ":1: not JSON that can be read") for text in TOO_MUCH),
        *(("t.csv", *case) for case in CASES["tables"]),
        ("t.csv", "a\n" + "1\n" * 9000 + "\xff\n", ":9002: not UTF-8 text"),
        ("t.csv.gz", "a\n1\n", "cannot be read: Not a gzipped file"),
        ("t.csv.gz", gzip.compress(b"a\n1\n", mtime=0)[:-9].decode("latin-1"), "cannot be read: Compressed file ended"),
    ],
)
def test_invalid_content_is_one_line_with_its_location(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=f"^{re.escape(str(tmp_path / name))}.*{message}[^\n]*$"):
        list(read_jsonl(tmp_path / name) if name == "rows.jsonl" else read_csv(tmp_path / name)[1])


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "quote.csv.gz", "rows.jsonl"])
def test_a_damaged_file_does_not_fill_the_memory(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radfact.io.jsonl._LINE_BYTES", 1 << 20)
    with (gzip.open if name.endswith(".gz") else open)(tmp_path / name, "wb") as handle:
        handle.write(b'{}\n"')
        for _ in range(1000):
            handle.write(b"x" * 100_000 + (b"\n" if name == "quote.csv.gz" else b""))
    tracemalloc.start()
    with raises(f"{name}:2: invalid-format"):
        list(read_jsonl(tmp_path / name) if name == "rows.jsonl" else read_csv(tmp_path / name)[1])
    assert tracemalloc.get_traced_memory()[1] < 90 << 20
    tracemalloc.stop()


@pytest.mark.parametrize(("content", "error"), CASES["documents"])
def test_an_invalid_document_is_refused(content: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "pairs.json").write_text(content)
    with raises(f"pairs.json:{error}"):
        read_json(tmp_path / "pairs.json")


@pytest.mark.parametrize("write", [write_jsonl, append_jsonl])
def test_a_full_disk_error_names_the_file(write: Callable[[Path, Any], object], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with full_disk(100), pytest.raises(OSError, match="cannot be written: File too large") as caught:
        write(path, [{"text": "x" * 200}])
    assert caught.value.filename == str(path)
    assert [item for item in tmp_path.iterdir() if write is write_jsonl] == []


@pytest.mark.parametrize("name", ["file/rows.jsonl", "file/folder/rows.jsonl", "r" * 250])
def test_a_file_that_cannot_be_created_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError, match="cannot be written: ") as caught:
        write_json(tmp_path / name, {})
    assert caught.value.filename == str(tmp_path / name)


def test_errors_of_other_files_are_not_changed(tmp_path: Path) -> None:
    rows = ({"text": path.read_text()} for path in [tmp_path / "none.txt"])
    with pytest.raises(FileNotFoundError) as caught:
        write_jsonl(tmp_path / "rows.jsonl", rows)
    assert caught.value.filename == str(tmp_path / "none.txt")


# Tables read row by row, plain and packed


def read_table(path: Path) -> list[tuple[int, list[str]]]:
    return [(line, list(row.values())) for line, row in read_csv(path)[1]]


def test_rows_are_read_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('a,b,c\n1," 2 ",NaN\n\n"x\ny",,3\n', encoding="utf-8-sig")
    assert read_table(path) == [(2, ["1", " 2 ", "NaN"]), (4, ["x\ny", "", "3"])]
    # Columns without a name may be many.
    text = "Clear lungs. " * 20_000  # longer than Python's limit
    path.write_text(f'"b; c; d",a,,\n1,{text},,\n')
    assert read_csv(path)[0] == ["b; c; d", "a", "", ""]
    assert read_table(path) == [(2, ["1", text, ""])]


@given(st.one_of(encodable, st.text(alphabet="'=+-@ \t\r\nab0.＝", max_size=6)))
def test_a_written_cell_is_no_formula_and_is_read_as_it_was(text: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        write_csv(path, ["text", "number"], [[text.replace("\0", ""), -0.5]])
        assert not path.read_text("utf-8").split("\n", 1)[1].lstrip('" ').startswith(("=", "+", "-", "@"))
        assert read_table(path) == [(2, [text.replace("\0", ""), "-0.5"])]


def test_a_zip_of_two_tables_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.zip"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("a.csv", "a\n1\n")
        packed.writestr("__MACOSX/._a.csv", "")
    assert read_table(path) == [(2, ["1"])]
    with zipfile.ZipFile(path, "a") as packed:
        packed.writestr("b.csv", "a\n1\n")
    with pytest.raises(InputError, match="expected one CSV file, found 2"):
        read_table(path)


INVALID, READABLE = (
    yaml.safe_load(Path(__file__).with_name(f"{kind}_reports.yaml").read_text("utf-8"))
    for kind in ("invalid", "readable")
)

READERS: dict[str, Callable[..., object]] = {
    "pairs": read_pairs,
    "drafts": read_candidates_and_references,
    "coco": reports_of_coco,
    "candidates of COCO": read_candidates_and_references,
    "references of COCO": read_candidates_and_references,
    "counts": read_counts,
    "reports of sites": partial(read_reports, default_site=""),
}


def write_files(case: dict[str, Any], folder: Path) -> list[Path]:
    files = case.get("files", {})
    if "annotations" in case:
        images, categories = [{"id": 1, "width": 200, "height": 100}], [{"id": 7, "name": "Nodule"}]
        dataset = {"images": images, "categories": categories, "annotations": case["annotations"]}
        files = {"coco.json": dataset}
    for name, content in files.items():
        if name.endswith(".jsonl") and not isinstance(content, str):
            write_rows(folder / name, *content)
        else:
            (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return [folder / name for name in files if name != "failures.jsonl"]


def as_report(value: Any) -> Any:
    return value if isinstance(value, str) else [Sentence.model_validate(item) for item in value]


@pytest.mark.parametrize("case", READABLE)
def test_files_are_read(case: dict[str, Any], tmp_path: Path) -> None:
    read: Any = READERS[case["reader"]](*write_files(case, tmp_path), **case.get("options", {}))
    if case["reader"] == "coco":
        assert read == {name: as_report(report) for name, report in case["reports"].items()}
        return
    context = PatientContext(*case.get("context", ()))
    assert list(read) == [Pair(name, *map(as_report, reports), context=context) for name, *reports in case["pairs"]]
    counts = [read.read, read.skipped, [*read.without_reference]]
    assert case.get("counts", counts) == counts
    assert read.missing_values == case.get("missing", {})
    assert read.without_candidate == case.get("without", {})


@pytest.mark.parametrize("case", INVALID, ids=lambda case: case["error"])
def test_an_invalid_file_is_one_line_with_its_location(case: dict[str, Any], tmp_path: Path) -> None:
    paths = write_files(case, tmp_path)
    with raises(case["error"]):
        READERS[case["reader"]](*paths, **case.get("options", {}))


PIXELS = np.zeros((100, 200), dtype=np.uint8)
PIXELS[10:40, 10:30] = 1


@pytest.mark.parametrize(
    "segmentation",
    [
        [[10, 10, 30, 10, 30, 40, 10, 40]],
        {"size": [100, 200], "counts": coco.encode(np.asfortranarray(PIXELS))["counts"].decode()},
        {"size": [100, 200], "counts": [1010, 30, *[70, 30] * 19, 17060]},
    ],
    ids=["polygons", "packed runs", "runs"],
)
def test_a_segmentation_becomes_a_mask_and_overrides_the_bbox(segmentation: Any, tmp_path: Path) -> None:
    annotation = {"image_id": 1, "category_id": 7, "segmentation": segmentation, "bbox": [0, 0, 200, 100]}
    (sentence,) = read_coco(*write_files({"annotations": [annotation]}, tmp_path)).reports["1"]
    assert sentence.boxes is None
    assert sentence.masks is not None
    assert (decode_mask(sentence.masks[0]) == PIXELS).all()


@given(
    drafted=st.sets(st.integers(0, 9).map(str), min_size=1), recorded=st.sets(st.integers(0, 9).map(str), min_size=1)
)
def test_ids_must_match(drafted: set[str], recorded: set[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("match")
    rows = [{"sample_id": key, "report": "Clear."} for key in sorted(drafted)]
    drafts = write_rows(folder / "drafts.jsonl", *rows)
    rows = [{"sample_id": key, "findings": "Clear."} for key in sorted(recorded)]
    manifest = write_rows(folder / "manifest.jsonl", *rows)
    if drafted == recorded:
        assert len(read_candidates_and_references(drafts, manifest)) == len(drafted)
        return
    alone = sorted(drafted - recorded) or sorted(recorded - drafted)
    with pytest.raises(InputError) as caught:
        read_candidates_and_references(drafts, manifest)
    assert f"{len(alone)} {'candidate' if drafted - recorded else 'reference'}" in str(caught.value)
    assert ", ".join(alone[:5]) in str(caught.value)


def test_ages_are_years_and_unreadable_ones_unknown() -> None:
    years = {5: 5.0, "006M": 0.5, "26 weeks": 0.5, ">89": None, True: None, "": None}
    assert {age: PatientContext.of({"age": age}).age for age in years} == years


Run = Callable[..., tuple[int, str, str]]

REXRANK = yaml.safe_load(Path(__file__).with_name("rexrank.yaml").read_text("utf-8"))
STUDIES: dict[str, dict[str, Any]] = REXRANK["studies"]


@pytest.fixture
def predictions(tmp_path: Path) -> Path:
    write_json(tmp_path / "predictions.json", STUDIES)
    return tmp_path / "predictions.json"


def test_findings_are_compared_without_headings_and_reports_with_them(predictions: Path) -> None:
    pairs = read_pairs(predictions)
    (pair,) = pairs
    assert (pair.sample_id, pair.candidate, pair.reference) == ("s1", "The lungs are clear.", "Lungs are clear.")
    assert pair.context == PatientContext(67, "Cough", "None")
    assert pair.cluster == "7"
    assert (pairs.read, pairs.skipped, pairs.without_reference, pairs.files) == (2, 1, ("s2",), (predictions,))
    first, second = read_pairs(predictions, section="report", cluster="none")
    assert first.candidate == STUDIES["s1"]["model_prediction"]
    assert first.reference == "Findings: Lungs are clear. Impression: Normal."
    assert second.reference == "Impression: Small effusion."
    # A range is no age.
    assert second.context == PatientContext(None, None, "none")
    assert {report: findings_of(report) for report in REXRANK["findings"]} == REXRANK["findings"]


def test_a_file_without_predictions_has_the_references_of_drafts(tmp_path: Path, predictions: Path) -> None:
    test_set = {key: {k: v for k, v in study.items() if k != "model_prediction"} for key, study in STUDIES.items()}
    write_json(tmp_path / "test.json", test_set)
    write_jsonl(tmp_path / "drafts.jsonl", [{"sample_id": "s1", "report": "Clear lungs."}])
    (pair,) = read_candidates_and_references(tmp_path / "drafts.jsonl", tmp_path / "test.json")
    assert (pair.candidate, pair.reference) == ("Clear lungs.", "Lungs are clear.")
    drafts = (tmp_path / "drafts.jsonl", tmp_path / "test.json")
    (pair,) = read_candidates_and_references(*drafts, section="report", missing="skip")
    assert pair.reference == "Findings: Lungs are clear. Impression: Normal."
    (pair,) = read_candidates_and_references(predictions, tmp_path / "test.json")
    assert pair.candidate == "The lungs are clear."


def test_an_export_holds_the_scored_reports_and_can_be_read(run_radfact: Run, predictions: Path) -> None:
    options = ["--metrics", "lateral_mentions", "--section", "report", "--out", "r"]
    assert run_radfact("evaluate", predictions.name, *options)[0] == 0
    code, out, _ = run_radfact("export", "r", "--format", "rexrank")
    assert (code, "r/rexrank_predictions.json" in out) == (0, True)
    assert read_json("r/rexrank_predictions.json") == STUDIES
    write_json(predictions, {**STUDIES, "s1": {**STUDIES["s1"], "model_prediction": "Other."}})
    code, _, err = run_radfact("export", "r", "--format", "rexrank", "--overwrite")
    assert (code, "[mismatch]" in err) == (2, True)
    assert read_json("r/rexrank_predictions.json") == STUDIES


def test_pairs_of_another_layout_are_exported(run_radfact: Run) -> None:
    Path("pairs.csv").write_text("example_id,prediction,target,age\n1,Clear lungs.,Normal lungs.,67\n")
    run_radfact("evaluate", "pairs.csv", "--metrics", "lateral_mentions", "--out", "r")
    assert run_radfact("export", "r", "--format", "rexrank", "--out", "x.json")[0] == 0
    expected = {"section_findings": "Normal lungs.", "context": "Age: 67", "model_prediction": "Clear lungs."}
    assert read_json("x.json") == {"1": expected}
    assert read_pairs("x.json")[0].context.age == 67
