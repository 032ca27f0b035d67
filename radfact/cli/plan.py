"""`--dry-run`: the queries of a run, their tokens and their cost, before anything is sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from radfact.cli.tables import say, text_table
from radfact.progress import Price, format_count

if TYPE_CHECKING:
    from rich.console import Console

    from radfact.llm.plan import RequestPlan

_NOTES = (
    "Tokens are estimated from cached responses, or else by 4 characters per token and the limit of a response; after "
    "a run with --limit, its responses are cached.\n"
    "'about': the offline rules estimate the sentences of narratives that are not split yet. Repairs of invalid "
    "responses and retries are not included.\n"
    "Nothing was sent or written."
)


def show_plan(
    console: Console, plans: Mapping[str, RequestPlan], unavailable: Mapping[str, str], price: Price | None
) -> None:
    """Print queries, tokens and, with a price, cost of a run by role."""
    for name, why in unavailable.items():
        say(console, f"without {name}: {why}", style="yellow", wrap=False)
    if not any(plan.queries for plan in plans.values()):
        say(console, "No queries to a model. Nothing was computed.")
        return
    headings = ["role", "model", "queries", "cached", "tokens in", "tokens out"]
    rows = []
    for role, plan in plans.items():
        tokens_in, (low, high) = plan.tokens_in, plan.tokens_out
        cells = [
            f"{'' if plan.is_exact else 'about '}{plan.queries:,}",
            f"{plan.cached:,}",
            "unknown" if tokens_in is None else format_count(tokens_in),
            format_count(low) if low == high else f"up to {format_count(high)}" if high else "unknown",
        ]
        rows.append([role, plan.model, *cells, *([_cost([plan], price)] if price else [])])
    if price and len(rows) > 1:
        rows.append(["all", "", "", "", "", "", _cost(plans.values(), price)])
    console.print(text_table([*headings, *([f"cost {price.currency}".strip()] if price else [])], rows))
    say(console, _NOTES if price else f"{_NOTES} --price IN,OUT,CURRENCY adds the cost.")


def _cost(plans: Collection[RequestPlan], price: Price) -> str:
    """Return the range of the cost; "unknown" if the tokens of a prompt are, "from" if responses have no limit."""
    prompts, (lows, highs) = [plan.tokens_in for plan in plans], zip(*(plan.tokens_out for plan in plans), strict=True)
    if None in prompts:
        return "unknown"
    tokens_in = sum(tokens or 0 for tokens in prompts)
    low = price.cost({"tokens_in": tokens_in, "tokens_out": sum(lows)})
    if None in highs:
        return f"from {low:,.2f}"
    high = price.cost({"tokens_in": tokens_in, "tokens_out": sum(tokens or 0 for tokens in highs)})
    return f"{low:,.2f}" if low == high else f"{low:,.2f} to {high:,.2f}"
