"""Prompts of papers: every line is printed in its paper."""

import re
from pathlib import Path

import pytest

from radfact.metrics.llm.llm_metric import load_prompt

SEEDS = Path(__file__).resolve().parents[2].parent / "shared" / "seeds"
# By file with the text of a paper: prompts of metrics, and of the injection of errors.
PAPERS = {
    "000_e6b0ddc06faf3acd.txt": (("preference",), ("modify", "rephrase")),
    "001_eb2a3074c3378f2b.txt": (("fineradscore", "fineradscore_zero_shot", "fineradscore_few_shot"), ()),
    "002_99692e40ec0969ef.txt": ((), ("standardize", "perturb")),
    "003_abf792c1c1f4ab9d.txt": (("vert", "vert_formula", "vert_rubric"), ("inject_a", "inject_b", "plausible")),
}


def letters(text: str) -> str:
    return re.sub(r"[^0-9A-Za-z*+/=]", "", re.sub(r"<[^<>]*>", "", text))


@pytest.mark.skipif(not SEEDS.exists(), reason="the papers' texts are not available")
@pytest.mark.parametrize("paper", PAPERS)
def test_every_line_is_the_papers(paper: str) -> None:
    text = re.sub(r"<\|.*?\|>|\n\d+\s+Preprint. Under review.", "", (SEEDS / paper).read_text(encoding="utf-8"))
    # Numbers of code lines and marks of the scan stand between the lines of a listing.
    text = re.sub(r"(?m)^\d+\t|<tt>|</?pre>|\$\{\\tt X\}\$|\{\\tt X\}", lambda m: "X" if "X" in m[0] else "", text)
    printed = letters(text)
    for package, names in zip(("radfact.metrics.llm", "radfact.meta.injection"), PAPERS[paper], strict=True):
        for name in names:
            lines = [re.sub(r"\{\w+\}", "", line) for line in load_prompt(name, package).splitlines()]
            missing = [line for line in lines if letters(line) not in printed]
            # The authors put the names of the categories into this line.
            assert [line for line in missing if not line.startswith("Introduce errors related to . The errors")] == []
