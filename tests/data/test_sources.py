"""Readers of archives, tables and reports.

Archives: `releases/NAME.yaml` has the files of a miniature of a release, with its columns, some of which are not read;
names of images, which stay empty; and cases. A case adds `files` (null removes one), changes texts of the first file,
or of that named with `in`, and states `options` of the reader (paths with `./`). It expects the `error`, with a part of
its `message`, or all `studies` with some of their fields and all `failures` (source, a part of the reason, and the
stage if it is not "read"). With `each`, every variant is a case.

Tables: a case of `table.yaml` has a `table`, CSV as text or JSON as a list, own names of its `columns`, `responses` of
a model, `rules`, and file names of radiographs to go `without`. It expects an `error`, or all `samples` with some of
their fields, their number of `radiographs`, ids of rows in `failures` and of samples that are `skipped`, and `unused`
columns.
"""

import re
import string
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import releases
import yaml
from error_checks import raises
from hypothesis import given
from hypothesis import strategies as st

from maira.data.archive import Archive
from maira.data.pairing import Rules, make_samples
from maira.data.sources.chexpert_plus import read_chexpert_plus
from maira.data.sources.coco import read_coco_studies
from maira.data.sources.interpret_cxr import read_interpret_cxr
from maira.data.sources.iu_xray import read_iu_xray
from maira.data.sources.mimic_cxr import read_mimic_cxr
from maira.data.sources.ms_cxr import read_ms_cxr
from maira.data.sources.padchest import read_padchest
from maira.data.sources.padchest_gr import read_padchest_gr
from maira.data.sources.rexgradient import read_rexgradient
from maira.data.sources.section_model import extract_sections
from maira.data.sources.sections import split_report, split_sections
from maira.data.sources.table import FIELDS, read_table
from maira.data.sources.table import SECTIONS as REPORTED
from maira.data.sources.table_records import TableRecord
from maira.data.study import IMAGE_COLUMNS
from radfact.io.columns import check_columns
from radfact.llm import mock_client

OPENI = Path(__file__).resolve().parents[3] / "shared" / "data" / "openi"
READERS: dict[str, Callable[..., Archive]] = {
    "chexpert_plus": read_chexpert_plus,
    "coco": lambda root, **options: read_coco_studies(root / "coco.json", **options),
    "interpret_cxr": lambda root, file=None, **options: read_interpret_cxr(file or root, **options),
    "iu_xray": read_iu_xray,
    "mimic_cxr": lambda root, release="jpg", **options: read_mimic_cxr(root, release, **options),
    "ms_cxr": lambda root, file=None: read_ms_cxr(file or root, root),
    "padchest": read_padchest,
    "padchest_gr": read_padchest_gr,
    "rexgradient": read_rexgradient,
}
CASES = [
    pytest.param(name, release, case, id=f"{name}: {title}")
    for name in READERS
    for release in [releases.load_release(name)]
    for title, case in releases.cases(release["cases"])
]


@pytest.mark.parametrize(("name", "release", "case"), CASES)
def test_the_studies_of_a_release(tmp_path: Path, name: str, release: dict[str, Any], case: dict[str, Any]) -> None:
    root = releases.write_release(tmp_path / "release", release)
    for file, content in case.get("files", {}).items():
        releases.write_file(root, file, content)
    if "change" in case:
        releases.change_file(root / case.get("in", next(iter(release["files"]))), case["change"])
    options = {key: _option(root, value) for key, value in case.get("options", {}).items()}
    if "error" in case:
        with raises(case["error"]) as caught:
            READERS[name](root, **options)
        assert case.get("message", "") in str(caught.value)
        return
    archive = READERS[name](root, **options)
    expected = [(source, *(stage or ["read"]), part) for source, part, *stage in case.get("failures", ())]
    assert [failure[:2] for failure in expected] == [(failure.source, failure.stage) for failure in archive.failures]
    for (*_, part), failure in zip(expected, archive.failures, strict=True):
        assert part in failure.reason
    studies = {releases.without_digest(study.study_id): releases.plain_study(study, root) for study in archive.studies}
    assert list(studies) == list(case["studies"])
    for study, expected_fields in case["studies"].items() if isinstance(case["studies"], dict) else ():
        assert {field: studies[study][field] for field in expected_fields} == expected_fields
    assert archive.source == name.replace("_", "-")


