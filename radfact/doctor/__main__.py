"""`python -m radfact.doctor`: the checks as plain text, even if the command line itself cannot be imported."""

from __future__ import annotations

import sys

from radfact.doctor import diagnose

if __name__ == "__main__":
    report = diagnose()
    print("\n".join(text for _, text in report.lines()))
    sys.exit(0 if report.passed else 1)
