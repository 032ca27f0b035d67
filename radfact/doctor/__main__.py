"""`python -m radfact.doctor`: the examination as plain text, even where the command line itself cannot be imported."""

from __future__ import annotations

import sys

from radfact.doctor.examine import examine

if __name__ == "__main__":
    found = examine()
    print("\n".join(text for _, text in found.lines()))
    sys.exit(0 if found.is_sound else 1)