def _option(root: Path, value: Any) -> Any:
    if isinstance(value, list):
        return [_option(root, item) for item in value]
    return root / value if isinstance(value, str) and value.startswith("./") else value


@pytest.mark.slow
@pytest.mark.skipif(not OPENI.is_dir(), reason="needs the real reports beside the checkout (shared/data/openi)")
def test_the_real_reports_of_iu_xray_match_table_1_except_one_study() -> None:
    archive = read_iu_xray(OPENI)
    samples = make_samples(archive, Rules()).studies
    assert len(archive.studies) == 3955
    assert sum(study.findings is not None for study in archive.studies) == 3425
    assert (len({s.study_id for s in samples}), len(samples)) == (3199, 3307)
    assert sum(s.lateral is not None for s in samples) / len(samples) == pytest.approx(0.921, abs=0.0005)
    assert len(archive.failures) == 4


LAYOUTS: dict[str, Callable[[str, str], str]] = {
    "within the line": lambda name, text: f"{name.title()}: {text} ",
    "capitals": lambda name, text: f"{name}: {text} ".upper(),
    "lower case": lambda name, text: f"{name}: {text} ",
    "alone on a line": lambda name, text: f"{name.title()}\n{text}\n",
    "alone in lower case": lambda name, text: f"{name}\n{text}\n",
    "wrapped": lambda name, text: f"{name.title()}:\n{textwrap.fill(text, 60, break_on_hyphens=False)}\n\n",
    "Markdown": lambda name, text: f"**{name.title()}** {text}\n",
    "HTML": lambda name, text: f"<b>{name.upper()}</b><br>{text}<br>",
}


@pytest.mark.slow
@pytest.mark.skipif(not OPENI.is_dir(), reason="needs the real reports beside the checkout (shared/data/openi)")
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_layouts_of_real_reports_keep_their_sections(layout: Callable[[str, str], str]) -> None:
    wrong = 0
    studies = read_iu_xray(OPENI).studies
    for study in studies:
        expected = {name: text for name in reversed(REPORTED) if (text := getattr(study, name))}
        sections = split_report("".join(layout(name, text) for name, text in expected.items()))
        wrong += any(sections.get(name, "").lower() != text.lower() for name, text in expected.items())
    # The others have headings within their sections.
    assert wrong < 0.01 * len(studies)


SECTIONS = yaml.safe_load(Path(__file__).with_name("sections.yaml").read_text(encoding="utf-8"))
TABLES = dict(releases.cases(yaml.safe_load(Path(__file__).with_name("table.yaml").read_text(encoding="utf-8"))))


@pytest.mark.parametrize("case", TABLES.values(), ids=TABLES)
def test_samples_and_faults_of_a_table(tmp_path: Path, case: dict[str, Any]) -> None:
    path = tmp_path / ("studies.csv" if isinstance(case["table"], str) else "studies.json")
    releases.write_file(tmp_path, path.name, case["table"])
    rules = Rules(**case.get("rules", {}))
    names = dict(part.split("=") for part in case["columns"].split(",")) if "columns" in case else {}
    if "error" in case:
        with raises(case["error"]):
            read_table(path, columns=check_columns(names, FIELDS, {})).make(rules)
        return
    extract = partial(extract_sections, client=mock_client([*case["responses"]] * 9)) if "responses" in case else None
    table = read_table(path, columns=names, extract=extract)
    assert list(table.unused) == case.get("unused", [])
    keys = {radiograph.path.name: radiograph.key for radiograph in table.make(rules).radiographs.values()}
    made = table.make(rules, frozenset(keys[name] for name in case.get("without", ())))
    expected_failures = case.get("failures", [])
    assert [failure.sample_id for failure in table.failures] == [name for name, _ in expected_failures]
    for failure, (_, reason) in zip(table.failures, expected_failures, strict=True):
        assert reason in failure.reason
    assert [failure.sample_id for failure in made.skipped] == case.get("skipped", [])
    assert [study.sample_id for study in made.studies] == list(case["samples"])
    for study, fields in zip(made.studies, case["samples"].values(), strict=True):
        images = {column: image for column in IMAGE_COLUMNS if (image := getattr(study, column)) is not None}
        paths = {column: made.radiographs[image].path.relative_to(tmp_path) for column, image in images.items()}
        values = study.model_dump(mode="json", exclude_none=True) | {name: str(path) for name, path in paths.items()}
        assert {name: values.get(name) for name in fields} == fields
    assert len(made.radiographs) == case.get("radiographs", len(made.radiographs))


