"""IU-Xray as read, beside the paper's table 1: reports with findings, studies and samples, and how many have a lateral.

    python tests/benchmarks/iu_xray.py FOLDER

The folder needs the reports (`NLMCXR_reports.tgz`) and `indiana_projections.csv`; images are not opened and may be
absent. It exits with 1 where the figures are not the expected ones.

Table 1 has 3,198 studies and 3,306 samples, one less of each. Only study 1 has image names in its report that repeat
the study's number (CXR1_1_IM-0001-4001, in the table of views 1_IM-0001-4001.dcm.png). Whoever joins the two by
cutting "CXR" off loses its one frontal and its one lateral, and comes to the paper's figures; the last line counts so.
That it happened so there is a guess: without any other study that has one frontal and a lateral they are the same.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from data.archive import Archive, ArchiveStudy
from data.pairing import Rules, make_samples
from data.sources.iu_xray import read_iu_xray

EXPECTED = (3425, 3199, 3307, "92.1")


def main() -> None:
    """Print the figures of the whole archive and of that without the study whose names differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="folder with the reports and the table of views")
    root = parser.parse_args().root
    began = time.perf_counter()
    archive = read_iu_xray(root)
    seconds = time.perf_counter() - began
    print(f"{len(archive.studies):,} reports in {seconds:.1f} s, {len(archive.failures)} radiographs left out:")
    for failure in archive.failures:
        print(f"  {failure.source}: {failure.reason}")
    found = figures(archive)
    joined_by_name = [study for study in archive.studies if not repeats_number(study)]
    print(f"{'':32} {'findings':>9} {'studies':>8} {'samples':>8} {'% lateral':>9}")
    for name, row in (
        ("as read", found),
        ("table 1", ("", 3198, 3306, "92.1")),
        ("as read, less names that differ", figures(Archive(archive.source, joined_by_name))),
    ):
        print(f"{name:32} {row[0]:>9} {row[1]:>8} {row[2]:>8} {row[3]:>9}")
    sys.exit(0 if found == EXPECTED else 1)


def figures(archive: Archive) -> tuple[int, int, int, str]:
    """Reports with findings, those of them with a frontal, samples, and the percentage of samples with a lateral."""
    samples = make_samples(archive, Rules()).studies
    with_findings = sum(study.findings is not None for study in archive.studies)
    with_lateral = sum(sample.lateral is not None for sample in samples)
    return with_findings, len({s.study_id for s in samples}), len(samples), f"{100 * with_lateral / len(samples):.1f}"


def repeats_number(study: ArchiveStudy) -> bool:
    """Whether images are named in the report as in no table: CXR1_1_IM-... beside CXR2_IM-..."""
    return any(not radiograph.key.startswith(f"{study.study_id}_IM-") for radiograph in study.radiographs)


if __name__ == "__main__":
    main()
