"""Readers of archives: the studies of a miniature of each release, and what they say of its faults.

`releases/NAME.yaml` has the files of a miniature, with the columns of the release, some of which are not read; names of
images, which stay empty; and cases. A case adds `files` (null removes one), changes texts of the first file, or of that
named with `in`, and states `options` of the reader (paths with `./`). It expects the `error`, with a part of its
`message`, or all `studies` with some of their fields and all `failures` (source, a part of the reason, and the stage if
it is not "read"). With `each`, every variant is a case.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from error_checks import raises
from releases import (
    cases,
    change_file,
    load_release,
    plain_failures,
    plain_study,
    without_digest,
    write_file,
    write_release,
)

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
    for release in [load_release(name)]
    for title, case in cases(release["cases"])
]


@pytest.mark.parametrize(("name", "release", "case"), CASES)
def test_studies_and_faults_of_a_release(
    tmp_path: Path, name: str, release: dict[str, Any], case: dict[str, Any]
) -> None:
    root = write_release(tmp_path / "release", release)
    for file, content in case.get("files", {}).items():
        write_file(root, file, content)
    if "change" in case:
        change_file(root / case.get("in", next(iter(release["files"]))), case["change"])
    options = {key: _option(root, value) for key, value in case.get("options", {}).items()}
    if "error" in case:
        with raises(case["error"]) as caught:
            READERS[name](root, **options)
        assert case.get("message", "") in str(caught.value)
        return
    archive = READERS[name](root, **options)
    failures = plain_failures(archive)
    expected = [(source, part, *stage) for source, part, *stage in case.get("failures", ())]
    assert [(source, *stage) for source, _, *stage in expected] == [
        (source, stage) if stage != "read" else (source,) for source, _, stage in failures
    ]
    for (_, part, *_), (_, reason, _) in zip(expected, failures, strict=True):
        assert part in reason
    studies = {without_digest(study.study_id): plain_study(study, root) for study in archive.studies}
    assert list(studies) == list(case["studies"])
    for study, expected_fields in case["studies"].items() if isinstance(case["studies"], dict) else ():
        assert {field: studies[study][field] for field in expected_fields} == expected_fields
    assert archive.source == name.replace("_", "-")


def _option(root: Path, value: Any) -> Any:
    if isinstance(value, list):
        return [_option(root, item) for item in value]
    return root / value if isinstance(value, str) and value.startswith("./") else value


@pytest.mark.skipif(not OPENI.is_dir(), reason="needs the real reports beside the checkout (shared/data/openi)")
def test_the_real_reports_of_iu_xray_match_table_1_except_one_study() -> None:
    archive = read_iu_xray(OPENI)
    samples = make_samples(archive, Rules()).studies
    assert len(archive.studies) == 3955
    assert sum(study.findings is not None for study in archive.studies) == 3425
    assert (len({s.study_id for s in samples}), len(samples)) == (3199, 3307)
    assert sum(s.lateral is not None for s in samples) / len(samples) == pytest.approx(0.921, abs=0.0005)
    assert len(archive.failures) == 4
