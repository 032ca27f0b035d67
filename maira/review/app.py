"""The review server: a page, its JSON, its images and its exports."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from data.study import IMAGE_COLUMNS
from maira.review.changes import Change, Snapshot, UnfinishedError, change_adapter
from maira.review.export import corrected_drafts, corrections_csv
from maira.review.images import as_png, describe_images
from maira.review.protocol import REFERENCE_STEP, SEVERITIES, STEPS
from maira.review.security import Guard
from maira.review.store import ConflictError, Store
from maira.review.studies import ReviewSet
from maira.review.summary import summarize
from radfact.errors import InputError, RunError
from radfact.html.markup import STATIC
from radfact.io.jsonl import dumps
from radfact.records import Record, Sentence, as_input_error, validated

_OWN = resources.files("maira.review") / "static"
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_SHARED = ("viewer.js", "viewer.css")
_CONTEXT = ("indication", "technique", "comparison", "prior_report")

_log = logging.getLogger(__name__)

Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{8,64}$")]


class _Named(Record):
    name: str


class _Envelope(Record):
    """What a change comes in."""

    reviewer: str
    id: Id
    version: Annotated[int, Field(ge=0)]


class _NotThereError(Exception):
    pass


class Server:
    """Answers the page's questions about one set of studies; each method is run in a thread of its own."""

    def __init__(self, review_set: ReviewSet, store: Store) -> None:
        """Serve the studies of a set with what its database holds."""
        self.set = review_set
        self.store = store
        shared = {name: STATIC / name for name in _SHARED}
        own = {one.name: one for one in _OWN.iterdir() if PurePath(one.name).suffix in (".js", ".css", ".svg")}
        self.assets: dict[str, Traversable] = shared | own

    def page(self, _: Request) -> Response:
        """`GET /`"""
        return Response((_OWN / "index.html").read_bytes(), media_type="text/html")

    def asset(self, request: Request) -> Response:
        """`GET /static/NAME`: from a list made at the start, never from a path."""
        name = request.path_params["name"]
        if name not in self.assets:
            raise _NotThereError
        return Response(self.assets[name].read_bytes(), media_type=_TYPES[PurePath(name).suffix])

    def about(self, _: Request) -> Response:
        """`GET /api/set`"""
        return JSONResponse(
            {
                "title": self.set.title,
                "studies": len(self.set.drafts),
                "reviewers": self.store.reviewers(),
                "severities": [one.model_dump() for one in SEVERITIES],
                "error_types": self.store.error_types(),
                "steps": [one.model_dump() for one in STEPS],
                "verdicts": self.set.verdicts is not None,
            }
        )

    def studies(self, request: Request) -> Response:
        """`GET /api/studies?reviewer=R`"""
        reviews = self.store.reviews(_reviewer(request))
        rows = enumerate(zip(self.set.drafts, reviews, strict=True), 1)
        return JSONResponse([_row(number, draft.sample_id, review) for number, (draft, review) in rows])

    def study(self, request: Request) -> Response:
        """`GET /api/studies/{number}?reviewer=R`"""
        number = self._number(request)
        review = self.store.review(_reviewer(request), number)
        study = self.set.studies[number - 1]
        sees_reference = max(review.visited) >= REFERENCE_STEP
        return JSONResponse(
            {
                "number": number,
                "sample_id": study.sample_id,
                "images": describe_images(self.set, number),
                **{name: getattr(study, name) for name in _CONTEXT},
                "state": state_json(review),
                "reference": [_sentence(one) for one in self.set.reference(number)] if sees_reference else None,
                "verdicts": self._verdicts(study.sample_id) if sees_reference else None,
            }
        )

    def image(self, request: Request) -> Response:
        """`GET /images/{number}/{kind}`: PNG, with `?full=1` as large as it is."""
        number, kind = self._number(request), request.path_params["kind"]
        if kind not in IMAGE_COLUMNS:
            raise _NotThereError
        try:
            path = self.set.image(number, kind)
            if path is None:
                raise _NotThereError
            png = as_png(path, full=request.query_params.get("full") == "1")
        except (InputError, OSError):
            raise _NotThereError from None
        return Response(png, media_type="image/png")

    def corrections(self, request: Request) -> Response:
        """`GET /export/corrections.csv?reviewer=R`"""
        table = corrections_csv(self.store, [_reviewer(request)])
        return _download(table.encode("utf-8-sig"), "text/csv", "corrections.csv")

    def drafts(self, request: Request) -> Response:
        """`GET /export/drafts.jsonl?reviewer=R`: the corrected reports of the studies that R has finished."""
        rows = corrected_drafts(self.store, _reviewer(request))
        text = "".join(f"{dumps(row)}\n" for row in rows)
        return _download(text.encode(), "application/jsonl", "drafts.jsonl")

    def summary(self, request: Request) -> Response:
        """`GET /export/summary.json?reviewer=R`"""
        figures = summarize(self.store, [_reviewer(request)])
        return _download(dumps(figures).encode(), "application/json", "summary.json")

    def add_reviewer(self, _: Request, body: Any) -> Response:
        """`POST /api/reviewers` with `{"name"}`: the name as it was first given."""
        name = validated(_Named, body).name
        self.store.add_reviewer(name)
        return JSONResponse({"name": self.store.noted_name(name)})

    def change(self, request: Request, body: Any) -> Response:
        """`POST /api/studies/{number}/changes`: answered when it is on disk."""
        number = self._number(request)
        envelope, change = _parse_change(body)
        try:
            review = self.store.add_change(envelope.reviewer, number, envelope.id, envelope.version, change)
        except ConflictError:
            present = state_json(self.store.review(envelope.reviewer, number))
            return JSONResponse({"error": "another page has changed this study since", "state": present}, 409)
        return JSONResponse({"state": state_json(review)})

    def _number(self, request: Request) -> int:
        number: int = request.path_params["number"]
        if not 1 <= number <= len(self.set.drafts):
            raise _NotThereError
        return number

    def _verdicts(self, sample_id: str) -> list[dict[str, Any]] | None:
        """What RadFact said; it would give the reference away before its time."""
        found = (self.set.verdicts or {}).get(sample_id)
        kept = {"index", "status", "why", "evidence"}
        return None if found is None else [verdict.model_dump(mode="json", include=kept) for verdict in found]


