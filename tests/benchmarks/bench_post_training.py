"""Compare ways of post-training on phantoms: supervised training, GRPO with two rewards, and DPO.

    python tests/benchmarks/bench_post_training.py --out runs/post-training

All arms continue training the shipped checkpoint, draw from the same 2,000 phantom studies, and are compared on 200
test studies. Options were chosen on 200 validation studies (series 2). The number of steps is set so that every arm
takes similar processor time, which is measured and reported. Completed runs are not repeated, so an interrupted script
can be restarted. The time of an interrupted run covers only its last part.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from maira.train.validation import sentence_statistics
from radfact import evaluate, read_candidates_and_references
from radfact.io.jsonl import read_json, write_json
from radfact.pages.meta_page import Table
from radfact.statistics.bootstrap import bootstrap, summarize

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINT = ROOT / "checkpoints" / "phantom"
SEEDS = (0, 1, 2)
REWARD = ("--scores", "findings=0.5,spatial_f1=0.5")
F1 = {f"{kind}_f1": (f"{kind}_precision", f"{kind}_recall") for kind in ("logical", "grounding", "spatial")}
MEANS = ("findings", "rouge_l")
SHOWN = {"spatial_f1": "spatial F1", "logical_f1": "logical F1", "findings": "findings", "rouge_l": "ROUGE-L"}
"""Scores of the printed table; `results.json` has all."""
STATISTICS = ("words", "normal_sentence_share", "boxes_per_sentence")
REPLICATES = 1000
ARMS: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
BASELINE = "supervised"


def arm_of(model: str) -> str:
    """Return the arm of a model such as "dpo-0"."""
    return model.rpartition("-")[0] or model


def run(out: Path, name: str, *arguments: object) -> None:
    """Run a command of `maira` unless it has already completed, and save its processor time to a file."""
    seconds, log = out / "seconds" / f"{name}.json", out / "logs" / f"{name}.log"
    if seconds.exists():
        return
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        command = [sys.executable, "-m", "maira", *map(str, arguments)]
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{name} ended with exit code {process.returncode}; see {log}")
    write_json(seconds, usage.ru_utime + usage.ru_stime)


def make_studies(out: Path) -> dict[str, Path]:
    """Generate the phantoms, and return their manifests by name."""
    # The studies for preferences are the first training studies.
    for name, count, series in (("train", 2000, 3), ("pairs", 480, 3), ("test", 200, 13)):
        target = ("--split", "test" if name == "test" else "train", "--out", out / name)
        run(out, name, "prepare", "phantom", "--count", count, "--seed", series, "--size", 224, *target)
    return {name: out / name / "manifest.jsonl" for name in ("train", "pairs", "test")}


def train(arm: str, seed: int, manifests: Mapping[str, Path], out: Path) -> Path:
    """Train an arm with a seed, generate drafts of the test studies, and return their path."""
    name, spec = f"{arm}-{seed}", ARMS[arm]
    sources: object = manifests["train"]
    if arm == "dpo":
        pair = [out / "sampled" / f"{seed}-{number}.jsonl" for number in (0, 1)]
        for number, drafts in enumerate(pair):
            files = ("--checkpoint", CHECKPOINT, "--manifest", manifests["pairs"], "--out", drafts)
            run(out, f"{name}.sample{number}", "generate", *files, "--temperature", 1, "--seed", 2 * seed + number)
        preferences = out / f"{name}.preferences.jsonl"
        options = ("--manifest", manifests["pairs"], "--out", preferences, *REWARD, "--margin", 0.1)
        run(out, f"{name}.preferences", "preferences", *pair, *options)
        sources = json.dumps([{"manifest": str(manifests["pairs"]), "preferences": str(preferences)}])
    overrides = {"model": CHECKPOINT, "train": sources, "validation.sources": "[]", "seed": seed}
    overrides |= {
        "global_batch": spec["batch"],
        "passes": spec["batch"] * spec["steps"],
        "trackers": "[]",
        "out": out / name,
    }
    overrides |= spec["options"]
    config = ROOT / "configs" / spec["config"]
    run(out, f"{name}.train", "train", config, *(f"{key}={value}" for key, value in overrides.items()))
    return draft(out / name / "checkpoint", name, manifests["test"], out)


def draft(checkpoint: Path, name: str, manifest: Path, out: Path) -> Path:
    """Generate drafts of the test studies, and return their path."""
    drafts = out / "drafts" / f"{name}.jsonl"
    run(out, f"{name}.draft", "generate", "--checkpoint", checkpoint, "--manifest", manifest, "--out", drafts)
    return drafts


def score(drafts: Path, manifest: Path) -> tuple[dict[str, Sequence[float]], dict[str, float]]:
    """Return the scores of each study, and the means of `STATISTICS`."""
    metrics = ["radfact", *MEANS]
    result = evaluate(read_candidates_and_references(drafts, manifest), metrics, judge="offline", bootstrap=0)
    names = [part for parts in F1.values() for part in parts]
    values = {name: result.values[name] for name in (*names, *MEANS)}
    statistics = sentence_statistics([pair.candidate for pair in result.pairs])
    return values, {name: float(np.mean(statistics[name])) for name in STATISTICS}


def tabulate(scores: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the mean and interval of each score of each arm, and of its difference from the baseline.

    The score of an arm is the mean over its seeds. The 95% intervals are by bootstrap over studies, with the same draws
    for all models. They do not include the variation between seeds, whose scores are listed.
    """
    columns = {f"{model}/{name}": column for model, values in scores.items() for name, column in values.items()}
    f1 = {f"{model}/{name}": (f"{model}/{p}", f"{model}/{r}") for model in scores for name, (p, r) in F1.items()}
    replicates = bootstrap(columns, f1=f1, replicates=REPLICATES)
    points = {name: row.point for name, row in summarize(columns, f1=f1, replicates=0).items()}
    arms: dict[str, list[str]] = {}
    for model in scores:
        arms.setdefault(arm_of(model), []).append(model)

    def mean(values: Mapping[str, Any], arm: str, name: str) -> Any:
        return np.mean([values[f"{model}/{name}"] for model in arms[arm]], axis=0)

    table: dict[str, dict[str, dict[str, Any]]] = {arm: {} for arm in arms}
    for arm, name in product(arms, (*F1, *MEANS)):
        draws = mean(replicates, arm, name)
        table[arm][name] = {
            "mean": float(mean(points, arm, name)),
            "interval": np.quantile(draws, (0.025, 0.975)).tolist(),
            "seeds": [points[f"{model}/{name}"] for model in arms[arm]],
            "difference": float(mean(points, arm, name) - mean(points, BASELINE, name)),
            "difference_interval": np.quantile(draws - mean(replicates, BASELINE, name), (0.025, 0.975)).tolist(),
        }
    return table


