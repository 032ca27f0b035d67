"""Evaluate metrics on real reports without a model: sensitivity to style, ranking of errors, detection of errors.

    python tests/benchmarks/bench_rexamine.py FOLDER --out OUT

FOLDER holds IU-Xray (`NLMCXR_reports.tgz` and `indiana_projections.csv`). There is one archive and no expert: six
pseudo-sites are made from the findings sections by style (few or many sentences, and short, medium or long ones), and
the number of errors injected by rules replaces the counts of experts. Rules standardize the style as well
(`rule_styler.py`). The pages state this. One to three errors of one category are then injected into the same reports,
as by `radfact meta inject` and `detect`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
from rule_styler import RuleStyler

from maira.data.sources.iu_xray import read_iu_xray
from radfact.api import MetricSet
from radfact.error_categories import CategoryLetter
from radfact.io.jsonl import read_jsonl
from radfact.meta.datasets.reports import SiteReport
from radfact.meta.injection.detection import detect, detection_pairs, detection_table, write_detection
from radfact.meta.injection.records import InjectedReport
from radfact.meta.injection.rules import RuleInjector
from radfact.meta.robustness.rexamine import rexamine
from radfact.meta.robustness.style_effects import table_2, table_c
from radfact.meta.scores import compute_scores
from radfact.pages.meta_page import Table
from radfact.reader.segmentation import segment_sentences

METRICS = ("rouge_l", "bleu_1", "bleu_2", "bleu_4", "logical_f1", "logical_recall")
NOTES = (
    "A demonstration without hospitals and experts: pseudo-sites are findings sections of one archive (IU-Xray), "
    "grouped by the number and the length of their sentences; error counts are the numbers of injected errors.",
    "RadFact is judged by the offline judge here, which reads sentences by the ontology that also checks the errors "
    "and the standard style: its scores are favored, and do not carry over to RadFact with a language model.",
)


def main() -> None:
    """Print tables 2 and C, the detection table, and the paths of the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="folder with the reports and the table of views")
    parser.add_argument("--out", type=Path, default=Path("rexamine"), help="empty folder, so that nothing is reused")
    parser.add_argument("--per-site", type=int, default=40)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument(
        "--weights", type=Path, action="append", default=[], help="folder of weights; adds METEOR, BERTScore, ..."
    )
    args = parser.parse_args()
    started = time.perf_counter()
    names = [*METRICS, *(("meteor", "bertscore", "chexbert", "radgraph") if args.weights else ())]
    metrics = MetricSet(names, judge="offline", weights=args.weights)
    result = rexamine(
        pseudo_sites(read_findings(args.root)),
        args.out,
        styler=RuleStyler(),
        injector=RuleInjector(seed=args.seed),
        score=lambda pairs, folder: compute_scores(pairs, metrics, folder, main_only=True),
        per_site=args.per_site,
        seed=args.seed,
        notes=NOTES,
    )
    print_table(table_2(result.tests))
    print_table(table_c(result.rankings))
    print_table(detection(args.out, metrics, args.seed))
    print(f"{time.perf_counter() - started:.0f} s; {args.out / 'rexamine.html'}, {args.out / 'detection.html'}")


def print_table(table: Table) -> None:
    """Print a table as tab-separated values."""
    print("\t".join(table.headings))
    for row in table.rows:
        print("\t".join(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row))


def detection(out: Path, metrics: MetricSet, seed: int) -> Table:
    """Inject one to three errors of every category into the reports of the first part, and score them."""
    injector = RuleInjector(seed=seed)
    letters: tuple[CategoryLetter, ...] = get_args(CategoryLetter)
    reports = {row["sample_id"]: row for _, row in read_jsonl(out / "standardized.jsonl")}
    candidates = (
        injector.inject(key, row["original"], letter, count)
        for key, row in reports.items()
        for letter in letters
        for count in (1, 2, 3)
    )
    rows = [candidate for candidate in candidates if candidate is not None]
    rows += [
        InjectedReport(
            sample_id=f"{key}_reworded",
            source_id=key,
            reference=reports[key]["original"],
            candidate=reports[key]["report"],
        )
        for key in dict.fromkeys(row.source_id for row in rows)
    ]
    result = detect(rows, compute_scores(detection_pairs(rows), metrics, out / "detection"))
    write_detection(result, rows, out, {"seed": seed}, NOTES[1:])
    return detection_table(result)


def read_findings(root: Path) -> dict[str, str]:
    """Return the findings sections with at least two sentences, by study."""
    studies = read_iu_xray(root).studies
    findings = {study.study_id: study.findings for study in studies if study.findings}
    return {key: text for key, text in findings.items() if len(list(segment_sentences(text))) > 1}


def pseudo_sites(findings: dict[str, str]) -> Sequence[SiteReport]:
    """Return six sites: thirds by mean sentence length, each in halves by the number of sentences."""
    keys = sorted(findings)
    sentences = {key: list(segment_sentences(findings[key])) for key in keys}
    length = {key: sum(len(sentence.split()) for sentence in sentences[key]) / len(sentences[key]) for key in keys}
    sites = []
    by_length = sorted(keys, key=lambda key: (length[key], key))
    for third, name in zip(np.array_split(by_length, 3), ("terse", "middle", "wordy"), strict=True):
        by_count = sorted(map(str, third), key=lambda key: (len(sentences[key]), key))
        for half, size in zip(np.array_split(by_count, 2), ("few", "many"), strict=True):
            sites += [SiteReport(str(key), f"{name}, {size}", findings[str(key)]) for key in half]
    return sites


if __name__ == "__main__":
    main()