def state_json(review: Snapshot) -> dict[str, Any]:
    """The state of a review as the page takes it."""
    state = review.state
    return {
        "version": review.version,
        "step": state.step,
        "visited": sorted(review.visited),
        "done": state.done,
        "comment": state.comment,
        "sentences": [
            {
                "id": one.id,
                "origin": "added" if one.is_added else "draft",
                "text": one.text,
                "draft_text": one.draft_text,
                "boxes": one.boxes,
                "draft_boxes": one.draft_boxes,
                "deleted": one.deleted,
                "edited": one.is_edited,
                "assessment": {
                    "severity": one.assessment.severity,
                    "error_type": one.assessment.error_type,
                    "comment": one.assessment.comment,
                },
            }
            for one in state.sentences
        ],
        "can_undo": review.can_undo,
        "can_redo": review.can_redo,
    }


def make_app(review_set: ReviewSet, store: Store, *, host: str = "127.0.0.1", token: str | None = None) -> ASGIApp:
    """The application behind its guard.

    Args:
        review_set: what is reviewed.
        store: its database, of the same drafts.
        host: the address that it is served on.
        token: what a browser must bring; None for none.
    """
    server = Server(review_set, store)
    routes = [
        Route("/", _reading(server.page)),
        Route("/static/{name}", _reading(server.asset)),
        Route("/api/set", _reading(server.about)),
        Route("/api/reviewers", _writing(server.add_reviewer), methods=["POST"]),
        Route("/api/studies", _reading(server.studies)),
        Route("/api/studies/{number:int}", _reading(server.study)),
        Route("/api/studies/{number:int}/changes", _writing(server.change), methods=["POST"]),
        Route("/images/{number:int}/{kind}", _reading(server.image)),
        Route("/export/corrections.csv", _reading(server.corrections)),
        Route("/export/drafts.jsonl", _reading(server.drafts)),
        Route("/export/summary.json", _reading(server.summary)),
    ]
    return Guard(Router(routes), host=host, token=token)


_Endpoint = Callable[[Request], Awaitable[Response]]


def _reading(answer: Callable[[Request], Response]) -> _Endpoint:
    async def endpoint(request: Request) -> Response:
        return await run_in_threadpool(_answered, partial(answer, request))

    return endpoint


def _writing(answer: Callable[[Request, Any], Response]) -> _Endpoint:
    async def endpoint(request: Request) -> Response:
        try:
            body = json.loads(await request.body())
        except (ValueError, RecursionError):
            return _error(400, "expected JSON")
        return await run_in_threadpool(_answered, partial(answer, request, body))

    return endpoint


def _answered(answer: Callable[[], Response]) -> Response:
    try:
        return answer()
    except _NotThereError:
        return _error(404, "there is no such thing here")
    except InputError as error:
        # Without the file: where things lie on the server's disk is not the page's business.
        where = f"field '{error.field}': " if error.field else ""
        return _error(422 if isinstance(error, UnfinishedError) else 400, f"{where}{error.message}")
    except (RunError, sqlite3.Error) as error:
        # For the person at the terminal, who can make room or give leave; neither holds text of a report.
        _log.error("%s", error)
        return _error(503, "the database cannot be used now; nothing of this was saved")


def _error(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status)


def _reviewer(request: Request) -> str:
    return request.query_params.get("reviewer", "")


def _row(number: int, sample_id: str, review: Snapshot) -> dict[str, Any]:
    state = review.state
    status = "done" if state.done else "started" if review.version else "open"
    corrections = len(state.corrections)
    return {
        "number": number,
        "sample_id": sample_id,
        "status": status,
        "step": state.step,
        "corrections": corrections,
    }


def _sentence(sentence: Sentence) -> dict[str, Any]:
    return {"text": sentence.text, "boxes": [box.as_tuple() for box in sentence.boxes or ()]}


def _parse_change(body: Any) -> tuple[_Envelope, Change]:
    if not isinstance(body, dict):
        raise InputError("expected an object")
    envelope = validated(_Envelope, {name: body[name] for name in _Envelope.model_fields if name in body})
    try:
        change = change_adapter.validate_python({k: v for k, v in body.items() if k not in _Envelope.model_fields})
    except ValidationError as error:
        raise as_input_error(error) from None
    return envelope, change


def _download(content: bytes, kind: str, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=kind, headers=headers)
