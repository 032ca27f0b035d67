"""Findings that the offline judge detects in the reports of IU-Xray, compared with the manual MeSH codes.

    python tests/benchmarks/read_reports.py FOLDER --half development --out disagreements.txt
    python tests/benchmarks/read_reports.py FOLDER --half held-out
    python tests/benchmarks/read_reports.py FOLDER --half development --pairs

FOLDER holds `NLMCXR_reports.tgz`. Findings and impression of each report are the premises, once as segmented and once
split by the offline splitter; each of the eight `findings` in `iu_codes.yaml` is a hypothesis. A finding is labeled
present if one of its codes is among the major MeSH codes of the report ("Opacity/lung/base/left"). A report is not
counted for a finding if it only has codes that leave the finding open, such as "Cardiomegaly/borderline" (`undecided`).
The findings in `others` have their own row, outside of the micro average.

Unlike the judge, the codes do not distinguish stated from possible findings ("scarring or atelectasis"): the last line
of scores also counts possible findings as detected.

The side is tested where all codes of a finding name the same side, left or right (the lingula is on the left, the
middle lobe on the right): how often "There is left X." is entailed with the labeled side, and with the other, first
for detected findings, then for all labels, where the side of a finding that is not detected counts as not entailed.

`--pairs` measures instead how many sentences of a report follow from the next report with the same codes, at most 60
pairs for each set of codes, and the queries per second on one core.

`--out` writes every disagreement with the report; use it only for the development half (`iu_reports.py`).
"""

import argparse
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from time import process_time
from xml.etree import ElementTree

import yaml
from iu_reports import HALVES, archive_half

from radfact.io.jsonl import open_atomic
from radfact.judges import EntailmentQuery, Verdict, split_narrative
from radfact.judges.offline import OfflineJudge
from radfact.reader.facts import parse_sentence, parse_text
from radfact.reader.segmentation import segment_sentences

_CODES: dict[str, dict[str, list[str]]] = yaml.safe_load(
    Path(__file__).with_name("iu_codes.yaml").read_text(encoding="utf-8")
)
FINDINGS, OTHER_FINDINGS, UNDECIDED = _CODES["findings"], _CODES["others"], _CODES["undecided"]
MIDLINE = {"cardiomegaly", "pulmonary edema"}


@dataclass(frozen=True)
class Report:
    """Id, findings with impression, and codes of a report."""

    key: str
    sections: tuple[str, ...]
    codes: tuple[str, ...]

    def label(self, finding: str) -> bool | None:
        """Return whether a finding is labeled present; None if the codes leave it open."""
        if any(_is_code(code, UNDECIDED["cardiomegaly"]) for code in self.codes) and finding == "cardiomegaly":
            return None
        if self.codes_of(finding):
            return True
        return None if any(_is_code(code, UNDECIDED.get(finding, ())) for code in self.codes) else False

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
    sides = {"left": "left", "lingula": "left", "right": "right", "middle lobe": "right"}
    named = {sides[part] for part in parts if part in sides}
    return named.pop() if len(named) == 1 and "bilateral" not in parts else None


def read_reports(root: Path) -> Iterator[Report]:
    """Yield the indexed reports with text."""
    with tarfile.open(root / "NLMCXR_reports.tgz") as archive:
        for member in archive:
            handle = archive.extractfile(member) if member.name.endswith(".xml") else None
            if handle is None:
                continue
            tree = ElementTree.fromstring(handle.read())
            identity = tree.find("uId")
            texts = {
                part.get("Label"): " ".join("".join(part.itertext()).split()) for part in tree.iter("AbstractText")
            }
            sections = tuple(text for label in ("FINDINGS", "IMPRESSION") if (text := texts.get(label)))
            codes = tuple("/".join(p.strip() for p in (c.text or "").split("/")) for c in tree.iter("major"))
            if identity is not None and sections and codes and "No Indexing" not in codes:
                yield Report(identity.get("id", ""), sections, codes)


