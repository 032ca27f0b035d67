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
from dataclasses import dataclass
from itertools import product
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maira.train.validation import sentence_statistics
from radfact import evaluate, read_candidates_and_references
from radfact.io.jsonl import read_json, write_json
from radfact.statistics.bootstrap import bootstrap

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


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm of the comparison."""

    label: str
    config: str
    batch: int
    steps: int
    options: Mapping[str, object]


ARMS = {
    "supervised": Arm("supervised", "phantom_grpo.yaml", 64, 60, {"grpo": "null"}),
    "grpo": Arm("GRPO, findings and boxes", "phantom_grpo.yaml", 64, 30, {}),
    "grpo_rouge_l": Arm("GRPO, ROUGE-L", "phantom_grpo.yaml", 64, 30, {"grpo.reward.scores": "{rouge_l: 1.0}"}),
    "dpo": Arm("DPO, findings and boxes", "phantom_dpo.yaml", 32, 34, {"epochs": "null", "learning_rate": 5e-5}),
}
BASELINE = "supervised"


class Recorder:
    """Runs each `maira` command once and saves its processor time to a file."""

    def __init__(self, out: Path) -> None:
        self.out = out
        for name in ("logs", "seconds"):
            (out / name).mkdir(parents=True, exist_ok=True)

    def run(self, name: str, *arguments: object) -> None:
        """Run a command unless it has already completed."""
        seconds = self.out / "seconds" / f"{name}.json"
        if seconds.exists():
            return
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        log = self.out / "logs" / f"{name}.log"
        with log.open("ab") as file:
            command = [sys.executable, "-m", "maira", *map(str, arguments)]
            process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise RuntimeError(f"{name} ended with exit code {process.returncode}; see {log}")
        write_json(seconds, usage.ru_utime + usage.ru_stime)

    def minutes(self, arm: str) -> float:
        """Return the processor minutes of all seeds of an arm, excluding generation on the test studies."""
        paths = [path for path in self.out.glob(f"seconds/{arm}-*.json") if not path.stem.endswith(".draft")]
        return sum(float(read_json(path)) for path in paths) / 60


def make_studies(recorder: Recorder) -> dict[str, Path]:
    """Generate the phantoms, and return their manifests by name."""
    manifests = {}
    # The studies for preferences are the first training studies.
    for name, split, count, series in (
        ("train", "train", 2000, 3),
        ("pairs", "train", 480, 3),
        ("test", "test", 200, 13),
    ):
        manifests[name] = recorder.out / name / "manifest.jsonl"
        target = ("--split", split, "--out", recorder.out / name)
        recorder.run(name, "prepare", "phantom", "--count", count, "--seed", series, "--size", 224, *target)
    return manifests


def train(arm: str, seed: int, manifests: Mapping[str, Path], recorder: Recorder) -> Path:
    """Train an arm with a seed, generate drafts of the test studies, and return their path."""
    name, spec = f"{arm}-{seed}", ARMS[arm]
    folder = recorder.out / name
    sources: object = manifests["train"]
    if arm == "dpo":
        pair = [recorder.out / "sampled" / f"{seed}-{number}.jsonl" for number in (0, 1)]
        for number, drafts in enumerate(pair):
            files = ("--checkpoint", CHECKPOINT, "--manifest", manifests["pairs"], "--out", drafts)
            recorder.run(f"{name}.sample{number}", "generate", *files, "--temperature", 1, "--seed", 2 * seed + number)
        preferences = folder.with_suffix(".preferences.jsonl")
        options = ("--manifest", manifests["pairs"], "--out", preferences, *REWARD, "--margin", 0.1)
        recorder.run(f"{name}.preferences", "preferences", *pair, *options)
        sources = json.dumps([{"manifest": str(manifests["pairs"]), "preferences": str(preferences)}])
    overrides = {
        "model": CHECKPOINT,
        "train": sources,
        "validation.sources": "[]",
        "seed": seed,
        "global_batch": spec.batch,
        "passes": spec.batch * spec.steps,
        "trackers": "[]",
        "out": folder,
        **spec.options,
    }
    config = ROOT / "configs" / spec.config
    recorder.run(f"{name}.train", "train", config, *(f"{key}={value}" for key, value in overrides.items()))
    return draft(folder / "checkpoint", name, manifests["test"], recorder)


def draft(checkpoint: Path, name: str, manifest: Path, recorder: Recorder) -> Path:
    """Generate drafts of the test studies, and return their path."""
    drafts = recorder.out / "drafts" / f"{name}.jsonl"
    files = ("--checkpoint", checkpoint, "--manifest", manifest, "--out", drafts)
    recorder.run(f"{name}.draft", "generate", *files)
    return drafts


def score(drafts: Path, manifest: Path) -> tuple[dict[str, Sequence[float]], dict[str, float]]:
    """Return the scores of each study, and the means of `STATISTICS`."""
    metrics = ["radfact", *MEANS]
    result = evaluate(read_candidates_and_references(drafts, manifest), metrics, judge="offline", bootstrap=0)
    names = [part for parts in F1.values() for part in parts]
    values = {name: result.values[name] for name in (*names, *MEANS)}
    statistics = sentence_statistics([pair.candidate for pair in result.pairs])
    return values, {name: float(np.mean(statistics[name])) for name in STATISTICS}


def summarize(scores: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the mean and interval of each score of each arm, and of its difference from the baseline.

    The score of an arm is the mean over its seeds. The 95% intervals are by bootstrap over studies, with the same draws
    for all models. They do not include the variation between seeds, whose scores are listed.
    """
    columns = {f"{model}/{name}": column for model, values in scores.items() for name, column in values.items()}
    f1 = {f"{model}/{name}": (f"{model}/{p}", f"{model}/{r}") for model in scores for name, (p, r) in F1.items()}
    replicates = bootstrap(columns, f1=f1, replicates=REPLICATES)
    points = {name: float(np.nanmean(column)) for name, column in columns.items()}
    for name, (precision, recall) in f1.items():
        points[name] = 2 * points[precision] * points[recall] / (points[precision] + points[recall])
    arms: dict[str, list[str]] = {}
    for model in scores:
        arms.setdefault(model.rpartition("-")[0] or model, []).append(model)

    def mean(arm: str, name: str) -> NDArray[np.float64]:
        means: NDArray[np.float64] = np.mean([replicates[f"{model}/{name}"] for model in arms[arm]], axis=0)
        return means

    table: dict[str, dict[str, dict[str, Any]]] = {}
    for arm, models in arms.items():
        table[arm] = {}
        for name in (*F1, *MEANS):
            seeds = [points[f"{model}/{name}"] for model in models]
            base = np.mean([points[f"{model}/{name}"] for model in arms[BASELINE]])
            table[arm][name] = {
                "mean": float(np.mean(seeds)),
                "interval": np.quantile(mean(arm, name), (0.025, 0.975)).tolist(),
                "seeds": seeds,
                "difference": float(np.mean(seeds) - base),
                "difference_interval": np.quantile(mean(arm, name) - mean(BASELINE, name), (0.025, 0.975)).tolist(),
            }
    return table


