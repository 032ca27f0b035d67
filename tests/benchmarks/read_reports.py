"""Findings that the offline judge detects in the reports of IU-Xray, compared with the manual MeSH codes.

    python tests/benchmarks/read_reports.py FOLDER --half development --out disagreements.txt
    python tests/benchmarks/read_reports.py FOLDER --half held-out
    python tests/benchmarks/read_reports.py FOLDER --half development --pairs

FOLDER holds `NLMCXR_reports.tgz`. Findings and impression of each report are the premises, once as segmented and once
split by the offline splitter; each finding in `iu_codes.yaml` is a hypothesis. It is labeled present if one of its
codes is among the major MeSH codes of the report ("Opacity/lung/base/left"), and not counted if the report only has
codes that leave it open. The codes do not distinguish stated from possible findings ("scarring or atelectasis"): the
last line of scores also counts possible findings as detected.

The side is tested where all codes of a finding name the same side, left or right: how often "There is left X." is
entailed with the labeled side, and with the other, first for detected findings, then for all labels, where the side of
a finding that is not detected counts as not entailed.

`--pairs` measures instead how many sentences of a report follow from the next report with the same codes, at most 60
pairs for each set of codes, and the queries per second on one core.

`--out` writes every disagreement with the report; use it only for the development half. `--half` selects the half of
the reports that the rules of the offline judge were developed on, or the held-out half, by a hash of the id.
"""

import argparse
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from time import process_time
from typing import Any
from xml.etree import ElementTree

import yaml

from maira.data.sources import iu_xray
from radfact.io.jsonl import open_atomic
from radfact.judges import EntailmentQuery, Verdict, split_narrative
from radfact.judges.offline import OfflineJudge
from radfact.reader.facts import parse_sentence, parse_text
from radfact.reader.segmentation import segment_sentences

_CODES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("iu_codes.yaml").read_text(encoding="utf-8"))
FINDINGS, OTHER_FINDINGS, UNDECIDED = _CODES["findings"], _CODES["others"], _CODES["undecided"]
HALVES = ("development", "held-out")
MIDLINE = {"cardiomegaly", "pulmonary edema"}
JUDGE = OfflineJudge()
Counts = Counter[tuple[str, str]]
SIDES = {"left": {"left", "lingula"}, "right": {"right", "middle lobe"}}


@dataclass(frozen=True)
class Report:
    """Id, findings with impression, and codes of a report."""

    key: str
    sections: tuple[str, ...]
    codes: tuple[str, ...]

    def label(self, finding: str) -> bool | None:
        """Return whether a finding is labeled present; None if the codes leave it open."""
        is_open = any(_is_code(code, UNDECIDED.get(finding, ())) for code in self.codes)
        is_present = bool(self.codes_of(finding)) and not (finding == "cardiomegaly" and is_open)
        return None if is_open and not is_present else is_present

    def codes_of(self, finding: str) -> list[str]:
        """Return the codes of a finding."""
        names = FINDINGS.get(finding) or OTHER_FINDINGS[finding]
        return [code for code in self.codes if _is_code(code, names)]

    def side(self, finding: str) -> str | None:
        """Return the side on which all codes of a finding are; None if there is no such side."""
        sides = {_side(code) for code in self.codes_of(finding)}
        return sides.pop() if len(sides) == 1 else None


def _is_code(code: str, names: Sequence[str]) -> bool:
    """Return whether a code is one of the names, or has all of its parts: "Diaphragm/left/elevated"."""
    head, *parts = code.split("/")
    return any(head == first and set(parts) >= set(rest) for first, *rest in (name.split("/") for name in names))


def _side(code: str) -> str | None:
    parts = code.split("/")
    named = {side for side, names in SIDES.items() if not names.isdisjoint(parts)}
    return named.pop() if len(named) == 1 and "bilateral" not in parts else None


def read_reports(root: Path, half: str | None = None) -> Iterator[Report]:
    """Yield the indexed reports with text."""
    for _, content in iu_xray._reports(root):
        tree = ElementTree.fromstring(content)
        key = next((element.get("id", "") for element in tree.iter("uId")), None)
        texts = {part.get("Label"): " ".join("".join(part.itertext()).split()) for part in tree.iter("AbstractText")}
        sections = tuple(text for label in ("FINDINGS", "IMPRESSION") if (text := texts.get(label)))
        codes = tuple("/".join(p.strip() for p in (c.text or "").split("/")) for c in tree.iter("major"))
        if key is None or not sections or not codes or "No Indexing" in codes:
            continue
        if half in (None, HALVES[int(hashlib.sha256(key.encode()).hexdigest(), 16) % 2]):
            yield Report(key, sections, codes)


