"""Drafts on disk: written one by one while a run goes on, finished in the manifest's order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.images import CropMap, image_size
from data.manifest import Failure, write_failures
from maira.examples import Example
from maira.parse import parse_report
from maira.repetition import cut_repetitions
from radfact.errors import InputError
from radfact.jsonl import dumps, read_json, read_jsonl, write_json, write_jsonl
from radfact.report import Sentence


def make_draft(
    example: Example, raw: str, model: str, seconds: float, *, cut_off: bool = False, cut_loops: bool = True
) -> dict[str, Any]:
    """The record of one draft, its boxes brought from the model's crop to the original image.

    Args:
        example: what the model was asked.
        raw: the model's text.
        model: name of the model.
        seconds: time the sample took (its share of its batch).
        cut_off: generation stopped at its limit, which a text that the grammar closed or a narrative does not show.
        cut_loops: whether a sentence's third and further copies are cut (`maira.repetition`).
    """
    parsed = parse_report(raw, cut_off=cut_off)
    if cut_loops:
        parsed = cut_repetitions(parsed)
    crop = CropMap(*image_size(example.images[0]))
    report: str | list[dict[str, Any]] = parsed.text
    if example.task != "findings":
        placed = [
            Sentence(text=s.text, boxes=tuple(crop.to_original(box) for box in s.boxes) if s.boxes else None)
            for s in parsed.sentences
        ]
        report = [sentence.model_dump(include={"text", "boxes"}) for sentence in placed]
    return {
        "sample_id": example.sample_id,
        "report": report,
        "raw": raw,
        "irregularities": [irregularity.model_dump() for irregularity in parsed.irregularities],
        "model": model,
        "seconds": round(seconds, 4),
    }


def fingerprint(checkpoint: Path) -> str:
    """A short hash that differs between checkpoints: of the configuration, and the size and start of each weight file.

    Raises:
        InputError: the folder is no checkpoint.
    """
    files = sorted(path for path in checkpoint.glob("*") if path.suffix in (".json", ".safetensors") and path.is_file())
    if checkpoint / "config.json" not in files:
        raise InputError("no checkpoint here (config.json is missing)", file=checkpoint)
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name} {path.stat().st_size}".encode())
        with path.open("rb") as handle:
            digest.update(handle.read(1 << 20))
    return digest.hexdigest()[:12]


class DraftFolder:
    """The files of one generation run beside `out`: what is done, and what is still to do.

    `OUT.partial` holds drafts as they come, `OUT` all of them in order when the run is done, `OUT.run.json` what
    decides them, so that only the same run is ever continued.

    Args:
        out: the drafts file to make.
        settings: everything that changes a draft; JSON values.

    Raises:
        InputError: `out` holds drafts of another run.
    """

    def __init__(self, out: Path, settings: dict[str, Any]) -> None:
        self.out = out
        self.partial = out.with_name(f"{out.name}.partial")
        self.settings_file = out.with_name(f"{out.stem}.run.json")
        self.failures_file = out.with_name("failures.jsonl")
        if self.settings_file.exists():
            held = read_json(self.settings_file)
            changed = [key for key in settings if not isinstance(held, dict) or held.get(key) != settings[key]]
            if changed:
                raise InputError(
                    f"holds drafts of another run (other {', '.join(changed)}); name another --out or remove it",
                    file=out,
                )
        elif out.exists():
            raise InputError("exists and was not made by this command; name another --out or remove it", file=out)
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.settings_file, settings)
        self.drafts: dict[str, dict[str, Any]] = {}
        for path in (self.out, self.partial):
            if path.exists():
                self._recover(path)

    def _recover(self, path: Path) -> None:
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            # The run was killed in the middle of a line; that draft is made again.
            path.write_bytes(whole)
        for _, row in read_jsonl(path):
            self.drafts[row["sample_id"]] = row

    def add(self, drafts: Sequence[dict[str, Any]]) -> None:
        """Put drafts on disk."""
        with self.partial.open("a", encoding="utf-8") as handle:
            handle.writelines(dumps(draft) + "\n" for draft in drafts)
        self.drafts |= {draft["sample_id"]: draft for draft in drafts}

    def finish(self, order: Sequence[str], failures: Sequence[Failure]) -> None:
        """Write all drafts in the given order of sample ids, and the failures beside them if there are any."""
        write_jsonl(self.out, (self.drafts[i] for i in order if i in self.drafts))
        if failures:
            write_failures(self.failures_file, failures)
        else:
            self.failures_file.unlink(missing_ok=True)
        self.partial.unlink(missing_ok=True)


def settings_of(checkpoint: Path, **options: Any) -> dict[str, Any]:
    """What decides the drafts of a run, as JSON values."""
    values: dict[str, Any] = json.loads(json.dumps({"checkpoint": fingerprint(checkpoint), **options}))
    return values
