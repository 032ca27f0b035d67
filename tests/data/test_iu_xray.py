"""IU-Xray: a miniature of the release as Open-i distributes it, with names and quirks of the real one."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from error_checks import raises
from record_files import touch

from maira.data.pairing import Rules, make_samples
from maira.data.sources.iu_xray import read_iu_xray

REAL = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "openi"

# The real files have white space between all elements, and further elements.
REPORT = """<?xml version="1.0" encoding="utf-8"?>
<eCitation>
   <uId id="{uid}"/>
   <MedlineCitation Owner="Indiana University" Status="supplied by publisher">
      <Article PubModel="Electronic">
         <Abstract>
            <AbstractText Label="COMPARISON">{comparison}</AbstractText>
            <AbstractText Label="INDICATION">{indication}</AbstractText>
            <AbstractText Label="FINDINGS">{findings}</AbstractText>
            <AbstractText Label="IMPRESSION">No change of the XXXX.</AbstractText>
         </Abstract>
      </Article>
   </MedlineCitation>
{images}
</eCitation>"""
IMAGE = '<parentImage id="{name}"><figureId>F1</figureId><caption>{caption}</caption></parentImage>'
CELLS = {"findings": "Clear lungs.", "indication": "", "comparison": "", "caption": "PA and lateral chest"}


def _write(root: Path, uid: str, *images: str, **cells: str) -> None:
    cells = CELLS | cells
    path = root / "ecgen-radiology" / f"{uid.removeprefix('CXR')}.xml"
    path.parent.mkdir(exist_ok=True)
    radiographs = "".join(IMAGE.format(name=name, caption=cells["caption"]) for name in images)
    path.write_text(REPORT.format(uid=uid, images=radiographs, **cells), encoding="utf-8")


def _write_views(root: Path, *rows: str) -> None:
    lines = ["uid,filename,projection", *rows]
    (root / "indiana_projections.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    _write(tmp_path, "CXR10", "CXR10_IM-0002-1001", "CXR10_IM-0002-2001")
    _write(
        tmp_path,
        "CXR1",
        "CXR1_1_IM-0001-3001",
        "CXR1_1_IM-0001-4001",
        findings="Wires as on XXXX, XXXX. A drain by XXXX in the  right\n apex; Q-XXXX of XXXXXXXX.",
        indication="XXXX",
        comparison=".",
        caption="Two radiographs of XXXX",
    )
    _write_views(
        tmp_path,
        "1,1_IM-0001-4001.dcm.png,Frontal",
        "1,1_IM-0001-3001.dcm.png,Lateral",
        "10,10_IM-0002-2001.dcm.png,Lateral",
        "10,10_IM-0002-1001.dcm.png,Frontal",
    )
    return tmp_path


def test_reports_become_studies_in_the_order_of_their_numbers(root: Path) -> None:
    archive = read_iu_xray(root)
    assert [study.study_id for study in archive.studies] == ["CXR1", "CXR10"]
    assert (archive.source, archive.failures) == ("iu-xray", [])
    study = archive.studies[0]
    radiographs = [(radiograph.key, radiograph.view) for radiograph in study.radiographs]
    assert radiographs == [("CXR1_1_IM-0001-3001", "lateral"), ("CXR1_1_IM-0001-4001", "frontal")]
    # Removed words are marked as in MIMIC-CXR; the technique is the caption that the images share.
    assert study.findings == "Wires as on ___, ___. A drain by ___ in the right apex; Q-___ of ___."
    assert (study.indication, study.technique, study.comparison) == ("___", "Two radiographs of ___", None)


@pytest.mark.parametrize(
    ("places", "read"),
    [
        (["NLMCXR_png/CXR10_IM-0002-1001.png"], 0),
        (["images/images_normalized/10_IM-0002-1001.dcm.png"], 0),
        (["dcm_b/10_IM-0002-1001.dcm", "dcm_a/10_IM-0002-1001.dcm", "b/CXR10_IM-0002-1001.png"], 1),
        (["a/CXR10_IM-0002-1001.png", "b/CXR10_IM-0002-1001.png", "dcm/10_IM-0002-1001.dcm"], 2),
        (["b/CXR10_IM-0002-1001.png", "a/CXR10_IM-0002-1001.png"], 1),
    ],
)
def test_images_of_every_distribution_are_found_in_a_fixed_order(root: Path, places: list[str], read: int) -> None:
    touch(root / place for place in places)
    assert read_iu_xray(root).studies[1].radiographs[0].path == root / places[read]


def test_packed_reports_are_read(root: Path) -> None:
    loose = read_iu_xray(root)
    with tarfile.open(root / "NLMCXR_reports.tgz", "w:gz") as packed:
        packed.add(root / "ecgen-radiology", "ecgen-radiology")
    for path in (root / "ecgen-radiology").iterdir():
        path.unlink()
    assert read_iu_xray(root) == loose


def test_a_radiograph_without_a_view_is_listed(root: Path) -> None:
    _write(root, "CXR1", "CXR1_IM-9999-1001")
    archive = read_iu_xray(root)
    assert archive.studies[0].radiographs == ()
    assert [(f.source, f.stage) for f in archive.failures] == [("CXR1_IM-9999-1001", "read")]


@pytest.mark.parametrize("row", ["1,1_IM-0001-4001.dcm.png,NaN", "1,1_IM-0001-4001.dcm.png,Oblique", "1,,Frontal"])
def test_an_invalid_row_is_listed_with_its_line(root: Path, row: str) -> None:
    _write_views(root, row)
    assert "indiana_projections.csv:2: " in read_iu_xray(root).failures[0].reason


@pytest.mark.parametrize(
    ("content", "reason"), [("<eCitation><uId", "not XML"), ("<eCitation><uId id='4'/></eCitation>", "uId: expected")]
)
def test_a_broken_report_excludes_only_itself(root: Path, content: str, reason: str) -> None:
    (root / "ecgen-radiology" / "1.xml").write_text(content, encoding="utf-8")
    archive = read_iu_xray(root)
    assert [study.study_id for study in archive.studies] == ["CXR10"]
    assert [f.source for f in archive.failures] == ["1.xml"]
    assert reason in archive.failures[0].reason


def test_missing_reports_and_views_are_named(tmp_path: Path) -> None:
    _write_views(tmp_path)
    with raises(f"{tmp_path.name}: file-not-found"):
        read_iu_xray(tmp_path)
    (tmp_path / "indiana_projections.csv").unlink()
    with raises(f"{tmp_path.name}: file-not-found"):
        read_iu_xray(tmp_path)


@pytest.mark.skipif(not REAL.is_dir(), reason="needs the real reports beside the checkout (shared/data/openi)")
def test_the_real_reports_match_table_1_except_one_study() -> None:
    archive = read_iu_xray(REAL)
    samples = make_samples(archive, Rules()).studies
    assert len(archive.studies) == 3955
    assert sum(study.findings is not None for study in archive.studies) == 3425
    assert (len({s.study_id for s in samples}), len(samples)) == (3199, 3307)
    assert sum(s.lateral is not None for s in samples) / len(samples) == pytest.approx(0.921, abs=0.0005)
    assert len(archive.failures) == 4