def main() -> None:
    """Train, score, and write `results.json`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the benchmark")
    parser.add_argument("--processes", type=int, default=2, help="runs at the same time, each on one core")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="arms in addition to the baseline")
    arguments = parser.parse_args()
    recorder = Recorder(arguments.out)
    manifests = make_studies(recorder)
    names = [name for name in ARMS if name in {BASELINE, *arguments.arms}]
    jobs = [(name, seed) for seed, name in product(SEEDS, names)]
    with ThreadPool(arguments.processes) as pool:
        drafts = pool.starmap(lambda name, seed: train(name, seed, manifests, recorder), jobs, chunksize=1)
    models = {"shipped": draft(CHECKPOINT, "shipped", manifests["test"], recorder)}
    models |= {f"{name}-{seed}": path for (name, seed), path in zip(jobs, drafts, strict=True)}
    scored = {model: score(path, manifests["test"]) for model, path in models.items()}
    table: dict[str, dict[str, Any]] = summarize({model: values for model, (values, _) in scored.items()})
    for arm, row in table.items():
        statistics = [form for model, (_, form) in scored.items() if (model.rpartition("-")[0] or model) == arm]
        row |= {name: float(np.mean([form[name] for form in statistics])) for name in STATISTICS}
        row["processor_minutes"] = recorder.minutes(arm) / len(statistics)
    write_json(arguments.out / "results.json", table)
    print_table(table)


def print_table(table: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a Markdown table of scores, with the intervals of their differences from the baseline."""
    print("| arm |", " | ".join([*SHOWN.values(), "words per report", "processor minutes"]), "|")
    print("|---" * (len(SHOWN) + 3), "|", sep="")
    for arm, row in table.items():
        cells = [ARMS[arm].label if arm in ARMS else "shipped checkpoint"]
        for name in SHOWN:
            low, high = row[name]["difference_interval"]
            cells.append(f"{row[name]['mean']:.3f}" + ("" if arm == BASELINE else f" ({low:+.3f} to {high:+.3f})"))
        minutes = f"{row['processor_minutes']:.1f}" if arm in ARMS else "-"
        print("|", " | ".join([*cells, f"{row['words']:.1f}", minutes]), "|")


if __name__ == "__main__":
    main()
