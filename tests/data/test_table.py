"""Tables of a hospital's own export: rows as samples, or as studies in time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from error_checks import raises

from maira.data.pairing import Rules
from maira.data.sources.table import read_table
from maira.data.study import Study

BOX = {"x_min": 0.1, "y_min": 0.1, "x_max": 0.5, "y_max": 0.5}


def _csv(folder: Path, text: str) -> Path:
    path = folder / "studies.csv"
    path.write_text(text, encoding="utf-8")
    return path


def _samples(path: Path, rules: Rules | None = None) -> list[Study]:
    return read_table(path).make(rules or Rules()).studies


def test_a_row_is_a_sample_with_its_prior(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        "sample_id,patient_id,frontal,lateral,prior_frontal,prior_report,findings,split\n"
        'a,p,x/1.dcm,,y/1.dcm,"Old, stable.",Clear.,test\n'
        "b,q,x/2.png,x/3.png,,,,\n",
    )
    table = read_table(path)
    samples = table.make(Rules())
    first, second = samples.studies
    assert (first.prior_report, first.findings, first.split, first.lateral) == ("Old, stable.", "Clear.", "test", None)
    assert first.prior_frontal is not None
    # Files of one name in different folders are different radiographs.
    assert samples.radiographs[first.frontal].path == tmp_path / "x/1.dcm"
    assert samples.radiographs[first.prior_frontal].path == tmp_path / "y/1.dcm"
    assert (second.findings, second.source) == (None, "table")
    assert len(samples.radiographs) == 4


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([1, 2], "studies.json: [0]: invalid-format"),
        ([{"sample_id": "a", "frontal": "1.png"}] * 2, "studies.json: [1].sample_id: duplicate"),
    ],
)
def test_faults_of_a_list_name_its_items(rows: list[object], message: str, tmp_path: Path) -> None:
    (tmp_path / "studies.json").write_text(json.dumps(rows))
    with raises(message):
        read_table(tmp_path / "studies.json")


def test_a_row_without_a_frontal_is_listed_whatever_else_it_has(tmp_path: Path) -> None:
    text = "sample_id,frontal,study_date,findings\na,1.png,2020-01-01,x\nb,,12/03/2020,y\n"
    assert [failure.sample_id for failure in read_table(_csv(tmp_path, text)).failures] == ["b"]


def test_nested_columns_of_a_csv_are_json(tmp_path: Path) -> None:
    cell = json.dumps([{"text": "A mass.", "boxes": [BOX]}]).replace('"', '""')
    (study,) = _samples(_csv(tmp_path, f'sample_id,frontal,phrases\na,1.png,"{cell}"\n'))
    assert study.phrases is not None
    assert study.phrases[0].boxes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sample_id,frontal,findngs\na,1.png,x\n", "studies.csv:2: findngs: unknown-field"),
        ("frontal\n1.png\n", "studies.csv:1: sample_id: missing-field"),
        ("sample_id;frontal\na;1.png\n", "studies.csv:1: invalid-format"),
        ("sample_id,frontal\na,1.png\na,2.png\n", "studies.csv:3: sample_id: duplicate"),
        ("sample_id,frontal,phrases\na,1.png,[x\n", "studies.csv:2: phrases: invalid-format"),
        ("sample_id,frontal,patient_id,split\na,1.png,p,train\nb,2.png,p,test\n", "mismatch"),
        ("sample_id,frontal,study_date,prior_report\na,1.png,2020-01-01,Old.\n", "studies.csv: study_date: mismatch"),
        (
            "sample_id,study_id,frontal,findings,study_date\na,s,1.png,Clear.,20200101\nb,s,2.png,Mass.,20200101\n",
            "studies.csv: findings: mismatch",
        ),
        (
            "sample_id,study_id,frontal,study_date\na,s,1.png,20200101\nb,s,2.png,20200102\n",
            "studies.csv: study_date: mismatch",
        ),
        ("sample_id,frontal,study_date\na,1.png,3/1/2024\n", "studies.csv:2: study_date: invalid-value"),
    ],
)
def test_an_invalid_table_is_a_one_line_error(tmp_path: Path, text: str, message: str) -> None:
    with raises(message) as caught:
        _samples(_csv(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_row_without_a_frontal_is_listed(tmp_path: Path) -> None:
    table = read_table(_csv(tmp_path, "sample_id,frontal\na,\nb,1.png\n"))
    assert [(f.sample_id, f.reason) for f in table.failures] == [("a", "line 2: no frontal image")]
    assert [s.sample_id for s in table.make(Rules()).studies] == ["b"]


def test_dated_studies_get_priors_by_rule(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        "sample_id,study_id,patient_id,study_date,frontal,lateral,findings\n"
        "late,s2,p,2024-03-01T10:00,3.png,,Worse.\n"
        "a,s1,p,2024-03-01 09:30,1.png,l.png,Clear.\n"
        "b,s1,p,2024-03-01 09:30,2.png,l.png,Clear.\n",
    )
    samples = read_table(path).make(Rules(priors="every"))
    names = {image: radiograph.path.name for image, radiograph in samples.radiographs.items()}
    assert [
        (s.sample_id, s.study_id, *(names.get(image) for image in (s.lateral, s.prior_frontal)), s.prior_report)
        for s in samples.studies
    ] == [
        ("late-1", "s2", None, "1.png", "Clear."),
        ("late-2", "s2", None, "2.png", "Clear."),
        ("a", "s1", "l.png", None, None),
        ("b", "s1", "l.png", None, None),
    ]
    assert [s.sample_id for s in _samples(path)] == ["late", "a", "b"]


def test_a_second_row_of_one_frontal_is_listed(tmp_path: Path) -> None:
    path = _csv(tmp_path, "sample_id,study_id,study_date,frontal\na,s,2020-01-01,1.png\nb,s,2020-01-01,1.png\n")
    table = read_table(path)
    assert [s.sample_id for s in table.make(Rules()).studies] == ["a"]
    assert [f.sample_id for f in table.failures] == ["b"]


@pytest.mark.parametrize("date", ["", "2020-01-01"])
@pytest.mark.parametrize("cell", ["", "NaN", "nan", "N/A", "null"])
def test_a_row_without_a_report_is_kept(tmp_path: Path, date: str, cell: str) -> None:
    (study,) = _samples(
        _csv(tmp_path, f"sample_id,study_date,frontal,findings,phrases\na,{date},1.png,{cell},{cell}\n")
    )
    assert (study.sample_id, study.findings, study.phrases) == ("a", None, None)


def test_an_unusable_image_excludes_only_what_needs_it(tmp_path: Path) -> None:
    path = _csv(tmp_path, "sample_id,frontal,lateral,prior_frontal,prior_report\na,1.png,2.png,3.png,Old.\n")
    table = read_table(path)
    radiographs = {radiograph.path.name: radiograph.key for radiograph in table.make(Rules()).radiographs.values()}
    (without_prior,) = table.make(Rules(), frozenset({radiographs["3.png"], radiographs["2.png"]})).studies
    assert (without_prior.lateral, without_prior.prior_frontal, without_prior.prior_report) == (None, None, None)
    assert [f.sample_id for f in table.make(Rules(), frozenset({radiographs["1.png"]})).skipped] == ["a"]


def test_splits_can_be_drawn_by_patient(tmp_path: Path) -> None:
    rows = "".join(f"{n},p{n % 20},{n}.png\n" for n in range(60))
    path = _csv(tmp_path, f"sample_id,patient_id,frontal\n{rows}")
    samples = _samples(path, Rules(shares={"train": 0.5, "test": 0.5}))
    assert {s.split for s in samples} == {"train", "test"}
    assert len({(s.patient_id, s.split) for s in samples}) == 20
