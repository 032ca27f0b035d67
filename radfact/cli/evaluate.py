"""`radfact evaluate`: pairs of reports in, the figures of many metrics out, in one results folder with one page."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from radfact.cli import options as shared
from radfact.cli.green_summary import EmbeddingsOption, check_embeddings, summarise_where_possible
from radfact.cli.inputs import check_files, check_folder, check_images, drafts_apart, read_reports, with_images
from radfact.cli.library_output import quiet_libraries
from radfact.cli.metrics import MetricArgs, WeightsOption, read_metric_args, read_weights
from radfact.cli.options import FIGURES, JudgeOptions, naming_options
from radfact.cli.price import Price, read_price
from radfact.cli.run_record import read_in_words, versions
from radfact.cli.tables import new_console, say, say_path, show_evaluation
from radfact.errors import ExitCode
from radfact.progress import ProgressDisplay

if TYPE_CHECKING:
    from radfact.io.pairs import Pairs
    from radfact.judges import Judge, Splitter
    from radfact.results.evaluation import Evaluation

# Rich keeps line ends as they are, so a paragraph is one line here.
MANUAL = "\n".join(
    (
        "Score candidates against references by many metrics and write one results folder with one page.",
        "",
        "Metrics are named as 'radfact metrics' lists them; the name of one figure (bleu_4) gives that one alone, all "
        "gives whatever can be computed, module:object is a metric of your own. One that lacks weights, a key or a "
        "package says so in one line, and the others go on.",
        "",
        "The folder holds scores.json, samples.jsonl (every figure of every sample), metrics/ (the details of each "
        "metric: explanations, corrections, findings), run.json and report.html. The same command finishes a run that "
        "was cut short; a metric that is done is not computed again, and no model is asked twice.",
        "",
        "[bold]Examples[/bold]",
        "  radfact evaluate pairs.csv --metrics rouge_l,bleu_4,radfact \\",
        "      --judge offline --out results/a",
        "  radfact evaluate --candidates drafts.jsonl --references manifest.jsonl \\",
        "      --metrics all --judge openai:MODEL --weights WEIGHTS",
        "  radfact evaluate pairs.csv --metrics vert,fineradscore \\",
        "      --judge openai:MODEL --metric-arg fineradscore.zero_shot=true \\",
        "      --metric-arg vert.shots=shots.json --metric-arg vert.style=rate-err",
        "",
        "[bold]Exit codes[/bold]",
        "  0 done; 1 the run failed; 2 wrong input or options;",
        "  3 done, with samples or named metrics left out and listed",
    )
)


def evaluate(
    pairs: shared.PairsArgument = None,
    candidates: shared.Candidates = None,
    references: shared.References = None,
    missing: shared.MissingOption = shared.Missing.REFUSE,
    metrics: Annotated[
        str,
        typer.Option(metavar="NAMES", help="Metrics or figures, separated by commas, or all.", rich_help_panel=FIGURES),
    ] = "all",
    metric_arg: MetricArgs = None,
    weights: WeightsOption = None,
    config: shared.Config = None,  # noqa: ARG001
    judge: shared.JudgeName = None,
    judge_arg: shared.JudgeArgs = None,
    base_url: shared.BaseUrl = None,
    concurrency: shared.Concurrency = None,
    few_shots: shared.FewShots = None,
    system: shared.System = None,
    answer_format: shared.Format = shared.AnswerFormat.YAML,
    batch: shared.BatchOption = shared.Batch.SENTENCE,
    splitter: shared.SplitterName = None,
    price: shared.PriceOption = None,
    bootstrap: shared.Bootstrap = 500,
    seed: shared.Seed = 42,
    embeddings: EmbeddingsOption = None,
    out: shared.Out = Path("results"),
    cache: shared.CacheFolder = None,
    manifest: shared.Manifest = None,
    note: shared.Notes = None,
    unscored: shared.Unscored = None,
    images: shared.Images = None,
) -> None:
    """Score candidates against references by many metrics and write one results folder with one page."""
    from radfact.html.page import page_record, write_page
    from radfact.results.folder import write_evaluation

    console, started = new_console(), time.monotonic()
    who = JudgeOptions(judge, judge_arg, base_url, few_shots, system, answer_format, batch, concurrency)
    rate = read_price(price)
    request = _Request(_names(metrics), read_metric_args(metric_arg), read_weights(weights), who, splitter)
    check_files(manifest, unscored)
    check_embeddings(embeddings)
    read = read_reports(pairs, candidates, references, missing=missing)
    check_images(manifest, unscored, read)
    check_folder(out)
    say(console, read_in_words(read))
    evaluation = request.run(
        read, rate, cache=cache or out / "cache", out=out, draws={"bootstrap": bootstrap, "seed": seed}
    )
    files = [path for path in (pairs, candidates, references) if path is not None]
    record = {
        "versions": versions(),
        "input": {
            "files": list(map(str, files)),
            "read": read.read,
            "skipped": read.skipped,
            "without_reference": len(read.unreferenced),
        },
        "options": {"missing": missing.value, "metrics": metrics},
        "seconds": round(time.monotonic() - started, 3),
        "page": page_record(
            out,
            manifest or with_images(references),
            note or [],
            *drafts_apart(unscored, candidates, read),
            images.value if images else None,
        ),
    }
    write_evaluation(evaluation, out, record)
    show_evaluation(console, evaluation, rate)
    if "green" in evaluation.runs:
        summarise_where_possible(console, out, embeddings)
    say_path(console, "Read the studies in", write_page(out))
    if _incomplete(evaluation):
        raise typer.Exit(ExitCode.INCOMPLETE)


@dataclass(frozen=True)
class _Request:
    """What is to be computed, as the user named it."""

    metrics: Sequence[str]
    metric_args: Mapping[str, Mapping[str, Any]]
    weights: dict[str, Path] | list[Path]
    who: JudgeOptions
    splitter: str | None

    def run(self, read: Pairs, rate: Price | None, *, cache: Path, out: Path, draws: Mapping[str, int]) -> Evaluation:
        """Make the metrics, show how far they are, and give back what they hold at the end."""
        from radfact.metrics.registry import choose
        from radfact.metrics.resources import Resources
        from radfact.pipeline import Work

        who = self.who
        with naming_options(metric_args="--metric-arg"):
            choices = choose(self.metrics)
            resources = Resources(
                entailment=None if who.named is None else lambda: self._entailment(cache),
                model=who.named,
                judge_args=who.arguments,
                base_url=who.base_url,
                concurrency=who.concurrency,
                cache=cache,
                weights=self.weights,
                radfact=draws,
                metric_args=self.metric_args,
            )
        try:
            with quiet_libraries(), naming_options(metric_args="--metric-arg"):
                work = Work(choices, resources)
            with quiet_libraries(), ProgressDisplay(new_console(stderr=True), resources.usage_by_role, rate):
                return work.run(read, bootstrap=draws["bootstrap"], seed=draws["seed"], folder=out)
        finally:
            resources.close()

    def _entailment(self, cache: Path) -> tuple[Judge, Splitter]:
        judge = self.who.load(cache)
        return judge, self.who.load_splitter(judge, self.splitter, cache=cache)


def _names(metrics: str) -> list[str]:
    return [name.strip() for name in metrics.split(",") if name.strip()]


def _incomplete(evaluation: Evaluation) -> bool:
    """Whether samples were left out, or a metric that was named gave nothing."""
    named = {choice.entry.name for choice in evaluation.choices if choice.by_name}
    left_out = bool(evaluation.left_out) or any(evaluation.failures)
    return left_out or not named.isdisjoint(evaluation.unavailable)
