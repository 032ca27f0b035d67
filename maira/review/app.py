"""The web application of a review: page, JSON API, images and exports."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import re
import sqlite3
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from maira.data.study import IMAGE_COLUMNS
from maira.review.changes import Answer, Review, UnfinishedError, change_adapter, validate
from maira.review.coordinator import CampaignFile, Coordinator, NewReader
from maira.review.counterparts import find_counterparts
from maira.review.database import is_locked_error
from maira.review.export import answers_csv, corrected_drafts
from maira.review.form import PREFERENCES, Value
from maira.review.images import Pyramid, describe_study, load_pyramid, thumbnail
from maira.review.security import COORDINATOR, HEALTH_PATH, MAX_REQUEST_BYTES, Guard, add_security_headers
from maira.review.store import ConflictError, SavingBlockedError, Store
from maira.review.studies import ReviewSet
from maira.review.summary import summarize
from maira.review.times import EventBatch, Id
from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.jsonl import dumps
from radfact.pages.markup import STATIC
from radfact.records import Row, validate_model

_OWN = resources.files("maira.review") / "static"
_TYPES = {
    **{".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"},
    **{".csv": "text/csv", ".json": "application/json", ".jsonl": "application/jsonl"},
}
_CANCELED = 499  # it reaches nobody
_BINARY = "application/octet-stream"
_SHARED = ("viewer.js", "radiograph.js", "viewer.css", "base.css")

_log = logging.getLogger(__name__)


class _StudyNumber(IntegerConvertor):
    regex = "[0-9]{1,9}"  # int() refuses thousands of digits


register_url_convertor("study", _StudyNumber())


class _Envelope(Row):
    """Fields of a request in addition to the change."""

    reader: str
    id: Id
    version: Annotated[int, Field(ge=0)]


def _not_found() -> HTTPException:
    return HTTPException(404, "not found")


def _other_reader() -> HTTPException:
    return HTTPException(403, "this browser is signed in as another reader")


class Server:
    """Handlers of requests about a set of studies; each runs in a thread."""

    def __init__(self, review_set: ReviewSet, store: Store) -> None:
        self.set = review_set
        self.store = store
        shared = {name: STATIC / name for name in _SHARED}
        own = {file.name: file for file in _OWN.iterdir() if PurePath(file.name).suffix in (".js", ".css", ".svg")}
        self.assets: dict[str, Traversable] = shared | own
        digests = "".join(draft.name + draft.digest for draft in review_set.drafts)
        if store.campaign.settings is not None:
            # Studies are added to a campaign, whose beginning stays.
            digests = store.campaign.history[0][0]
        self.drafts_id = hashlib.sha256(digests.encode()).hexdigest()[:16]

    def health(self, _: Request) -> Response:
        self.store.readers()
        return JSONResponse({"status": "ok"})

    def page(self, request: Request) -> Response:
        page = (_OWN / "index.html").read_text(encoding="utf-8")
        if request.scope["reader"] == COORDINATOR:
            # Both pages show images in the same way.
            (inputs,) = re.findall('<section class="inputs".*?</section>', page, re.DOTALL)
            page = (_OWN / "coordinator.html").read_text(encoding="utf-8").replace("<!-- inputs -->", inputs)
        return Response(page, media_type="text/html")

    def asset(self, request: Request) -> Response:
        """Respond to `GET /static/NAME`: names are looked up in a list, never used as a path."""
        name = request.path_params["name"]
        if name not in self.assets:
            raise _not_found()
        return Response(self.assets[name].read_bytes(), media_type=_TYPES[PurePath(name).suffix])

    def about(self, request: Request) -> Response:
        """Respond to `GET /api/set`, without file names: they may reveal the model."""
        if request.scope["reader"] == COORDINATOR:
            raise _other_reader()
        key = request.scope["reader"] or None
        reader = key and self.store.registered_name(key)
        settings = self.store.campaign.settings
        return JSONResponse(
            {
                "studies": len(self.set.drafts) if key is None else len(self.store.study_list(key)),
                "drafts": self.drafts_id,
                "reader": reader,
                "reader_id": key,
                "readers": self.store.readers() if reader is None else [reader],
                "instructions": settings.instructions if settings else "",
                "exports": self._exports(),
                "error_types": self.store.error_types(),
                "form": self.store.form.model_dump(mode="json"),
                "verdicts": self.set.verdicts is not None,
            }
        )

    def studies(self, request: Request) -> Response:
        reader = self._reader(request)
        reviews = self.store.reviews(reader)
        rows = []
        for place, number in enumerate(self.store.study_list(reader), 1):
            review, sample_id = reviews[number - 1], self.set.drafts[number - 1].sample_id
            corrections, step = len(review.state.corrections), review.state.step
            progress = {"status": review.status, "step": step, "corrections": corrections}
            rows.append({"number": place, "sample_id": sample_id, **progress, **self._label(number)})
        return JSONResponse(rows)

    def study(self, request: Request) -> Response:
        number = self._number(request)
        reader = self._reader(request)
        review = self.store.review(reader, number)
        sample_id = self.set.drafts[number - 1].sample_id
        sees_reference, lines = self._shows_reference(review, number), self.set.reference(number)
        reference = [{"text": line.text, "boxes": [box.as_tuple() for box in line.boxes or ()]} for line in lines]
        candidates = self.set.drafts[number - 1].candidates if self.store.form.unit == "pair" else []
        if self.store.is_swapped(reader, number):
            candidates.reverse()
        return JSONResponse(
            {
                "number": request.path_params["number"],
                "sample_id": sample_id,
                **self._label(number),
                **describe_study(self.set, number, request.path_params["number"]),
                "state": self._state(reader, number, review),
                "candidates": [[sentence.text for sentence in candidate] for candidate in candidates],
                "reference": reference if sees_reference else None,
                "verdicts": self._verdicts(sample_id) if sees_reference else None,
            }
        )

    def counterparts(self, request: Request) -> Response:
        number = self._number(request)
        review = self.store.review(self._reader(request), number)
        if not self._shows_reference(review, number):
            raise _not_found()
        sentences = review.state.sentences
        reference = [(line.text, [box.as_tuple() for box in line.boxes or ()]) for line in self.set.reference(number)]
        places = find_counterparts([(sentence.text, sentence.boxes) for sentence in sentences], reference)
        by_sentence = {sentence.id: found for sentence, found in zip(sentences, places, strict=True)}
        return JSONResponse({"version": review.version, "counterparts": by_sentence})

    def image(self, request: Request) -> Response:
        """Respond to `GET /images/{number}/{kind}?longest=N`: a level whose longest side has at least N pixels."""
        pyramid = self._pyramid(request)
        longest = request.query_params.get("longest", "")
        values, step = pyramid.level(int(longest[:9]) if longest.isascii() and longest.isdigit() else 1)
        rows, columns = values.shape
        level = {"columns": columns, "rows": rows, "step": step}
        headers = {"image-info": json.dumps({**pyramid.info, "level": level})}
        return Response(values.astype("<u2", copy=False).tobytes(), headers=headers, media_type=_BINARY)

    def thumbnail(self, request: Request) -> Response:
        """Respond to `GET /thumbnails/{number}/{kind}` with a PNG of the model's input, which is read faster."""
        return Response(thumbnail(self._pyramid(request, prefer_original=False)), media_type="image/png")

    def _pyramid(self, request: Request, *, prefer_original: bool = True) -> Pyramid:
        number, kind = self._number(request), request.path_params["kind"]
        image = self.set.image(number, kind, prefer_original=prefer_original) if kind in IMAGE_COLUMNS else None
        if image is None:
            raise _not_found()
        return load_pyramid(image[0])

    def export(self, request: Request) -> Response:
        """Respond to `GET /export/{name}?reader=R`: the tables of a reader, without the model."""
        name = request.path_params["name"]
        if name not in self._exports():
            raise _not_found()
        reader = self._reader(request)
        if name.endswith(".csv"):
            content = answers_csv(self.store, [reader], is_blinded=True).encode("utf-8-sig")
        elif name == "drafts.jsonl":
            rows = corrected_drafts(self.store, reader)
            lines = (dumps({key: row[key] for key in row if key not in ("model", "arm")}) for row in rows)
            content = "".join(f"{line}\n" for line in lines).encode()
        else:
            content = dumps(summarize(self.store, [reader])).encode()
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type=_TYPES[PurePath(name).suffix], headers=headers)

    def add_reader(self, request: Request, body: Any) -> Response:
        name = validate_model(NewReader, body).name
        if request.scope["reader"]:
            raise _other_reader()
        self.store.add_reader(name)
        return JSONResponse({"name": self.store.registered_name(name)})

    def change(self, request: Request, body: Any) -> Response:
        number, envelope = self._number(request), validate_model(_Envelope, body)
        change = validate(change_adapter, {k: v for k, v in body.items() if k not in _Envelope.model_fields})
        reader = self._checked(request, envelope.reader)
        if isinstance(change, Answer):
            change = change.model_copy(update={"values": self._unblinded(reader, number, change.values)})
        try:
            review = self.store.add_change(reader, number, envelope.id, envelope.version, change)
        except ConflictError:
            current = self._state(reader, number, self.store.review(reader, number))
            return JSONResponse({"error": "this study was changed in another page", "state": current}, 409)
        return JSONResponse({"state": self._state(reader, number, review)})

    def times(self, request: Request, body: Any) -> Response:
        """Respond once events of a page are on disk; those that are already there stay."""
        batch = validate_model(EventBatch, body)
        if batch.drafts != self.drafts_id:
            message = f"expected events of review {self.drafts_id}, found {batch.drafts:.64}; reload the page"
            raise InputError(message, code=ErrorCode.MISMATCH, field="drafts")
        reader = self._checked(request, batch.reader)
        events = [event.model_copy(update={"number": self._study(request, event.number)}) for event in batch.events]
        self.store.add_events(batch.model_copy(update={"reader": reader, "events": tuple(events)}))
        return JSONResponse({})

    def _exports(self) -> tuple[str, ...]:
        """Return the names of the files that readers may export: none that reveals an arm."""
        form, settings = self.store.form, self.store.campaign.settings
        if form.unit == "pair" or (settings and settings.labels):
            return ()
        return ("summary.json", *(("corrections.csv", "drafts.jsonl") if form.edits else ("answers.csv",)))

    def _shows_reference(self, review: Review, number: int) -> bool:
        has_image = any(getattr(self.set.studies[number - 1], kind) for kind in IMAGE_COLUMNS)
        return self.store.form.shows_reference(review.visited, has_image=has_image)

    def _unblinded(self, reader: str, number: int, answers: Mapping[str, Value]) -> dict[str, Value]:
        """Exchange A and B in answers if the reader sees the candidates in the other order."""
        first, second, _ = PREFERENCES
        others: dict[Value, Value] = {first: second, second: first}
        if self.store.form.unit != "pair" or not self.store.is_swapped(reader, number):
            return dict(answers)
        return {name: others.get(value, value) for name, value in answers.items()}

    def _state(self, reader: str, number: int, review: Review) -> dict[str, Any]:
        state = {**state_json(review), "answers": self._unblinded(reader, number, review.state.answers)}
        # Ids of sentences would reveal the order of the candidates.
        return {**state, "sentences": []} if self.store.form.unit == "pair" else state

    def _reader(self, request: Request) -> str:
        return self._checked(request, request.query_params.get("reader", ""))

    def _checked(self, request: Request, reader: str) -> str:
        """Return a reader's current name: with a reader's link, only that of the reader."""
        if request.scope["reader"] not in ("", self.store.reader_key(reader)):
            raise _other_reader()
        return self.store.registered_name(reader)

    def _number(self, request: Request) -> int:
        return self._study(request, request.path_params["number"])

    def _study(self, request: Request, place: int) -> int:
        """Return the number of a study from its place in the reader's list: numbers would reveal the arm."""
        key = request.scope["reader"]
        numbers = range(1, len(self.set.drafts) + 1) if key in ("", COORDINATOR) else self.store.study_list(key)
        if not 1 <= place <= len(numbers):
            raise _not_found()
        return numbers[place - 1]

    def _label(self, number: int) -> dict[str, str | bool]:
        """Return the campaign fields of a study: whether it is a training case, and with several arms the label."""
        settings, draft = self.store.campaign.settings, self.set.drafts[number - 1]
        if settings is None:
            return {}
        label = {"label": settings.labels[draft.arm]} if settings.labels else {}
        return {**label, "is_training": draft.is_training}

    def _verdicts(self, sample_id: str) -> list[dict[str, Any]] | None:
        """Return RadFact's verdicts; before the reference step they would reveal the reference."""
        verdicts = (self.set.verdicts or {}).get(sample_id)
        fields = {"index", "status", "why", "evidence"}
        return None if verdicts is None else [verdict.model_dump(mode="json", include=fields) for verdict in verdicts]


