"""Agreement of the metric `findings` with radiologists and with known numbers of errors.

    python tests/benchmarks/bench_findings.py rankings SHARED/radjudge/rankings.json
    python tests/benchmarks/bench_findings.py codes SHARED/openi --half held-out

`rankings`: comparisons of candidates by radiologists (RadJudge) that a score gets right; equal candidates must differ
by less than 0.01. All cases were seen in development.

`codes`: Kendall's tau-b of each score with the number of errors, and its difference from that of `findings`, with
intervals of a bootstrap of references. Each reference of IU-Xray gets four other reports of the archive as candidates,
those with the most similar text by ROUGE-L, by words and by pairs of words, and a random one. The number of errors of a
candidate is the smallest number of manual MeSH codes to add, remove or change, where another place or qualifier of the
same code counts as half a change. `--half` selects the half of the archive (`read_reports.py`); costs were chosen with
the development half alone.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from read_reports import HALVES, read_reports
from scipy.optimize import linear_sum_assignment

from radfact import Pair, PatientContext, evaluate
from radfact.statistics.clusters import Clusters
from radfact.statistics.correlation import compare_kendall, correlate

METRICS = ("findings", "radfact", "rouge_l", "bleu")
SCORES = ("findings", "findings_f1", "logical_f1", "rouge_l", "bleu_4")
"""Scores to compare; the first is compared with all others."""

Case = tuple[Pair, float]
"""A pair whose cluster is its reference, and its number of errors."""


def score(
    pairs: Sequence[Pair], significance: Path | None = None, names: Sequence[str] = METRICS
) -> dict[str, np.ndarray]:
    """Return the sample-level values of scores."""
    arguments = {} if significance is None else {"findings": {"significance": significance}}
    values = evaluate(pairs, names, judge="offline", metric_args=arguments, bootstrap=0).values
    return {name: np.array(column, dtype=float) for name, column in values.items()}


def code_distance(candidate: Sequence[str], reference: Sequence[str]) -> float:
    """Return the smallest number of codes to add, remove or change."""
    first, second = ([code.split("/") for code in codes if code != "normal"] for codes in (candidate, reference))
    size = len(first) + len(second)
    costs = np.ones((size, size))
    costs[len(first) :, len(second) :] = 0.0
    for row, code in enumerate(first):
        for column, other in enumerate(second):
            difference = 0.0 if set(code) == set(other) else 0.5
            costs[row, column] = difference if code[0] == other[0] else 2.0
    rows, columns = linear_sum_assignment(costs)
    return float(costs[rows, columns].sum())


def code_cases(root: Path, half: str | None, count: int, seed: int) -> Iterator[Case]:
    """Yield references with four candidates each."""
    from rouge_score.rouge_scorer import RougeScorer

    reports, rng = list(read_reports(root, half)), random.Random(seed)
    texts = {report.key: " ".join(report.sections) for report in reports}
    words = {key: Counter(text.lower().split()) for key, text in texts.items()}
    pairs = {key: Counter(zip(tokens := text.lower().split(), tokens[1:], strict=False)) for key, text in texts.items()}
    abnormal = [report for report in reports if report.codes != ("normal",)]
    references = rng.sample(abnormal, count * 4 // 5) + rng.sample(reports, count - count * 4 // 5)
    scorer = RougeScorer(["rougeL"])
    for number, reference in enumerate(references):
        text = texts[reference.key]
        others = {report.key: report for report in rng.sample(reports, 400) if texts[report.key] != text}
        similarities = (
            {key: scorer.score(text, texts[key])["rougeL"].fmeasure for key in others},
            {key: _overlap(words[key], words[reference.key]) for key in others},
            {key: _overlap(pairs[key], pairs[reference.key]) for key in others},
            {key: rng.random() for key in others},
        )
        for similarity in similarities:
            candidate = others.pop(max(others, key=similarity.__getitem__))
            pair = Pair(f"{number}_{candidate.key}", texts[candidate.key], text, str(number))
            yield pair, code_distance(candidate.codes, reference.codes)


def _overlap(first: Counter, second: Counter) -> float:
    return 2 * (first & second).total() / max(first.total() + second.total(), 1)


def print_agreement(cases: Sequence[Case], significance: Path | None, seed: int) -> None:
    """Print tau of each score, and its difference from tau of the first score."""
    columns = score([pair for pair, _ in cases], significance)
    errors = np.array([number for _, number in cases])
    scored = np.flatnonzero(np.all([np.isfinite(columns[name]) for name in SCORES], axis=0))
    print(f"{len(cases)} pairs, {len(scored)} with all scores; {errors.mean():.2f} errors per pair")
    clusters = Clusters("reference", [cases[index][0].cluster for index in scored])
    first, quality = columns[SCORES[0]][scored], -errors[scored]
    for name in SCORES:
        values = columns[name][scored]
        tau = correlate(quality, values, seed=seed, clusters=clusters)["kendall"]
        line = f"{name:12} tau {tau.value:.3f} ({tau.low:.3f} to {tau.high:.3f})"
        if name != SCORES[0]:
            gap = compare_kendall(quality, values, first, rounds=0, seed=seed, clusters=clusters).difference
            line += f"; {SCORES[0]} is higher by {gap.low:.3f} to {gap.high:.3f}"
        print(line)


def print_rankings(path: Path, significance: Path | None) -> None:
    """Print the number of correct comparisons of each score."""
    comparisons, pairs = [], []
    for category in json.loads(path.read_text(encoding="utf-8")):
        for case in category["tests"]:
            for name, candidate in case["candidates"].items():
                context = PatientContext.of(candidate.get("context", {}))
                pairs.append(Pair(f"{case['id']}_{name}", candidate["text"], case["ground_truth"], context=context))
            rankings = case["expected_ranking"]
            for ranking in [rankings] if isinstance(rankings, str) else rankings:
                first, sign, second = ranking.split()
                comparisons.append((f"{case['id']}_{first}", sign, f"{case['id']}_{second}"))
    columns = score(pairs, significance)
    indices = {pair.sample_id: index for index, pair in enumerate(pairs)}
    for name in SCORES:
        scale = 100 if name.startswith("bleu") else 1
        differences = [(columns[name][indices[a]] - columns[name][indices[b]]) / scale for a, _, b in comparisons]
        correct = sum(
            difference > 1e-9 if sign == ">" else abs(difference) < 0.01
            for difference, (_, sign, _) in zip(differences, comparisons, strict=True)
        )
        print(f"{name:12} {correct} of {len(comparisons)}")


def main() -> None:
    """Print one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurement", choices=("rankings", "codes"))
    parser.add_argument("data", type=Path, help="folder of IU-Xray, or the file of rankings")
    parser.add_argument("--half", choices=HALVES)
    parser.add_argument("--count", type=int, default=300, help="references")
    parser.add_argument("--significance", type=Path, help="table of significance to use instead of the default")
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args()
    if arguments.measurement == "rankings":
        print_rankings(arguments.data, arguments.significance)
    else:
        cases = code_cases(arguments.data, arguments.half, arguments.count, arguments.seed)
        print_agreement(list(cases), arguments.significance, arguments.seed)


if __name__ == "__main__":
    main()