def main() -> None:
    """Train, score, and write `results.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the benchmark")
    parser.add_argument("--processes", type=int, default=2, help="runs at the same time, each on one core")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="arms in addition to the baseline")
    arguments = parser.parse_args()
    out = arguments.out
    manifests = make_studies(out)
    names = [name for name in ARMS if name in {BASELINE, *arguments.arms}]
    jobs = [(name, seed) for seed, name in product(SEEDS, names)]
    with ThreadPool(arguments.processes) as pool:
        drafts = pool.starmap(lambda name, seed: train(name, seed, manifests, out), jobs, chunksize=1)
    models = {"shipped": draft(CHECKPOINT, "shipped", manifests["test"], out)}
    models |= {f"{name}-{seed}": path for (name, seed), path in zip(jobs, drafts, strict=True)}
    scored = {model: score(path, manifests["test"]) for model, path in models.items()}
    table: dict[str, dict[str, Any]] = tabulate({model: values for model, (values, _) in scored.items()})
    for arm, row in table.items():
        statistics = [form for model, (_, form) in scored.items() if arm_of(model) == arm]
        row |= {name: float(np.mean([form[name] for form in statistics])) for name in STATISTICS}
        seconds = [read_json(path) for path in out.glob(f"seconds/{arm}-*.json") if not path.stem.endswith(".draft")]
        row["processor_minutes"] = sum(seconds) / 60 / len(statistics)
    write_json(out / "results.json", table)
    rows = []
    for arm, row in table.items():
        cells = [ARMS[arm]["label"] if arm in ARMS else "shipped checkpoint"]
        for name in SHOWN:
            low, high = row[name]["difference_interval"]
            cells.append(f"{row[name]['mean']:.3f}" + ("" if arm == BASELINE else f" ({low:+.3f} to {high:+.3f})"))
        rows.append([*cells, f"{row['words']:.1f}", f"{row['processor_minutes']:.1f}" if arm in ARMS else "-"])
    print(Table(["arm", *SHOWN.values(), "words per report", "processor minutes"], rows).as_markdown(), end="")


if __name__ == "__main__":
    main()
