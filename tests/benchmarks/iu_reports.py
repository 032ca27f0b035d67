"""Write findings sections of IU-Xray as a table for `maira judge-data`: complete ones below 400 characters.

    python tests/benchmarks/iu_reports.py FOLDER --out reports.csv
    python tests/benchmarks/iu_reports.py FOLDER --all --half held-out --out held_out.csv

FOLDER holds `NLMCXR_reports.tgz` and `indiana_projections.csv`. Sections with redacted words are excluded, since their
meaning may differ, and long ones, since they make training on a CPU slow; `--all` includes both. `--half` selects the
half of the reports that the rules of the offline judge were developed on, or the held-out half, by a hash of the
id.
"""

import argparse
import csv
import hashlib
from pathlib import Path

from maira.data.sources.iu_xray import read_iu_xray
from radfact.io.jsonl import open_atomic

REDACTED = "___"
HALVES = ("development", "held-out")


def archive_half(key: str) -> str:
    """Return the half of the archive of a report."""
    return HALVES[int(hashlib.sha256(key.encode()).hexdigest(), 16) % 2]


def main() -> None:
    """Write the table, and print the number of its reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="folder with the reports and the table of views")
    parser.add_argument("--out", type=Path, default=Path("reports.csv"))
    parser.add_argument("--longest", type=int, default=400, metavar="CHARACTERS")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--half", choices=HALVES)
    arguments = parser.parse_args()
    studies = [(study.study_id, study.findings) for study in read_iu_xray(arguments.root).studies if study.findings]
    selected = [
        (key, text)
        for key, text in studies
        if (arguments.all or (REDACTED not in text and len(text) < arguments.longest))
        and arguments.half in (None, archive_half(key))
    ]
    with open_atomic(arguments.out) as handle:
        table = csv.writer(handle, lineterminator="\n")
        table.writerows([("id", "report"), *selected])
    print(f"{len(selected)} of {len(studies)} findings sections: {arguments.out}")


if __name__ == "__main__":
    main()
