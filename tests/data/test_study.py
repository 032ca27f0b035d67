from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from maira.data.study import Study

OPTIONAL = ("study_id", "patient_id", "prior_report", "indication", "technique", "comparison", "findings", "split")


@pytest.mark.parametrize("field", [*OPTIONAL, "source", "lateral", "prior_frontal"])
@pytest.mark.parametrize("blank", ["", " \n\t"])
def test_blank_optional_field_is_none(field: str, blank: str) -> None:
    study = Study.model_validate({"sample_id": "s", "frontal": "a.png", field: blank})
    assert getattr(study, field) is None


@pytest.mark.parametrize("field", ["sample_id", "frontal"])
@pytest.mark.parametrize("blank", ["", "  ", None])
def test_identity_and_frontal_are_required(field: str, blank: str | None) -> None:
    with pytest.raises(ValidationError, match=field):
        Study.model_validate({"sample_id": "s", "frontal": "a.png", field: blank})


@pytest.mark.parametrize("field", ["grounded_findings", "phrases"])
def test_report_without_sentences_is_none(field: str) -> None:
    assert getattr(Study.model_validate({"sample_id": "s", "frontal": "a.png", field: []}), field) is None


def test_empty_labels_differ_from_no_labels() -> None:
    study = Study(sample_id="s", frontal=Path("a.png"), labels=[])
    assert study.labels == []
    assert Study(sample_id="s", frontal=Path("a.png")).labels is None