def test_splits_can_be_drawn_by_patient(tmp_path: Path) -> None:
    rows = "".join(f"{n},p{n % 20},{n}.png\n" for n in range(60))
    releases.write_file(tmp_path, "studies.csv", f"sample_id,patient_id,frontal\n{rows}")
    samples = read_table(tmp_path / "studies.csv").make(Rules(shares={"train": 0.5, "test": 0.5})).studies
    assert {s.split for s in samples} == {"train", "test"}
    assert len({(s.patient_id, s.split) for s in samples}) == 20


@pytest.mark.parametrize(("cell", "texts"), SECTIONS["cells"])
def test_lists_in_a_cell_have_three_notations(cell: Any, texts: list[str | None] | None) -> None:
    record = TableRecord(Path("t.csv"), {"images": cell}, line=4)
    if texts is None:
        with raises("t.csv:4: images: invalid-value"):
            record.texts("images")
    else:
        assert record.texts("images") == texts


@pytest.mark.parametrize(("heading", "section"), SECTIONS["headings"].items())
def test_headings_are_recognized_in_many_spellings(heading: str, section: str) -> None:
    sections = split_sections(f" {heading}:  One sentence of it.\n")
    sections.pop("text", None)
    assert sections == {section: "One sentence of it."}


@pytest.mark.parametrize("case", SECTIONS["reports"].values(), ids=SECTIONS["reports"])
def test_sections_of_a_report_are_prose_on_one_line(case: dict[str, Any]) -> None:
    above = f"{case['above']} {'_' * 78}\n" if "above" in case else ""
    sections = split_sections(above + case["report"])
    assert sections == {"text": sections["text"]} | case["sections"]


@pytest.mark.parametrize("case", SECTIONS["any_source"], ids=lambda case: case["report"][:30])
def test_headings_of_any_source(case: dict[str, Any]) -> None:
    same = {"indication": "cough.", "findings": "The lungs are clear. No effusion.", "impression": "Normal."}
    sections = split_report(case["report"])
    del sections["text"]
    assert sections == case.get("sections", same)


@pytest.mark.parametrize("text", ["", " \n \n", "FINDINGS:", "FINDINGS: \n IMPRESSION: .\n"])
def test_empty_sections_are_none(text: str) -> None:
    assert set(split_sections(text)) <= {"text"}


SENTENCE = st.lists(st.text(string.ascii_lowercase, min_size=1, max_size=8), min_size=1, max_size=12).map(
    lambda words: " ".join(words).capitalize() + "."
)


@given(
    st.lists(
        st.tuples(st.sampled_from([*SECTIONS["headings"]]), st.lists(SENTENCE, min_size=1, max_size=4)), max_size=8
    ),
    st.sampled_from([" ", "\n ", "\n \n "]),
)
def test_each_sentence_is_in_its_section(report: list[tuple[str, list[str]]], gap: str) -> None:
    text = "\n".join(f" {heading}: {gap.join(sentences)}\n " for heading, sentences in report)
    sections = split_sections(text)
    for heading, sentences in report:
        joined = f"{sections.get(SECTIONS['headings'][heading], '')} {sections.get('last_paragraph', '')}"
        assert all(sentence in joined for sentence in sentences)


PIECES = st.sampled_from(
    ["FINDINGS:", "HEART:", "CHEST, PA:", "Impression:", "___", "FINAL", "A:B", ":", "\n", "\n ", "\n \n", " ", "x"]
)


@given(st.text() | st.lists(PIECES).map("".join))
def test_any_text_is_parsed_without_losing_words(text: str) -> None:
    lines = [line for line in text.splitlines() if not re.fullmatch(r"\s*_{10,}\s*", line)]  # A rule says nothing.
    assert "".join(split_sections(text).get("text", "").split()) == "".join("".join(lines).split())