def main() -> None:
    """Print the scores of segmented and of split reports, and write the disagreements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="folder with the reports")
    parser.add_argument("--half", choices=HALVES)
    parser.add_argument("--out", type=Path, help="file of the disagreements")
    parser.add_argument("--pairs", action="store_true", help="judge reports with the same codes")
    arguments = parser.parse_args()
    reports = list(read_reports(arguments.root, arguments.half))
    print(f"{len(reports):,} reports")
    if arguments.pairs:
        _judge_pairs(reports)
        return
    disagreements: list[str] = []
    for name, split in (("as written", segment_sentences), ("split", split_narrative)):
        counts = Counts()
        for report in reports:
            premises = tuple(sentence for section in report.sections for sentence in split(section))
            for finding in (*FINDINGS, *OTHER_FINDINGS):
                for title, verdict in _compare(report, premises, finding, counts):
                    lines = [f"{report.key}, {name}: {title}", f"codes: {', '.join(report.codes)}"]
                    lines.append(f"evidence: {' | '.join(premises[index] for index in verdict.evidence)}")
                    disagreements.append("\n  ".join([*lines, f"reason: {verdict.why}", *premises]))
        _print(counts, name)
    if arguments.out is not None:
        with open_atomic(arguments.out) as handle:
            handle.write("\n\n".join(disagreements) + "\n")
        print(f"{len(disagreements):,} disagreements: {arguments.out}")


def _judge_pairs(reports: Sequence[Report]) -> None:
    """Print the share of sentences that the next report with the same codes entails, and the speed."""
    by_codes: defaultdict[tuple[str, ...], list[Report]] = defaultdict(list)
    for report in reports:
        by_codes[tuple(sorted(report.codes))].append(report)
    queries = [
        EntailmentQuery(tuple(sentence for part in other.sections for sentence in split_narrative(part)), sentence)
        for group in by_codes.values()
        for report, other in islice(pairwise(group), 60)
        for sentence in split_narrative(report.sections[0])
    ]
    seconds = []
    for _ in range(3):
        parse_sentence.cache_clear()
        parse_text.cache_clear()
        start = process_time()
        verdicts = JUDGE.judge(queries)
        seconds.append(process_time() - start)
    entailed = sum(isinstance(verdict, Verdict) and verdict.status == "entailment" for verdict in verdicts)
    print(f"{entailed:,} of {len(queries):,} sentences entailed ({entailed / len(queries):.1%})")
    print(f"{len(queries) / min(seconds):,.0f} queries per second of processor time, parsing included")


def _compare(report: Report, premises: tuple[str, ...], finding: str, counts: Counts) -> Iterator[tuple[str, Verdict]]:
    """Count one finding of one report, and yield a title and the verdict of each disagreement."""
    label = report.label(finding)
    if label is None:
        return

    def ask(word: str = "") -> Verdict:
        return JUDGE.judge_one(EntailmentQuery(premises, f"There is {word}{finding}."))

    verdict = ask()
    is_detected = verdict.status == "entailment"
    counts[finding, _cell(is_detected, label)] += 1
    if is_detected != label:
        yield f"{finding}: {'missed' if label else 'not labeled'}", verdict
    if finding not in FINDINGS:
        return
    counts["or possible", _cell(is_detected or ask("possible ").status == "entailment", label)] += 1
    side = None if finding in MIDLINE else report.side(finding)
    for name in SIDES if side is not None else ():
        verdict, kind = ask(f"{name} "), "stated" if name == side else "other"
        is_entailed = verdict.status == "entailment"
        for scope in ("all", "detected") if is_detected else ("all",):
            counts[scope, kind] += 1
            counts[scope, f"{kind} entailed"] += is_entailed
        if is_detected and is_entailed != (name == side):
            yield f"{finding}: {kind} side ({name}) is {verdict.status}", verdict


def _cell(is_detected: bool, label: bool) -> str:
    """Return the cell of the confusion matrix: tp, fp, fn or tn."""
    return ("t" if is_detected == label else "f") + ("p" if is_detected else "n")


def _print(counts: Counts, name: str) -> None:
    print(f"{name:32} {'precision':>9} {'recall':>7} {'F1':>6} {'labeled':>8}")
    for findings, total in ((FINDINGS, "micro"), (OTHER_FINDINGS, "micro of the others")):
        for finding in findings:
            _print_scores(counts, finding, [finding])
        _print_scores(counts, total, findings)
    _print_scores(counts, "micro, or possible", ["or possible"])
    for scope, text in (("detected", "detected findings"), ("all", "all labels")):
        for kind in ("stated", "other"):
            share = counts[scope, f"{kind} entailed"] / max(1, counts[scope, kind])
            print(f"  {kind} side, {text}: {share:.3f} of {counts[scope, kind]}")


def _print_scores(counts: Counts, name: str, rows: Iterable[str]) -> None:
    hits, false, missed = (sum(counts[row, cell] for row in rows) for cell in ("tp", "fp", "fn"))
    f1 = 2 * hits / max(1, 2 * hits + false + missed)
    precision, recall = hits / max(1, hits + false), hits / max(1, hits + missed)
    print(f"  {name:30} {precision:9.3f} {recall:7.3f} {f1:6.3f} {hits + missed:8}")


if __name__ == "__main__":
    main()
