"""The command `radfact`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pkgutil import resolve_name
from typing import Any

import typer

from radfact.cli.program import add_examples, create_program, read_examples, run_command

HELP = """Score radiology reports, sentence by sentence, against reference reports (RadFact).

A judge decides whether each sentence is entailed by the other report. Logical precision is the fraction of entailed
candidate sentences, logical recall the fraction of entailed reference sentences. For sentences with boxes or masks,
grounding scores are the fraction of entailed sentences that are in the right place, and spatial scores are the fraction
of all sentences with boxes or masks that are both entailed and in the right place.

[bold]Judges[/bold]
  offline              rules and an ontology: free, deterministic,
                       gives a reason for each verdict; not comparable
                       with an LLM judge
  PROVIDER:MODEL       openai, azure_openai, anthropic, google_genai,
                       ollama, ... with the key in the environment
  openai:MODEL         with --base-url: any OpenAI-compatible server
                       (vLLM, llama.cpp, TGI)
  vllm:PATH            a model in this process
  python:MODULE:OBJECT a custom judge
  Set the judge with --judge, --config or RADFACT_JUDGE, in this order.
  There is no default: scores of different judges are not comparable.

[bold]Exit codes[/bold]
  0 done; 1 the run failed; 2 wrong input or options;
  3 done, with samples excluded and listed"""

_COMMANDS: Mapping[str, tuple[str, str]] = {
    "score": ("evaluate:score", "Score candidates against references with RadFact, and write a results folder."),
    "evaluate": (
        "evaluate:evaluate",
        "Score candidates against references with many metrics, and write a results folder.",
    ),
    "metrics": ("metrics:metrics", "List all metrics with their scores, sources, cost per report and requirements."),
    "weights": ("weights:app", "Download the weights that metrics need, and check them."),
    "compare": ("compare:compare", "Compare results folders on their common samples, with paired significance tests."),
    "green-summary": ("green_summary:green_summary", "Summarize GREEN assessments: typical errors by category."),
    "page": ("page:page", "Regenerate the HTML page of a results folder."),
    "view": ("view:view", "Browse results folders in a local web page, and compare two of them side by side."),
    "judge-check": (
        "judge_check:judge_check",
        "Evaluate a judge on labeled examples, or compare it with the teacher that labeled them.",
    ),
    "split": ("split:split", "Split narratives into sentences of one finding each, and list what was removed."),
    "export": (
        "export:export",
        "Export scores as a table or in the published format, or reports in the format of ReXrank.",
    ),
    "meta": (
        "meta.app:app",
        "Meta-evaluation: agreement with experts, corrections, detection of injected errors, ReXamine-Global, "
        "ensembles of judges.",
    ),
    "doctor": ("doctor:doctor", "Check the installation, and which commands can run."),
}
"""Module and object of each command, and the first line of its help."""


def create_app(names: Iterable[str] = tuple(_COMMANDS)) -> typer.Typer:
    """Create the app, in which only the commands of these names are imported; the others have one line of help."""
    app = create_program(HELP)
    for name, (place, summary) in _COMMANDS.items():
        command: Any = resolve_name(f"radfact.cli.{place}") if name in names else None
        if place.endswith(":app"):
            app.add_typer(command or typer.Typer(help=summary), name=name)
        else:
            app.command(name, help=None if command else summary)(command or (lambda: None))
    add_examples(app, read_examples("radfact.cli"))
    return app


def main() -> None:
    # A file of options may have those of all commands.
    needs_all = any(word.startswith("--config") for word in sys.argv)
    run_command(create_app(_COMMANDS if needs_all else sys.argv[1:]), "radfact")
