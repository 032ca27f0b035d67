"""Tables of a hospital's own export: the cases of `table.yaml`, and splits by patient.

A case has a `table`, CSV as text or JSON as a list, `rules`, and file names of radiographs to go `without`. It expects
an `error`, or all `samples` with some of their fields, their number of `radiographs`, ids of rows in `failures`, and
ids of samples that are `skipped`.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml
from error_checks import raises
from releases import cases, write_file

from maira.data.pairing import Rules
from maira.data.sources.table import read_table
from maira.data.study import IMAGE_COLUMNS

CASES = dict(cases(yaml.safe_load(Path(__file__).with_name("table.yaml").read_text(encoding="utf-8"))))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_samples_and_faults_of_a_table(tmp_path: Path, case: dict[str, Any]) -> None:
    path = tmp_path / ("studies.csv" if isinstance(case["table"], str) else "studies.json")
    write_file(tmp_path, path.name, case["table"])
    rules = Rules(**case.get("rules", {}))
    if "error" in case:
        with raises(case["error"]):
            read_table(path).make(rules)
        return
    table = read_table(path)
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
    write_file(tmp_path, "studies.csv", f"sample_id,patient_id,frontal\n{rows}")
    samples = read_table(tmp_path / "studies.csv").make(Rules(shares={"train": 0.5, "test": 0.5})).studies
    assert {s.split for s in samples} == {"train", "test"}
    assert len({(s.patient_id, s.split) for s in samples}) == 20
