"""The command `radfact`."""

from __future__ import annotations

from functools import partial

import typer

from radfact.cli.compare import MANUAL as COMPARE_MANUAL
from radfact.cli.compare import compare
from radfact.cli.doctor import doctor
from radfact.cli.evaluate import EVALUATE_MANUAL, SCORE_MANUAL, evaluate, score
from radfact.cli.examples import EXAMPLES
from radfact.cli.export import export
from radfact.cli.green_summary import MANUAL as SUMMARY_MANUAL
from radfact.cli.green_summary import green_summary
from radfact.cli.judge_check import MANUAL as CHECK_MANUAL
from radfact.cli.judge_check import judge_check
from radfact.cli.meta.app import app as meta
from radfact.cli.metrics import metrics
from radfact.cli.page import page
from radfact.cli.program import Version, add_examples, run_command
from radfact.cli.split import MANUAL as SPLIT_MANUAL
from radfact.cli.split import split
from radfact.cli.view import MANUAL as VIEW_MANUAL
from radfact.cli.view import view
from radfact.cli.weights import app as weights

# Rich keeps line ends as they are, so a paragraph is one line here.
MANUAL = "\n".join(
    (
        "Score radiology reports, sentence by sentence, against reference reports (RadFact).",
        "",
        "A judge decides whether each sentence is entailed by the other report. Logical precision is the "
        "fraction of entailed candidate sentences, logical recall the fraction of entailed reference sentences. For "
        "sentences with boxes or masks, grounding scores are the fraction of entailed sentences that are in the right "
        "place, and spatial scores are the fraction of all sentences with boxes or masks that are both entailed and in "
        "the right place.",
        "",
        "[bold]Examples[/bold]",
        "  radfact score pairs.json --judge offline --out results",
        "  radfact score --candidates drafts.jsonl --references manifest.jsonl \\",
        "      --judge openai:MODEL --out results",
        "  radfact evaluate pairs.json --metrics all --judge offline --out results",
        "  radfact metrics",
        "  radfact weights fetch wordnet",
        "  radfact compare results/base results/tuned",
        "  radfact meta agreement ratings.csv --better lower --metrics rouge_l",
        "  radfact page results --manifest manifest.jsonl",
        "  radfact view results",
        "  radfact judge-check --judge offline",
        "  radfact split pairs.csv --judge offline --out sentences.json",
        "  radfact export results --out radfact_scores.json",
        "  radfact doctor",
        "",
        "[bold]Files[/bold]",
        "  pairs.json      grounded: a list of {example_id, prediction, target},",
        "                  where both reports are lists of {text, boxes}",
        "  pairs.csv       narrative: columns example_id, prediction, target",
        "  drafts.jsonl    {sample_id, report} per line; the report is a list of",
        "                  {text, boxes, masks} or one narrative",
        "  manifest.jsonl  {sample_id, grounded_findings or findings} per line,",
        "                  and image paths for the page",
        "Boxes are {x_min, y_min, x_max, y_max} as fractions of the original image. Masks are COCO run-length "
        "encodings.",
        "",
        "[bold]Judges[/bold]",
        "  offline              rules and an ontology: free, deterministic,",
        "                       gives a reason for each verdict; not comparable",
        "                       with an LLM judge",
        "  PROVIDER:MODEL       openai, azure_openai, anthropic, google_genai,",
        "                       ollama, ... with the key in the environment",
        "  openai:MODEL         with --base-url: any OpenAI-compatible server",
        "                       (vLLM, llama.cpp, TGI)",
        "  vllm:PATH            a model in this process",
        "  python:MODULE:OBJECT a custom judge",
        "Set the judge with --judge, --config or RADFACT_JUDGE, in this order. There is no default: scores of "
        "different judges are not comparable.",
        "",
        "[bold]Exit codes[/bold]",
        "  0 done; 1 the run failed; 2 wrong input or options;",
        "  3 done, with samples excluded and listed",
    )
)

app = typer.Typer(
    help=MANUAL,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback()
def _common(version: Version = False) -> None:
    del version


app.command("score", help=SCORE_MANUAL)(score)
app.command("evaluate", help=EVALUATE_MANUAL)(evaluate)
app.command()(metrics)
app.add_typer(weights, name="weights")
app.command(help=COMPARE_MANUAL)(compare)
app.command("green-summary", help=SUMMARY_MANUAL)(green_summary)
app.command()(page)
app.command(help=VIEW_MANUAL)(view)
app.command("judge-check", help=CHECK_MANUAL)(judge_check)
app.command(help=SPLIT_MANUAL)(split)
app.command()(export)
app.add_typer(meta, name="meta")
app.command()(doctor)
add_examples(app, EXAMPLES)

main = partial(run_command, app, "radfact")
"""Runs the command."""