def main() -> None:
    """Print the scores of segmented and of split reports, and write the disagreements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="folder with the reports")
    parser.add_argument("--half", choices=HALVES)
    parser.add_argument("--out", type=Path, help="file of the disagreements")
    parser.add_argument("--pairs", action="store_true", help="judge reports with the same codes")
    arguments = parser.parse_args()
    reports = [report for report in read_reports(arguments.root) if arguments.half in (None, archive_half(report.key))]
    judge = OfflineJudge()
    print(f"{len(reports):,} reports")
    if arguments.pairs:
        _judge_pairs(judge, reports)
        return
    disagreements: list[str] = []
    for name in ("as written", "split"):
        counts: Counter[tuple[str, str]] = Counter()
        for report in reports:
            premises = tuple(
                sentence
                for section in report.sections
                for sentence in (segment_sentences(section) if name == "as written" else split_narrative(section))
            )
            for finding in (*FINDINGS, *OTHER_FINDINGS):
                disagreements += _compare(judge, report, premises, finding, counts, name)
        _print(counts, name)
    if arguments.out is not None:
        with open_atomic(arguments.out) as handle:
            handle.write("\n\n".join(disagreements) + "\n")
        print(f"{len(disagreements):,} disagreements: {arguments.out}")


def _judge_pairs(judge: OfflineJudge, reports: Sequence[Report]) -> None:
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
        verdicts = judge.judge(queries)
        seconds.append(process_time() - start)
    entailed = sum(isinstance(verdict, Verdict) and verdict.status == "entailment" for verdict in verdicts)
    print(f"{entailed:,} of {len(queries):,} sentences entailed ({entailed / len(queries):.1%})")
    print(f"{len(queries) / min(seconds):,.0f} queries per second of processor time, parsing included")


def _compare(
    judge: OfflineJudge,
    report: Report,
    premises: tuple[str, ...],
    finding: str,
    counts: Counter[tuple[str, str]],
    segmentation: str,
) -> Iterator[str]:
    """Count one finding of one report, and yield its disagreements as text."""
    label = report.label(finding)
    if label is None:
        return
    verdict = judge.judge_one(EntailmentQuery(premises, f"There is {finding}."))
    is_detected = verdict.status == "entailment"
    counts[finding, _cell(is_detected, label)] += 1
    disagreements = []
    if is_detected != label:
        disagreements.append((f"{finding}: {'missed' if label else 'not labeled'}", verdict))
    if finding in FINDINGS:
        possible = judge.judge_one(EntailmentQuery(premises, f"There is possible {finding}."))
        counts["or possible", _cell(is_detected or possible.status == "entailment", label)] += 1
    side = report.side(finding) if finding in FINDINGS and finding not in MIDLINE else None
    for name in ("left", "right") if side is not None else ():
        sided = judge.judge_one(EntailmentQuery(premises, f"There is {name} {finding}."))
        is_entailed = sided.status == "entailment"
        kind = "stated" if name == side else "other"
        for scope in ("all", "detected") if is_detected else ("all",):
            counts[scope, kind] += 1
            counts[scope, f"{kind} entailed"] += is_entailed
        if is_detected and is_entailed != (name == side):
            disagreements.append((f"{finding}: {kind} side ({name}) is {sided.status}", sided))
    for title, verdict in disagreements:
        evidence = " | ".join(premises[index] for index in verdict.evidence)
        yield "\n".join(
            (
                f"{report.key}, {segmentation}: {title}",
                f"  codes: {', '.join(report.codes)}",
                f"  evidence: {evidence}",
                f"  reason: {verdict.why}",
                *(f"  {sentence}" for sentence in premises),
            )
        )


def _cell(is_detected: bool, label: bool) -> str:
    """Return the cell of the confusion matrix: tp, fp, fn or tn."""
    return ("t" if is_detected == label else "f") + ("p" if is_detected else "n")


def _print(counts: Counter[tuple[str, str]], name: str) -> None:
    print(f"{name:32} {'precision':>9} {'recall':>7} {'F1':>6} {'labeled':>8}")
    for findings, total in ((FINDINGS, "micro"), (OTHER_FINDINGS, "micro of the others")):
        micro: Counter[str] = Counter()
        for finding in findings:
            row = Counter({kind: counts[finding, kind] for kind in ("tp", "fp", "fn")})
            micro += row
            print(f"  {finding:30} {_scores(row)}")
        print(f"  {total:30} {_scores(micro)}")
    possible = Counter({kind: counts["or possible", kind] for kind in ("tp", "fp", "fn")})
    print(f"  {'micro, or possible':30} {_scores(possible)}")
    for scope, text in (("detected", "detected findings"), ("all", "all labels")):
        for kind in ("stated", "other"):
            share = counts[scope, f"{kind} entailed"] / max(1, counts[scope, kind])
            print(f"  {kind} side, {text}: {share:.3f} of {counts[scope, kind]}")


def _scores(row: Counter[str]) -> str:
    precision = row["tp"] / max(1, row["tp"] + row["fp"])
    recall = row["tp"] / max(1, row["tp"] + row["fn"])
    f1 = 2 * row["tp"] / max(1, 2 * row["tp"] + row["fp"] + row["fn"])
    return f"{precision:9.3f} {recall:7.3f} {f1:6.3f} {row['tp'] + row['fn']:8}"


if __name__ == "__main__":
    main()
