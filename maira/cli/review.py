"""`maira review`: review drafts in the browser, export and summarize the corrections."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from maira.cli.options import OutFolder
from maira.cli.show import print_line
from maira.review.times import IDLE_AFTER, MIN_IDLE_AFTER
from radfact.cli.command import with_options
from radfact.cli.program import PlainGroup
from radfact.cli.tables import show_rows, show_table
from radfact.errors import ErrorCode, InputError
from radfact.pages.meta_page import format_cell

PORT = 8471
_DEFAULT = "start"


class _DefaultGroup(PlainGroup):
    """A group with a default command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default command unless the arguments name one; an existing file is not a misspelled command."""
        if args and args[0] not in self.commands and args[0] != "--help":
            is_word = not args[0].startswith("-") and not Path(args[0]).exists()
            is_misspelled = is_word and get_close_matches(args[0], self.commands)
            args = args if is_misspelled else [_DEFAULT, *args]
        return super().parse_args(ctx, args)


HELP = f"""Review drafts in the browser: correct them against the images and assess the errors.

[bold]maira review DRAFTS --manifest FILE[/bold] starts or resumes a review (short for maira review {_DEFAULT})."""

app = typer.Typer(help=HELP, cls=_DefaultGroup, no_args_is_help=True, rich_markup_mode="rich")

_Database = Annotated[Path, typer.Argument(help="Database of the review.", metavar="DB")]
_DRAFTS = "Drafts file (.jsonl), table (.csv) or campaign file (.yaml)."
_MANIFEST = "manifest.jsonl of the studies; not with a campaign file, or a table with references."
_DB = "Review database, created if missing. Default: review.sqlite in the folder of the file."
_RESULTS = "Results folder of radfact for these drafts: verdicts to show, or comments to rate."
_IMAGES = "Image folder outside the folder of the manifest; repeatable."
_FORM = """What readers are asked: comments, fineradscore, maira2, preferences, rexamine, rexval, or a file (.yaml).
Default: the form of the database, or else maira2."""
_SECOND = "Drafts to compare with those of the first file, with a form for pairs."
_HOST = "Address to listen on; 0.0.0.0: all, so that other machines can reach the review."
_READER = "Reader with a personal link, repeatable. Then only these links give access, each under its name."
_TOKEN_FILE = "File with the secret that links contain or are signed with. Default: the one in the database."
_CERTIFICATE = "TLS certificate (PEM) with its chain: encrypts the connection."
_KEY = "Private key of the certificate (PEM), if in another file."
_EXPORTED = """manifest.jsonl of the studies, or the table of the review, to write the review as a data set too: ratings
for radfact meta, preferences.jsonl, and a manifest with the corrected reports of each reader."""
_IDLE_AFTER = "Seconds without activity after which time does not count."
_BASELINE = "Arm that the others are compared with. Default: that of the campaign file, or else the first."
_MARGIN = """Non-inferiority margin of an outcome, such as corrections=0.5; repeatable; replaces that of the campaign
file. Default: that of the campaign file, which is for corrections per report."""


@app.command(_DEFAULT)
def start(
    drafts: Annotated[Path, typer.Argument(help=_DRAFTS)],
    manifest: Annotated[Path | None, typer.Option(help=_MANIFEST)] = None,
    db: Annotated[Path | None, typer.Option(help=_DB)] = None,
    results: Annotated[Path | None, typer.Option(help=_RESULTS)] = None,
    images: Annotated[list[Path] | None, typer.Option(help=_IMAGES)] = None,
    form: Annotated[str | None, typer.Option(help=_FORM)] = None,
    second: Annotated[Path | None, typer.Option(help=_SECOND)] = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free port.", min=0, max=65535)] = PORT,
    host: Annotated[str, typer.Option(help=_HOST)] = "127.0.0.1",
    reader: Annotated[list[str] | None, typer.Option(help=_READER)] = None,
    token_file: Annotated[Path | None, typer.Option(help=_TOKEN_FILE)] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help=_CERTIFICATE)] = None,
    tls_key: Annotated[Path | None, typer.Option(help=_KEY)] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
) -> None:
    """Review drafts in the browser. Changes are saved at once, and the same command resumes the review.

    A campaign (reader study) names readers, arms and their assignment in a YAML file; the coordinator has a page.
    """
    _require("starlette", "uvicorn")
    from maira.review.app import make_app
    from maira.review.campaign import read_campaign
    from maira.review.coordinator import CampaignFile
    from maira.review.form import read_form
    from maira.review.security import COORDINATOR, check_certificate, link_tokens
    from maira.review.serve import serve
    from maira.review.store import Store, stored_form
    from maira.review.studies import read_campaign_set, read_review_set
    from radfact.pages.access import is_loopback, listen, page_url, read_token

    token = read_token(token_file) if token_file else None
    certificate = None if tls_certificate is None else (tls_certificate, tls_key)
    if certificate:
        check_certificate(*certificate)
    elif tls_key:
        raise InputError("--tls-key requires --tls-certificate", code=ErrorCode.INVALID_OPTION)
    settings = read_campaign(drafts) if drafts.suffix.lower() in (".yaml", ".yml") else None
    if settings and (manifest or results or reader or form or second):
        problem = "no --manifest, --results, --reader, --form or --second with a campaign file, which sets these itself"
        raise InputError(f"expected {problem}", code=ErrorCode.INVALID_OPTION)
    path, folders = drafts.with_name("review.sqlite") if db is None else db, tuple(images or ())
    asked = read_form(form) if form else None
    if settings:
        review_set = read_campaign_set(settings, folders)
    elif manifest or drafts.suffix.lower() == ".csv":
        known = asked or stored_form(path)
        review_set = read_review_set(drafts, manifest, results, image_folders=folders, form=known, second=second)
    else:
        raise InputError("expected --manifest with a drafts file, found none", code=ErrorCode.INVALID_OPTION)
    say = partial(print_line, Console())
    if outside := review_set.images_outside():
        say(f"{outside} images are outside the manifest's folder and not shown; add their folder with --images")
    if review_set.unjudged:
        say(f"{review_set.unjudged} drafts have other sentences than {results}")

    opened = partial(Store, path, review_set.drafts, settings=settings, form=asked)
    with listen(host, port) as listener, closing(opened()) as store:
        for name in reader or ():
            store.add_reader(name)
        names = [*store.reader_keys()] if settings else [*dict.fromkeys(map(store.registered_name, reader or ()))]
        if settings and settings.has_one_reader_per_report(len(names)):
            say(
                "Each report has one reader, so there are no agreement statistics and no disagreements to decide; "
                "use more readers than arms, or arms_per_reader: all"
            )
        secret = store.token() if token is None else token
        tokens = link_tokens(secret, names, has_coordinator=settings is not None)
        links = {name: page_url(host, listener.getsockname()[1], token) for name, token in tokens.items()}
        if certificate:
            links = {name: link.replace("http", "https", 1) for name, link in links.items()}
        say(f"{len(review_set.drafts)} drafts, saved in {path}  (Ctrl-C stops the server)")
        for name, link in links.items():
            name = "Coordinator" if name == COORDINATOR else name and store.registered_name(name)
            say(f"{name}: {link}" if name else f"Review them at {link}")
        if not certificate and not is_loopback(host):
            say("The connection is not encrypted; use --tls-certificate, or a tunnel (ssh -L) to this machine")
        campaign = CampaignFile(drafts, folders, secret) if settings else None
        served = make_app(review_set, store, tokens, host=host, campaign=campaign)
        serve(served, listener, certificate, None if no_browser else links.get(""))


@app.command()
@with_options
def export(
    db: _Database,
    out: OutFolder,
    reader: Annotated[list[str] | None, typer.Option(help="Reader to export; repeatable. Default: all.")] = None,
    manifest: Annotated[Path | None, typer.Option(help=_EXPORTED)] = None,
) -> None:
    """Write the corrections and the corrected reports of each reader, or their answers, and ratings for radfact meta.

    Cells that a spreadsheet would execute as a formula, or that start with an apostrophe, are prefixed with an
    apostrophe. Drafts contain the studies that a reader finished.
    """
    from maira.review.export import write_export
    from maira.review.store import Store
    from maira.review.studies import read_studies

    with closing(Store(db)) as store:
        if not store.readers():
            print_line(Console(stderr=True), f"{db} contains no reader yet")
        studies = None if manifest is None else read_studies(manifest, [draft.sample_id for draft in store.drafts], db)
        for line in write_export(store, out, reader or store.readers(), studies):
            print_line(Console(), line)


@app.command()
@with_options
def summary(
    db: _Database,
    out: OutFolder,
    idle_after: Annotated[float, typer.Option(help=_IDLE_AFTER, min=MIN_IDLE_AFTER)] = IDLE_AFTER,
    baseline: Annotated[str | None, typer.Option(help=_BASELINE)] = None,
    margin: Annotated[list[str] | None, typer.Option(metavar="OUTCOME=VALUE", help=_MARGIN)] = None,
) -> None:
    """Summarize the finished reviews: summary.json, tables (CSV) and figure 4.

    Corrections, implications, time and agreement of readers by arm, with intervals from mixed-effects models or a
    cluster bootstrap, and the plot of MAIRA-2, figure 4. Statistics omit training cases and excluded readers.
    """
    _require("matplotlib", "statsmodels")
    from maira.review.plot import draw_figure
    from maira.review.reader_study import USES, analyze, collect_readings, make_tables, read_margins
    from maira.review.store import Store
    from maira.review.summary import krippendorff_alphas, summarize
    from radfact.io.jsonl import write_json
    from radfact.io.outputs import replace_files

    with closing(Store(db)) as store:
        form = store.form
        result = summarize(store, store.counted_readers())
        if not any(item["finished"] for item in result["readers"].values()):
            raise InputError("expected a finished study, found none", code=ErrorCode.EMPTY_INPUT, file=db)
        arms, margins, level = read_margins(store, baseline, margin or ())
        readings = collect_readings(store, store.readers(), idle_after=idle_after)
        result["krippendorff_alpha"] = krippendorff_alphas(store, store.counted_readers())
    result["readings"] = {use: sum(reading.use == use for reading in readings) for use in USES}
    result |= {"idle_after": idle_after, **analyze(readings, arms, margins, form=form, significance_level=level)}
    tables = make_tables(readings, result, form)
    with replace_files(out) as new:
        if form.edits:
            draw_figure(result, new / "figure4", form)
        for name, table in tables.items():
            table.write(new / f"{name}.csv")
        write_json(new / "summary.json", result)
    console = Console()
    if form.edits:
        _show_corrections(console, result["readers"], [*form.severities.values()][-2])
    else:
        _show_answers(console, result["readers"], form.by_name)
    outcomes = tables["arms"].select(("outcome", "arm", "estimate", "low", "high", "readings", "missing"))
    show_table(console, outcomes, keys=2, title=f"Outcomes by arm, {100 * (1 - level):g}% intervals")
    print_line(console, f"written: {out / 'summary.json'}, with tables (CSV){' and figure 4' * form.edits}")


def _show_corrections(console: Console, readers: Mapping[str, Any], worst: str) -> None:
    rows = []
    for name, item in readers.items():
        unchanged = f"{item['unchanged_sentences']} of {item['sentences']}"
        counts = [*item["kinds"].values(), sum(item["severities"].get(worst, {}).values())]
        rows.append([name, f"{item['finished']} of {item['assigned']}", unchanged, *map(str, counts)])
    heads = ("reader", "finished", "unchanged", "edited", "deleted", "added", worst)
    show_rows(console, heads, rows, title="Corrections")


def _show_answers(console: Console, readers: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    rows = [["", "studies finished", *(str(item["finished"]) for item in readers.values())]]
    for name, field in fields.items():
        columns = [item["answers"].get(name, {}) for item in readers.values()]
        values = ["mean"] if field.type == "number" else dict.fromkeys(value for each in columns for value in each)
        for value in values:
            rows.append([name, value, *(format_cell(each.get(value)) for each in columns)])
    show_rows(console, ("field", "answer", *readers), rows, title="Answers")


def _require(*packages: str) -> None:
    for package in packages:
        if find_spec(package) is None:
            message = f'requires the package {package}: pip install "maira-radfact[review]"'
            raise InputError(message, code=ErrorCode.MISSING_REQUIREMENT)