def state_json(review: Review) -> dict[str, Any]:
    state = asdict(review.state)
    for shown, sentence in zip(state["sentences"], review.state.sentences, strict=True):
        shown |= {"origin": "added" if sentence.is_added else "draft", "edited": sentence.is_edited}
    turns = {"can_undo": review.can_undo, "can_redo": bool(review.undone)}
    return {**state, **turns, "version": review.version, "visited": sorted(review.visited)}


def make_app(
    review_set: ReviewSet,
    store: Store,
    tokens: Mapping[str, str],
    *,
    host: str = "127.0.0.1",
    campaign: CampaignFile | None = None,
) -> ASGIApp:
    server = Server(review_set, store)
    current_tokens = dict(tokens)
    # More images at once would delay each other.
    places = asyncio.Semaphore(os.cpu_count() or 1)
    routes = [
        Route(HEALTH_PATH, server.health),
        Route("/", server.page),
        Route("/static/{name}", server.asset),
        Route("/api/set", server.about),
        _post("/api/readers", server.add_reader),
        Route("/api/studies", server.studies),
        Route("/api/studies/{number:study}", server.study),
        _post("/api/studies/{number:study}/changes", server.change),
        _post("/api/times", server.times),
        Route("/api/studies/{number:study}/counterparts", server.counterparts),
        Route("/images/{number:study}/{kind}", _in_turn(server.image, places)),
        Route("/thumbnails/{number:study}/{kind}", _in_turn(server.thumbnail, places)),
    ]
    if campaign is not None:
        coordinator = Coordinator(server, campaign, current_tokens)
        routes += [
            Route("/api/campaign", _for_coordinator(coordinator.overview)),
            Route("/api/campaign/studies/{number:study}", _for_coordinator(coordinator.study)),
            _post("/api/campaign/actions", _for_coordinator(coordinator.apply_action)),
            _post("/api/campaign/readers", _for_coordinator(coordinator.add_reader)),
            _post("/api/campaign/studies", _for_coordinator(coordinator.add_studies)),
            Route("/export/decisions.csv", _for_coordinator(coordinator.decisions)),
        ]
    routes.append(Route("/export/{name}", server.export))
    guarded = Guard(Router(routes), host=host, tokens=current_tokens)
    return add_security_headers(ExceptionMiddleware(guarded, {HTTPException: _refuse, Exception: _refuse}))


