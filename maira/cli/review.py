"""The commands `maira review`: review drafts in the browser, and what came of it."""

from __future__ import annotations

import secrets
from contextlib import closing
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from maira.cli.show import print_line, print_table
from radfact.errors import InputError

if TYPE_CHECKING:
    from maira.review.store import Store

PORT = 8471
_DEFAULT = "start"


class _DefaultGroup(TyperGroup):
    """A group that takes what is no command of its own for arguments of one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default command before arguments that name none; a file that is there is no misspelt command."""
        if args and args[0] not in self.commands and args[0] != "--help":
            is_word = not args[0].startswith("-") and not Path(args[0]).exists()
            is_misspelt = is_word and get_close_matches(args[0], self.commands)
            args = args if is_misspelt else [_DEFAULT, *args]
        return super().parse_args(ctx, args)


MANUAL = "\n".join(
    (
        "Review drafts in the browser: correct them against the images, say what was wrong and how much it matters.",
        "",
        f"[bold]maira review DRAFTS --manifest FILE[/bold] begins a review or goes on with it (it is short for "
        f"maira review {_DEFAULT}).",
        "",
        "[bold]Examples[/bold]",
        "  maira review drafts.jsonl --manifest phantoms/manifest.jsonl",
        "  maira review export review.sqlite --out corrected",
        "  maira review summary review.sqlite --out figures",
    )
)

app = typer.Typer(help=MANUAL, cls=_DefaultGroup, no_args_is_help=True, rich_markup_mode="rich")

_Database = Annotated[Path, typer.Argument(help="Database of the review.", metavar="DB")]


@app.command(_DEFAULT)
def start(
    drafts: Annotated[Path, typer.Argument(help="Drafts (.jsonl).")],
    manifest: Annotated[Path, typer.Option(help="manifest.jsonl of the studies.")],
    db: Annotated[
        Path | None, typer.Option(help="Database, made if it is not there (default: review.sqlite beside the drafts).")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="RadFact's results folder for these drafts, to show its verdicts.")
    ] = None,
    images: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of images outside the manifest's own; may be given again.", show_default=False),
    ] = None,
    port: Annotated[int, typer.Option(help="Port; 0 for any that is free.", min=0, max=65535)] = PORT,
    host: Annotated[
        str, typer.Option(help="Address to listen on; one that other machines can reach demands a token.")
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that browsers must bring (default: one is made up).")
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no browser.")] = False,
) -> None:
    """Review drafts in the browser; every change is on disk at once, and the same command goes on later."""
    _need("starlette", "uvicorn")
    from maira.review.security import is_loopback, read_token
    from maira.review.serve import listen, serve
    from maira.review.store import Store
    from maira.review.studies import read_review_set

    token = read_token(token_file) if token_file else None if is_loopback(host) else secrets.token_urlsafe()
    review_set = read_review_set(drafts, manifest, results=results, image_folders=images or ())
    path = drafts.with_name("review.sqlite") if db is None else db
    console = Console()
    if outside := review_set.images_outside():
        print_line(
            console, f"{outside} images lie outside the manifest's folder and are not shown; name theirs by --images"
        )
    if review_set.unjudged:
        print_line(console, f"{review_set.unjudged} drafts have no verdict on their very sentences in {results}")

    def ready(url: str) -> None:
        print_line(console, f"{len(review_set.drafts)} drafts, kept in {path}")
        print_line(console, f"Review them at {url}  (Ctrl-C ends the server)")
        if not is_loopback(host):
            print_line(
                console, "What is sent is not encrypted: for other networks than your own, use a tunnel (ssh -L)"
            )

    with listen(host, port) as listener, closing(Store(path, review_set.drafts)) as store:
        serve(review_set, store, listener, host=host, token=token, open_browser=not no_browser, on_ready=ready)


@app.command()
def export(
    db: _Database,
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    reviewer: Annotated[
        list[str] | None, typer.Option(help="Whose corrections; may be given again (default: everybody's).")
    ] = None,
) -> None:
    """Write corrections.csv, a row a correction, and the corrected reports of every reviewer as drafts.

    A cell of the table that a spreadsheet would run as a formula begins with an apostrophe, as does one that begins
    with an apostrophe itself: take the first away to have the text. The drafts are of the studies that a reviewer has
    finished.
    """
    from maira.review.export import write_export

    console = Console()
    with _opened(db) as store:
        if not store.reviewers():
            print_line(Console(stderr=True), f"{db} holds no reviewer yet, and so no correction")
        written = write_export(store, out, reviewer or store.reviewers())
        print_line(console, f"corrections: {written.corrections}, in {out / 'corrections.csv'}")
        for name, (path, count) in written.drafts.items():
            print_line(console, f"{count} of {len(store.drafts)} reports finished by {name}: {path}")


@app.command()
def summary(db: _Database, out: Annotated[Path, typer.Option(help="Folder to write.")]) -> None:
    """Sum up finished reviews as the paper's figure 4 does: figure4.png, figure4.svg and summary.json."""
    _need("matplotlib")
    from maira.review.plot import draw_figure
    from maira.review.summary import summarize
    from radfact.io.jsonl import write_json

    with _opened(db) as store:
        figures = summarize(store, store.reviewers())
    if not any(one["finished"] for one in figures["reviewers"].values()):
        raise InputError("no study is finished yet", file=db)
    draw_figure(figures, out / "figure4")
    write_json(out / "summary.json", figures)
    console = Console()
    _show_summary(console, figures)
    print_line(console, f"written: {out / 'figure4.png'}, {out / 'figure4.svg'}, {out / 'summary.json'}")


def _opened(db: Path) -> closing[Store]:
    from maira.review.store import Store

    return closing(Store(db))


def _need(*packages: str) -> None:
    for package in packages:
        if find_spec(package) is None:
            raise InputError(f'needs the package {package}: pip install "maira-radfact[review]"')


def _show_summary(console: Console, figures: dict[str, Any]) -> None:
    heads = ("reviewer", "finished", "unchanged", "edited", "deleted", "added", "significant")
    rows = [
        (
            name,
            f"{one['finished']} of {figures['studies']}",
            f"{one['unchanged_sentences']} of {one['sentences']}",
            *(str(one["kinds"][kind]) for kind in ("edit", "deletion", "addition")),
            str(sum(one["severities"].get("significant", {}).values())),
        )
        for name, one in figures["reviewers"].items()
    ]
    print_table(console, "Corrections", heads, rows)
    if figures["agreement"]:
        said = ("reviewers", "studies", "kappa: needs correction", "kappa: worst implication of a study")
        pairs = [
            (
                " and ".join(one["reviewers"]),
                str(one["studies"]),
                _kappa(one["needs_correction"]["kappa"]),
                _kappa(one["worst_severity"]["kappa"]),
            )
            for one in figures["agreement"]
        ]
        print_table(console, "Agreement", said, pairs)


def _kappa(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
