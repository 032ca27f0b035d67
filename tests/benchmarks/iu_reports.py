"""Write findings sections of IU-Xray as a table for `maira judge-data`: complete ones below 400 characters.

    python tests/benchmarks/iu_reports.py FOLDER --out reports.csv

FOLDER holds `NLMCXR_reports.tgz` and `indiana_projections.csv`. Sections with redacted words are excluded, since their
meaning may differ, and long ones, since they make training on a CPU slow.
"""

import argparse
from pathlib import Path

from maira.data.sources.iu_xray import read_iu_xray
from radfact.pages.meta_page import Table


def main() -> None:
    """Write the table, and print the number of its reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="folder with the reports and the table of views")
    parser.add_argument("--out", type=Path, default=Path("reports.csv"))
    arguments = parser.parse_args()
    studies = [(study.study_id, study.findings) for study in read_iu_xray(arguments.root).studies if study.findings]
    selected = [(key, text) for key, text in studies if "___" not in text and len(text) < 400]
    Table(("id", "report"), selected).write(arguments.out)
    print(f"{len(selected)} of {len(studies)} findings sections: {arguments.out}")


if __name__ == "__main__":
    main()
