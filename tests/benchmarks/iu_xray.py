"""Counts of IU-Xray compared with table 1 of the paper: reports with findings, studies, samples, lateral images.

    python tests/benchmarks/iu_xray.py FOLDER

The folder needs the reports (`NLMCXR_reports.tgz`) and `indiana_projections.csv`; images are not opened and may be
absent. It exits with 1 if the counts are not the expected ones.

Table 1 has 3,198 studies and 3,306 samples, one less of each. Only the report of study 1 has image names that repeat
the number of the study (CXR1_1_IM-0001-4001; 1_IM-0001-4001.dcm.png in the table of views). A join on the name without
"CXR" loses its frontal and lateral image, and gives the counts of the paper, as in the last line. This is one possible
explanation: excluding any other study with one frontal and a lateral image gives the same counts.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from maira.data.archive import Archive, ArchiveStudy
from maira.data.pairing import Rules, make_samples
from maira.data.sources.iu_xray import read_iu_xray

EXPECTED = (3425, 3199, 3307, "92.1")


def main() -> None:
    """Print the counts of the archive, with and without the study whose names differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="folder with the reports and the table of views")
    root = parser.parse_args().root
    started = time.perf_counter()
    archive = read_iu_xray(root)
    seconds = time.perf_counter() - started
    print(f"{len(archive.studies):,} reports in {seconds:.1f} s, {len(archive.failures)} radiographs excluded:")
    for failure in archive.failures:
        print(f"  {failure.source}: {failure.reason}")
    counts = count(archive)
    joined_by_name = [study for study in archive.studies if not repeats_number(study)]
    print(f"{'':32} {'findings':>9} {'studies':>8} {'samples':>8} {'% lateral':>9}")
    for name, row in (
        ("as read", counts),
        ("table 1", ("", 3198, 3306, "92.1")),
        ("as read, without study 1", count(Archive(archive.source, joined_by_name))),
    ):
        print(f"{name:32} {row[0]:>9} {row[1]:>8} {row[2]:>8} {row[3]:>9}")
    sys.exit(0 if counts == EXPECTED else 1)


def count(archive: Archive) -> tuple[int, int, int, str]:
    """Return the reports with findings, studies, samples, and the percentage of samples with a lateral image."""
    samples = make_samples(archive, Rules()).studies
    with_findings = sum(study.findings is not None for study in archive.studies)
    with_lateral = sum(sample.lateral is not None for sample in samples)
    return with_findings, len({s.study_id for s in samples}), len(samples), f"{100 * with_lateral / len(samples):.1f}"


def repeats_number(study: ArchiveStudy) -> bool:
    """Return whether the image names of a report repeat the study number: CXR1_1_IM-... instead of CXR1_IM-..."""
    return any(not radiograph.key.startswith(f"{study.study_id}_IM-") for radiograph in study.radiographs)


if __name__ == "__main__":
    main()
