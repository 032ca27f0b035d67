"""Findings sections of IU-Xray as a table for `maira judge-data`: complete ones below 400 characters.

    python tests/benchmarks/iu_reports.py FOLDER --out reports.csv
    python tests/benchmarks/iu_reports.py FOLDER --all --half held-out --out held_out.csv

FOLDER holds `NLMCXR_reports.tgz` and `indiana_projections.csv`. Left out are sections with words blacked out for
privacy, which say nothing or something else without them, and long ones, which make training on a CPU slow; `--all`
writes these too. `--half` writes the half of the reports that the invariants of the offline judge were developed on, or
the other one, by a hash of the id.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
from pathlib import Path

from data.sources.iu_xray import read_iu_xray
from radfact.io.jsonl import open_atomic

BLACKED_OUT = "___"
HALVES = ("development", "held-out")


def half(key: str) -> str:
    """Return the half of the archive that a report belongs to."""
    return HALVES[int(hashlib.sha256(key.encode()).hexdigest(), 16) % 2]


def main() -> None:
    """Write the table, and say how many reports it has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="folder with the reports and the table of views")
    parser.add_argument("--out", type=Path, default=Path("reports.csv"))
    parser.add_argument("--longest", type=int, default=400, metavar="CHARACTERS")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--half", choices=HALVES)
    given = parser.parse_args()
    studies = [(study.study_id, study.findings) for study in read_iu_xray(given.root).studies if study.findings]
    kept = [
        (key, text)
        for key, text in studies
        if (given.all or (BLACKED_OUT not in text and len(text) < given.longest)) and given.half in (None, half(key))
    ]
    with open_atomic(given.out) as handle:
        table = csv.writer(handle, lineterminator="\n")
        table.writerows([("id", "report"), *kept])
    print(f"{len(kept)} of {len(studies)} findings sections: {given.out}")


if __name__ == "__main__":
    main()
