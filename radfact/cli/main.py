"""The command `radfact`."""

from __future__ import annotations

from functools import partial

import typer

from radfact.cli.compare import compare
from radfact.cli.doctor import doctor
from radfact.cli.evaluate import SCORE_HELP, evaluate, score
from radfact.cli.examples import EXAMPLES
from radfact.cli.export import export
from radfact.cli.green_summary import green_summary
from radfact.cli.judge_check import judge_check
from radfact.cli.meta.app import app as meta
from radfact.cli.metrics import metrics
from radfact.cli.page import page
from radfact.cli.program import Version, add_examples, run_command
from radfact.cli.split import split
from radfact.cli.view import view
from radfact.cli.weights import app as weights

HELP = """Score radiology reports, sentence by sentence, against reference reports (RadFact).

A judge decides whether each sentence is entailed by the other report. Logical precision is the fraction of entailed
candidate sentences, logical recall the fraction of entailed reference sentences. For sentences with boxes or masks,
grounding scores are the fraction of entailed sentences that are in the right place, and spatial scores are the fraction
of all sentences with boxes or masks that are both entailed and in the right place.

[bold]Files[/bold]
  pairs.json      grounded: a list of {example_id, prediction, target},
                  where both reports are lists of {text, boxes}
  pairs.csv       narrative: columns example_id, prediction, target
  drafts.jsonl    {sample_id, report} per line; the report is a list of
                  {text, boxes, masks} or one narrative
  manifest.jsonl  {sample_id, grounded_findings or findings} per line,
                  and image paths for the page
  Boxes are {x_min, y_min, x_max, y_max} as fractions of the image,
  masks COCO run-length encodings.

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

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback()
def _common(version: Version = False) -> None:
    del version


app.command("score", help=SCORE_HELP)(score)
app.command("evaluate")(evaluate)
app.command()(metrics)
app.add_typer(weights, name="weights")
app.command()(compare)
app.command("green-summary")(green_summary)
app.command()(page)
app.command()(view)
app.command("judge-check")(judge_check)
app.command()(split)
app.command()(export)
app.add_typer(meta, name="meta")
app.command()(doctor)
add_examples(app, EXAMPLES)

main = partial(run_command, app, "radfact")
"""Runs the command."""
