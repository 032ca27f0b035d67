"""List the differences between what the commands of two trees of source code print and write.

    git worktree add /tmp/old COMMIT
    python tests/benchmarks/compare_trees.py /tmp/old . FOLDER

FOLDER has IU-Xray's `NLMCXR_reports.tgz` and `indiana_projections.csv`. The language model is a local server: its
response depends on the conversation alone, three in four have the layout of the prompt, and the others are texts of the
tests. The exit code is 1 if the outputs differ. Times, digests and plots are not compared, nor is the layout of pages.
"""

from __future__ import annotations

import argparse
import ast
import csv
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "radfact")]

from chat_server import ChatServer  # noqa: E402 - after the path

from maira.data.sources.iu_xray import read_iu_xray  # noqa: E402
from radfact.error_categories import ERROR_CATEGORIES  # noqa: E402

MODEL = "--judge openai:m --base-url {url} --max-invalid 0 --concurrency 4"
COMMANDS: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
"""Lines of the `first` and the `second` commands by name."""
_VARYING = r"\d{4}-\d\d-\d\d[T ][\d:.+]+|127\.0\.0\.1:\d+|[\d.e+]+( per second| ?(s|ms|seconds)\b)|\b[0-9a-f]{16,64}\b"
_COMPARED = frozenset({".json", ".jsonl", ".csv", ".html"})
_TIMES = frozenset({"seconds", "versions", "created"})


def respond(body: dict[str, Any], texts: list[str]) -> tuple[int, dict[str, str], str]:
    """Return the response to a conversation."""
    conversation = json.dumps(body["messages"])
    rng = random.Random(hashlib.sha256(conversation.encode()).hexdigest())
    return 200, {}, rng.choice(texts) if rng.random() < 0.25 else _valid_response(conversation, rng)


def _valid_response(conversation: str, rng: random.Random) -> str:
    def counts(kinds: str) -> str:
        return ", ".join(f"({kind}, {rng.choice((0, 0, 1, 2))})" for kind in kinds)

    if "[Matched Findings]" in conversation:
        errors = "\n".join(f"({letter}) {name}: {rng.choice('001')}. x" for letter, name in ERROR_CATEGORIES.items())
        sections = f"[Clinically Significant Errors]:\n{errors}\n\n[Clinically Insignificant Errors]:\n{errors}\n\n"
        score = f"[Overall Accuracy Score]:\n0.{rng.randint(10, 99)}"
        return f"{sections}[Matched Findings]:\n{rng.randint(0, 3)}. x\n\n{score}"
    if "Return only a json object" in conversation:
        error = {"clinical severity": "Urgent error", "comments": "x", "error category": ["Omission of finding"]}
        return json.dumps({str(line): {"corrections": "Edema.", **error} for line in range(rng.randint(0, 2))})
    if "expert radiologist. Judge" in conversation:
        kinds = ("significant", "insignificant")
        return "\n".join(f"Number of clinically {kind} errors by type: ({counts('ABCDEF')})" for kind in kinds)
    if "entailment verification" in conversation:
        premises = re.findall(r"\\n- (.*?)(?=\\n)", conversation.rpartition('"user"')[2])
        if premises and rng.random() < 0.5:
            return f"evidence:\n- {json.dumps(rng.choice(premises))}\nstatus: entailment"
        return "evidence: []\nstatus: not_entailment"
    if "phrases from the radiology report" in conversation:
        report = json.loads(conversation)[-1]["content"]
        return json.dumps([{"orig": text, "new": [text]} for text in re.split(r"(?<=\.)\s+", report) if text])
    return '{"findings": [{"sentence": 1, "finding": "pneumothorax", "status": "present", "tier": "urgent"}]}'


def write_inputs(root: Path, folder: Path) -> None:
    """Write reports of IU-Xray as pairs and as reports of two sites."""
    reports = [(study.study_id, study.findings) for study in read_iu_xray(root).studies if study.findings]
    random.Random(7).shuffle(reports)
    rows = [(key, text, reports[3 * i][1], f"p{i % 150}") for i, (key, text) in enumerate(reports[:600])]
    heads = ("example_id", "target", "prediction", "patient_id")
    sites = [(key, text, "ab"[i % 2]) for i, (key, text) in enumerate(reports[600:640])]
    for name, table in (
        ("pairs", [heads, *rows]),
        ("few", [heads, *rows[:20]]),
        ("reports", [("id", "report", "site"), *sites]),
    ):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as handle:
            csv.writer(handle).writerows(table)


def record(tree: Path, folder: Path, url: str) -> dict[str, Any]:
    """Run all commands of a tree, and return what they print and write."""

    def run(item: tuple[str, str]) -> tuple[str, Any]:
        name, line = item
        out = name.replace(" ", "_")
        words = line.replace("{model}", MODEL).format(url=url, out=out).split()
        environment = {
            **os.environ,
            "PYTHONPATH": str(tree.resolve()),
            "OPENAI_API_KEY": "x",
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }
        command = [sys.executable, "-m", "radfact", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
        printed = {
            "exit": done.returncode,
            "stdout": _plain(done.stdout),
            "stderr": sorted(_plain(done.stderr).split()),
        }
        paths = sorted(path for path in folder.glob(f"{out}*/**/*") if "cache" not in path.parts)
        files = [path for path in (*folder.glob(f"{out}.json*"), *paths) if path.suffix in _COMPARED]
        return name, {**printed, **{str(path.relative_to(folder)): _content(path) for path in files}}

    records: dict[str, Any] = {}
    for commands in COMMANDS.values():
        with ThreadPoolExecutor(2) as pool:
            records.update(pool.map(run, commands.items()))
    return records


def _plain(text: str) -> str:
    return re.sub(_VARYING, "...", text)


def _content(path: Path) -> Any:
    text = path.read_text("utf-8", "replace")
    if path.suffix == ".html":
        text = re.sub(r"(?s)<(script|style).*?</\1>|<[^>]+>|\b\d+\.\d+\b", " ", text)
    if path.suffix in (".json", ".jsonl"):
        return [json.loads(line) for line in (text.splitlines() if path.suffix == ".jsonl" else [text])]
    return _plain(text).split()


def differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """Yield the places of two records that differ, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            if name not in _TIMES:
                yield from differences(old.get(name), new.get(name), f"{place}/{name}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (first, second) in enumerate(zip(old, new, strict=True)):
            yield from differences(first, second, f"{place}/{index}")
    elif _plain(str(old)) != _plain(str(new)):
        yield f"{place}: {str(old)[:200]} != {str(new)[:200]}"


def main() -> int:
    """Compare the trees."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("reports", type=Path)
    arguments = parser.parse_args()
    trees = [ast.parse(path.read_text("utf-8")) for path in sorted((ROOT / "tests" / "radfact").glob("test_*.py"))]
    strings = (node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    texts = sorted({text for text in strings if isinstance(text, str) and len(text) > 25})
    server = ChatServer(lambda body, _: respond(body, texts))
    records = []
    for tree in (arguments.old, arguments.new):
        with tempfile.TemporaryDirectory() as folder:
            write_inputs(arguments.reports, Path(folder))
            records.append(record(tree, Path(folder), server.base_url))
    found = list(differences(records[0], records[1]))
    print(*found, f"{len(found)} differences in {sum(map(len, COMMANDS.values()))} commands", sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