def _for_coordinator(handler: Callable[..., Response]) -> Callable[..., Response]:
    def guarded(request: Request, *body: Any) -> Response:
        if request.scope["reader"] != COORDINATOR:
            raise _other_reader()
        return handler(request, *body)

    return guarded


def _in_turn(handler: Callable[[Request], Response], places: asyncio.Semaphore) -> Callable[..., Awaitable[Response]]:
    """Return an endpoint that waits for a place, and skips requests that are canceled until then."""

    async def endpoint(request: Request) -> Response:
        async with places:
            if await request.is_disconnected():
                return Response(status_code=_CANCELED)
            return await run_in_threadpool(handler, request)

    return endpoint


def _post(path: str, handler: Callable[[Request, Any], Response]) -> Route:
    async def endpoint(request: Request) -> Response:
        text = b""
        async for part in request.stream():
            text += part
            if len(text) > MAX_REQUEST_BYTES:
                raise HTTPException(413, f"expected at most {MAX_REQUEST_BYTES} bytes")
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            raise HTTPException(400, "expected JSON") from None
        return await run_in_threadpool(handler, request, body)

    return Route(path, endpoint, methods=["POST"])


def _refuse(_: Request, error: Exception) -> Response:
    field = None
    match error:
        case HTTPException():
            status, reason = error.status_code, error.detail
        case SavingBlockedError():
            # The page keeps the change and sends it again: a pause ends, and an excluded reader may be included again.
            status, reason = 503, str(error)
        case InputError():
            # Without the file: paths of the server must not reach the page.
            status, reason, field = 422 if isinstance(error, UnfinishedError) else 400, error.message, error.field
        case RunError() | sqlite3.Error():
            # For the person at the terminal. Neither error contains text of a report.
            _log.error("%s", error)
            is_locked = is_locked_error(error) or is_locked_error(error.__cause__)
            status, reason = 503, f"the database is {'locked by another program' if is_locked else 'unavailable'}"
        case _:
            # The message may contain text of a report, the location does not.
            at = traceback.extract_tb(error.__traceback__)[-1]
            _log.error("%s in %s, line %s", type(error).__name__, PurePath(at.filename).name, at.lineno)
            status, reason = 500, "internal error; see the log of the server"
    return JSONResponse({"error": reason, "field": field}, status)
