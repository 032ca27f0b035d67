"""Scores of IU-Xray reports in other layouts against themselves, by the offline judge.

    python tests/benchmarks/read_layouts.py FOLDER

FOLDER holds `NLMCXR_reports.tgz` and `indiana_projections.csv`. "Contradictions" counts sentences that the same report
in its own layout contradicts, and "changed" the pairs with another report whose scores differ from those of the
unchanged text.
"""

import argparse
import random
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

from maira.data.sources.iu_xray import read_iu_xray
from radfact import RadFact

ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", *["XI"] * 30)


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?])\s+(?=\S)", text.strip())


def unmarked(text: str) -> list[str]:
    """Sentences in lower case and without marks, except in decimals."""
    return [re.sub(r"(?<!\d)[.,;:](?!\d)", "", sentence).lower() for sentence in sentences(text)]


def listed(mark: Callable[[int], str], joint: str = "\n") -> Callable[[str], str]:
    return lambda text: joint.join(f"{mark(i)} {sentence}" for i, sentence in enumerate(sentences(text)))


LAYOUTS: dict[str, Callable[[str], str]] = {
    "unchanged": str,
    "FINDINGS: on its line": lambda text: f"FINDINGS:\n{text}",
    "IMPRESSION: and a blank line": lambda text: f"IMPRESSION:\n\n{text}",
    "## Findings": lambda text: f"## Findings\n\n{text}",
    "**FINDINGS**": lambda text: f"**FINDINGS**\n{text}",
    "**Findings:** inline": lambda text: f"**Findings:** {text}",
    "FINAL REPORT": lambda text: f"FINAL REPORT\n EXAMINATION: CHEST (PA AND LAT)\n\n FINDINGS: \n\n {text}",
    "Impression: 1. 2. inline": lambda text: f"Impression: {listed(lambda i: f'{i + 1}.', ' ')(text)}",
    "1) 2) inline": listed(lambda i: f"{i + 1})", " "),
    "(1) (2) lines": listed(lambda i: f"({i + 1})"),
    "a. b. lines": listed(lambda i: f"{chr(97 + i)}."),
    "A) B) inline": listed(lambda i: f"{chr(65 + i)})", " "),
    "I. II. lines": listed(lambda i: f"{ROMAN[i]}."),
    "- lines": listed(lambda _: "-"),
    "• lines": listed(lambda _: "•"),
    "* **bold** lines": lambda text: "\n".join(f"* **{sentence}**" for sentence in sentences(text)),
    "wrapped at 70": lambda text: textwrap.fill(text, 70),
    "wrapped at 40, indented": lambda text: textwrap.fill(text, 40, initial_indent="   ", subsequent_indent="   "),
    "capitals": str.upper,
    "capitals, wrapped at 70": lambda text: textwrap.fill(text.upper(), 70),
    "capitals, a heading, CRLF": lambda text: f"FINDINGS:\n{textwrap.fill(text.upper(), 60)}".replace("\n", "\r\n"),
    "lower case": str.lower,
    "blank lines between": lambda text: "\n\n".join(sentences(text)),
    "HTML breaks": lambda text: "<br>".join(sentences(text)),
    "a line each, no final stop": lambda text: "\n".join(sentence.rstrip(".") for sentence in sentences(text)),
    "lower case, a line each, no marks": lambda text: "\n".join(unmarked(text)),
    "capitals, a line each, no marks": lambda text: "\n".join(unmarked(text)).upper(),
    "lower case, no marks at all": lambda text: " ".join(unmarked(text)),
    "capitals, no marks, wrapped at 70": lambda text: textwrap.fill(" ".join(unmarked(text)).upper(), 70),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=150, help="number of reports")
    parser.add_argument("--seed", type=int, default=1, help="of the draw of reports")
    arguments = parser.parse_args()
    reports = [study.findings for study in read_iu_xray(arguments.folder).studies if study.findings]
    texts = random.Random(arguments.seed).sample(reports, arguments.count)
    radfact = RadFact("offline", bootstrap=0)
    unchanged = None
    print("| layout | precision | recall | contradictions | changed |\n|---|---:|---:|---:|---:|")
    for name, lay_out in LAYOUTS.items():
        laid_out = [lay_out(text) for text in texts]
        result = radfact.score(laid_out, texts)
        contradictions = sum(row.get("relation") == "contradiction" for row in result.sentence_rows())
        table = radfact.score(laid_out, texts[1:] + texts[:1]).to_dataframe()
        others = table[["logical_precision", "logical_recall"]].astype(str)
        unchanged = others if unchanged is None else unchanged
        changed = (others != unchanged).any(axis=1).sum()
        precision, recall = result.scores["logical_precision"], result.scores["logical_recall"]
        print(f"| {name} | {precision:.3f} | {recall:.3f} | {contradictions} | {changed} |", flush=True)


if __name__ == "__main__":
    main()
