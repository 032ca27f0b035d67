"""`--dry-run`: the queries of a run, their tokens and their cost, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from radfact.cli.tables import say
from radfact.progress import Price, format_count

if TYPE_CHECKING:
    from rich.console import Console

    from radfact.llm.plan import RequestPlan


def show_plan(
    console: Console, plans: Mapping[str, RequestPlan], unavailable: Mapping[str, str], price: Price | None
) -> None:
    """Print queries, tokens and cost of a run by role, and what the estimates rest on.

    Args:
        console: console to print to.
        plans: requests by role.
        unavailable: metrics that cannot be computed, and the reason.
        price: of tokens; None to print no cost.
    """
    for name, why in unavailable.items():
        say(console, f"without {name}: {why}", style="yellow", wrap=False)
    if not plans:
        say(console, "No queries to a model. Nothing was computed.")
        return
    table = Table()
    headings = ["role", "model", "queries", "cached", "tokens in", "tokens out"]
    if price:
        headings.append(f"cost {price.currency}".strip())
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index > 1 else "left", overflow="fold")
    for role, plan in plans.items():
        table.add_row(escape(role), escape(plan.model), *_cells(plan), *([_cost([plan], price)] if price else []))
    if price and len(plans) > 1:
        table.add_section()
        table.add_row("all", *[""] * 5, _cost(plans.values(), price))
    console.print(table)
    for note in _notes(plans.values(), price):
        say(console, note)


def _cells(plan: RequestPlan) -> list[str]:
    tokens_in, (low, high) = plan.tokens_in, plan.tokens_out
    return [
        f"{'' if plan.is_exact else 'about '}{plan.queries:,}",
        f"{plan.cached:,}",
        "unknown" if tokens_in is None else format_count(tokens_in),
        format_count(low) if low == high else f"up to {format_count(high)}" if high else "unknown",
    ]


def _cost(plans: Iterable[RequestPlan], price: Price) -> str:
    """Return the range of the cost; "unknown" if the tokens of a prompt are, "from" if responses have no limit."""
    plans = list(plans)
    if any(plan.tokens_in is None for plan in plans):
        return "unknown"
    tokens_in = sum(plan.tokens_in or 0 for plan in plans)
    lows, highs = [plan.tokens_out[0] for plan in plans], [plan.tokens_out[1] for plan in plans]
    low = price.cost({"tokens_in": tokens_in, "tokens_out": sum(lows)})
    if None in highs:
        return f"from {low:,.2f}"
    high = price.cost({"tokens_in": tokens_in, "tokens_out": sum(value or 0 for value in highs)})
    return f"{low:,.2f}" if low == high else f"{low:,.2f} to {high:,.2f}"


def _notes(plans: Iterable[RequestPlan], price: Price | None) -> Iterable[str]:
    plans = list(plans)
    if all(plan.cached_tokens_in for plan in plans):
        yield "Tokens are estimated from the cached responses."
    else:
        yield "Tokens are estimated: 4 characters per token, and at most the limit of tokens of a response."
        yield "After a run with --limit, the estimate uses the tokens of its cached responses."
    if not all(plan.is_exact for plan in plans):
        yield "The number of sentences is that of the offline rules, because the narratives are not split yet."
    yield "Repairs of invalid responses and retries are not included."
    if price is None:
        yield "--price IN,OUT,CURRENCY adds the cost."
    yield "Nothing was sent or written."
