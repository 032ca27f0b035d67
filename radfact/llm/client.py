"""The client that sends all prompts: concurrent calls with retries, a cache, parsing, repairs and usage counts."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from radfact.errors import ErrorCode, Failure, InputError, RunError
from radfact.llm.cache import GroupCommit, ResponseCache, canonical_json, response_key
from radfact.llm.call_errors import (
    MAX_ATTEMPTS,
    CallError,
    CallErrorKind,
    excerpt,
    option_without_parameter,
    redact,
    refuses_system_role,
    safe_message,
    token_count,
    without_quotes,
)
from radfact.llm.protocol import (
    NO_PREFIX,
    CachedResponse,
    ChatBackend,
    ChatRequest,
    IncompleteResponseError,
    Message,
    current_repeat,
    merge_system,
)
from radfact.llm.response_text import strip_reasoning
from radfact.progress import ServerActivity

T = TypeVar("T")

FIRST_CONNECTION_SECONDS = 5.0
"""Seconds to wait for a server that was never reached: the address is more often wrong than the server late."""
MAX_BACKOFF = 60.0
"""Upper bound in seconds on the random part of a wait, which doubles with each attempt."""

# A refusal costs nothing and depends on the request, so the limit exceeds the requests of any one report.
# A request that failed for another reason was retried for minutes.
MAX_FAILED_REQUESTS: Mapping[CallErrorKind, int] = {"refused": 256, "busy": 16, "broken": 16, "slow": 16}
"""Failed requests of one kind, without any response, after which the run stops."""

MAX_INVALID = 10
"""Invalid responses, without any valid one, after which the run stops."""

_CLOSING_SECONDS = 5.0
_THREAD = "radfact-llm"
_EVENT_LOOPS: dict[int, asyncio.AbstractEventLoop] = {}
_INHERITED: list[tuple[ChatBackend, GroupCommit | None]] = []
"""The parent's clients in a forked process: garbage collection would close their connections."""
_MAX_PROBLEM_CHARACTERS = 300  # A parser may quote the response.
_ONLY_REASONING = (
    "it has reasoning text but no answer; raise the limit of tokens (max_tokens), or turn off the reasoning "
    "(docs/queries.md, Model parameters)"
)
_MERGE_HINT = (
    "merge its message into that of the user with --judge-arg merge_system=true (of a splitter: --splitter-arg)"
)
_REPAIR_REQUEST = "That answer cannot be used: {}. Answer again, in the same layout as before and with nothing else."


@dataclass(slots=True)
class UsageCounter:
    """Cost and progress of a client's requests; safe to read from any thread during a run."""

    calls: int = 0  #: calls to the model that returned a response
    tokens_in: int = 0  #: tokens of all prompts
    tokens_out: int = 0  #: tokens of all responses
    repairs: int = 0  #: requests whose response was valid only after a repair
    failures: int = 0  #: requests without a valid response
    cached: int = 0  #: responses reused from the cache or from an equal request
    retries: int = 0  #: calls that were repeated after an error
    planned: int = 0  #: requests received
    done: int = 0  #: requests completed, failures included

    def as_dict(self) -> dict[str, int]:
        """Return all counts by name."""
        return asdict(self)


class ChatClient:
    """Sends many requests to a language model concurrently and parses the responses.

    One pool keeps `concurrency` calls in flight, in the order of the requests (requests with the same prefix stay
    together, which helps a server's prefix cache). Equal requests are sent once. With a cache, a response is on disk
    before it is returned.
    """

    def __init__(
        self,
        backend: ChatBackend,
        identity: Mapping[str, Any],
        *,
        concurrency: int = 16,
        cache: ResponseCache | None = None,
        attempts: Mapping[CallErrorKind, int] = MAX_ATTEMPTS,
        max_invalid: int = MAX_INVALID,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Create a client.

        Args:
            backend: sends the calls; closed with the client.
            identity: description of the model for results: `model`, `parameters`, `base_url`, ...; JSON values, no
                keys. All of it except the address is part of the cache key: a server may move to another machine or
                port, and another model needs another name. With the parameter `merge_system`, the text of the system
                message begins the first message of the user, for models without a system role.
            concurrency: maximum number of calls in flight, over all threads.
            cache: cache on disk, closed with the client; None caches in memory for the life of the client.
            attempts: maximum attempts of one call by kind of error; other kinds are not retried.
            max_invalid: requests with an invalid response, without any valid one, after which the run stops; cached
                responses count as well. 0 for no limit.
            sleep: waits a number of seconds between two attempts.
        """
        self.backend, self.identity, self.concurrency = backend, dict(identity), concurrency
        self.attempts, self.sleep, self.max_invalid = attempts, sleep, max_invalid
        self.usage_counter = UsageCounter()
        own_server = self.identity.get("base_url") is not None
        self._key_identity = canonical_json({**self.identity, "base_url": own_server})
        self._disk = None if cache is None else GroupCommit(cache)
        self._responses: dict[str, asyncio.Future[CachedResponse | Failure]] = {}
        # While all responses are invalid, at most `max_invalid` requests are in flight.
        self._held_back = max(concurrency - max_invalid, 0) if max_invalid > 0 else 0
        self._slots = asyncio.Semaphore(concurrency - self._held_back)
        self._reached = self._responded = self._schema_refused = self._has_valid = False
        self._invalid: list[str] = []
        self._failed: defaultdict[CallErrorKind, list[str]] = defaultdict(list)
        # The host of a server, or the name of a model without an address.
        self._name = str(self.identity.get("model", "the model"))
        self._activity = ServerActivity(urlsplit(str(self.identity.get("base_url") or "")).netloc or self._name)
        self._closer = weakref.finalize(self, _close, backend, self._disk, os.getpid())

    def complete_all(self, requests: Sequence[ChatRequest[T]]) -> list[T | Failure]:
        """Return the parsed responses in the order of the requests; a Failure where no response is valid.

        Works from any thread, also inside a running event loop (of a notebook), which it blocks.

        Raises:
            RunError: the server refuses the key or the model, cannot be reached, or refuses every request, or the first
                responses are all invalid; completed responses are in the cache.
        """
        # An event loop in its own thread works inside a notebook's loop, and connections live across calls.
        future = asyncio.run_coroutine_threadsafe(self._complete_all(requests), _event_loop(os.getpid()))
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def cached_response(self, request: ChatRequest[Any]) -> CachedResponse | None:
        """Return the response to a request on disk, with or without its schema; nothing is sent."""
        if self._disk is None:
            return None
        for schema in (request.schema,) if request.schema_required else (request.schema, None):
            key = response_key(self._key_identity, request.prefix, request.messages, schema, current_repeat())
            if (cached := self._disk.cache.get(key)) is not None:
                return cached
        return None

    def close(self) -> None:
        """Close the backend and the cache; also happens on garbage collection and at exit."""
        self._closer()

    def __enter__(self) -> ChatClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _complete_all(self, requests: Sequence[ChatRequest[T]]) -> list[T | Failure]:
        self.usage_counter.planned += len(requests)
        results: dict[int, T | Failure] = {}
        pending = iter(range(len(requests)))

        async def work() -> None:
            while True:
                async with self._slots:
                    if self._stop_reason() or (index := next(pending, None)) is None:
                        return
                    results[index] = await self._complete(requests[index])
                    self.usage_counter.done += 1
                if self._has_valid or self._failed:
                    for _ in range(self._held_back):
                        self._slots.release()
                    self._held_back = 0

        try:
            while len(results) < len(requests):
                async with asyncio.TaskGroup() as group:
                    number = min(self.concurrency, len(requests) - len(results))
                    tasks = [group.create_task(work()) for _ in range(number)]
                # The group ignores a task that something in the backend has canceled.
                for task in tasks:
                    task.result()
                # Only after the calls in flight have ended: one response shows that others are possible.
                if reason := self._stop_reason():
                    self._failed.clear()
                    self._invalid.clear()
                    raise RunError(reason, code=ErrorCode.JUDGE_FAILED)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            if self._disk is not None:
                await self._disk.settle()
        return [results[index] for index in range(len(requests))]

    async def _complete(self, request: ChatRequest[T]) -> T | Failure:
        """Send a request until its response is valid or its repairs are used up."""
        messages = request.messages
        without_schema = request if request.schema_required else replace(request, schema=None)
        text = problem = ""
        for turn in range(request.repairs + 1):
            response = await self._respond(without_schema if self._schema_refused else request, messages)
            if response is _SCHEMA_REFUSED:
                response = await self._respond(without_schema, messages)
                self._schema_refused |= isinstance(response, CachedResponse)
            if isinstance(response, Failure):
                return self._fail(response.reason)
            try:
                value = _parse(response, request.parse)
            except (ValueError, RecursionError, OverflowError) as error:
                text, problem = response.text, " ".join(str(error).split())[:_MAX_PROBLEM_CHARACTERS]
                self._has_valid |= isinstance(error, IncompleteResponseError)
            else:
                self._has_valid = True
                self.usage_counter.repairs += turn > 0
                return value
            # Some chat templates refuse an empty turn, and most require the roles to alternate.
            turn_text = text.strip() if strip_reasoning(text).strip() else "..."
            messages = (*messages, ("assistant", turn_text), ("user", _REPAIR_REQUEST.format(problem)))
        private = [content for _, content in request.messages] if request.reports is None else request.reports
        shown = excerpt(text, private)
        problem = redact(without_quotes(problem)) + (f"; the response: {shown}" if shown else "")
        self._invalid.append(problem)
        return self._fail(f"no valid answer after {request.repairs} repairs: {problem}")

    def _fail(self, reason: str) -> Failure:
        self.usage_counter.failures += 1
        self._activity.fail(reason)
        return Failure(reason)

    async def _respond(self, request: ChatRequest[T], messages: tuple[Message, ...]) -> CachedResponse | Failure:
        """Return the response to a conversation from an equal request, the cache or the model, in this order."""
        key = response_key(self._key_identity, request.prefix, messages, request.schema, current_repeat())
        while (shared := self._responses.get(key)) is not None:
            response = await asyncio.shield(shared)
            if response is not _CANCELED:
                self.usage_counter.cached += 1
                return response
        if self._disk is not None and (cached := self._disk.cache.get(key)) is not None:
            self.usage_counter.cached += 1
            self._responded = True
            return cached
        future = self._responses[key] = asyncio.get_running_loop().create_future()
        response = _CANCELED
        try:
            response = await self._call(request, messages)
            if isinstance(response, CachedResponse):
                if self._disk is not None:
                    await self._disk.put(key, response)
                self.usage_counter.calls += 1
                self.usage_counter.tokens_in += response.tokens_in
                self.usage_counter.tokens_out += response.tokens_out
        finally:
            if self._disk is not None or isinstance(response, Failure):
                del self._responses[key]
            future.set_result(response)
        return response

    async def _call(self, request: ChatRequest[T], messages: tuple[Message, ...]) -> CachedResponse | Failure:
        """Call the model, with retries."""
        prefix, merged = request.prefix, messages
        if self.identity.get("parameters", {}).get("merge_system"):
            prefix, merged = NO_PREFIX, merge_system((*prefix.messages, *messages))
        may_omit_schema = request.schema is not None and not request.schema_required
        errors: Counter[CallErrorKind] = Counter()
        started, waited = time.monotonic(), 0.0
        while True:
            try:
                with self._activity.calling():
                    response = _checked(await self.backend.complete(prefix, merged, request.schema))
            except InputError:
                if not may_omit_schema:
                    raise
                return _SCHEMA_REFUSED
            except CallError as error:
                if error.kind == "refused" and may_omit_schema:
                    return _SCHEMA_REFUSED
                if (*prefix.messages, *merged)[0][0] == "system" and refuses_system_role(error):
                    error = CallError("stopped", f"the model has no system role; {_MERGE_HINT}")
                errors[error.kind] += 1
                self._reached |= error.kind != "unreachable"
                never_reached = error.kind == "unreachable" and not self._reached
                is_late = max(waited, time.monotonic() - started) >= FIRST_CONNECTION_SECONDS
                if is_late if never_reached else errors[error.kind] >= self.attempts.get(error.kind, 1):
                    return self._give_up(error, request, messages)
                # The random part is always added: a server may request 0 seconds or a time in the past, and calls that
                # all wait the same time would all return at once.
                backoff = random.uniform(0.0, min(2.0 ** (errors.total() - 1), MAX_BACKOFF))
                seconds = (error.retry_after or 0.0) + backoff
                self.usage_counter.retries += 1
                self._activity.wait(error.reason, seconds)
                waited += seconds
                await self.sleep(seconds)
            else:
                self._reached = self._responded = True
                self._activity.respond()
                return response

    def _give_up(self, error: CallError, request: ChatRequest[T], messages: tuple[Message, ...]) -> Failure:
        """Return the failure of a request; raise RunError if the error concerns every request."""
        if error.kind == "unreachable":
            base_url = self.identity.get("base_url")
            address = "" if base_url is None else f" at {base_url}"
            message = f"{self._name}: cannot reach the server{address}; completed responses are cached"
            raise RunError(message, code=ErrorCode.SERVER_UNAVAILABLE) from None
        message = safe_message(error.server_message, (text for _, text in (*request.prefix.messages, *messages)))
        reason = f"{self._name}: {error.reason}" + (f" ({message})" if message else "")
        # After one response the model is known to accept the parameters of every request.
        parameters = {} if self._responded else self.identity.get("parameters", {})
        option = option_without_parameter(error.server_message, parameters) if error.kind == "refused" else ""
        if option:
            reason += f"; omit it with {option} (of a splitter: --splitter-arg)"
        if option or error.kind == "stopped":
            raise RunError(reason, code=ErrorCode.JUDGE_FAILED) from None
        if error.kind in self.attempts:
            reason += f", {self.attempts[error.kind]} times"
        self._failed[error.kind].append(reason)
        return Failure(reason)

    def _stop_reason(self) -> str:
        """Return why further requests are pointless; empty if there was a valid response or too few failures."""
        if 0 < self.max_invalid <= len(self._invalid) and not self._has_valid:
            found = f"the first {len(self._invalid)} responses are all invalid (first: {self._invalid[0]})"
            return f"{self._name}: {found}; --max-invalid 0 disables this check (in Python max_invalid=0)"
        if not self._responded:
            for kind, reasons in self._failed.items():
                if len(reasons) >= MAX_FAILED_REQUESTS[kind]:
                    return f"{reasons[-1]}; {len(reasons)} requests failed this way and none succeeded"
        return ""


# Results of a canceled call, which requests that share it send again, and of one whose optional schema was refused.
_CANCELED, _SCHEMA_REFUSED = Failure("canceled"), Failure("schema refused")


def _checked(response: CachedResponse) -> CachedResponse:
    """Return a response that can be written to disk, where JSON has half a surrogate pair or an infinite number."""
    text = response.text.encode(errors="replace").decode()
    return CachedResponse(text, token_count(response.tokens_in), token_count(response.tokens_out), response.cut)


def _parse(response: CachedResponse, parse: Callable[[str], T]) -> T:
    if not strip_reasoning(response.text).strip():
        raise ValueError(_ONLY_REASONING if response.text.strip() or response.tokens_out > 1 else "it is empty")
    if not response.cut:
        return parse(response.text)
    # Half a response can read like a whole one. A stateful parser still sees it and can use what is complete.
    with suppress(ValueError):
        parse(response.text)
    raise ValueError("it was cut off at the limit of tokens; keep it short")


def _event_loop(process: int) -> asyncio.AbstractEventLoop:
    """Return the event loop of a process: a forked process inherits the loop but not the thread that runs it."""
    if (loop := _EVENT_LOOPS.get(process)) is not None:
        return loop
    # Threads that come first together agree on one loop, to which the calls in flight of a client are bound.
    created = asyncio.new_event_loop()
    loop = _EVENT_LOOPS.setdefault(process, created)
    if loop is created:
        threading.Thread(target=loop.run_forever, name=_THREAD, daemon=True).start()
    else:
        created.close()
    return loop


def _close(backend: ChatBackend, disk: GroupCommit | None, process: int) -> None:
    if os.getpid() != process:
        # A forked process shares the selector of its parent: closing its copies of the connections would unregister
        # those of the parent.
        _INHERITED.append((backend, disk))
        return

    async def close() -> None:
        await backend.close()
        if disk is not None:
            await disk.close()

    loop = _event_loop(process)
    closing = asyncio.run_coroutine_threadsafe(close(), loop)
    # Garbage collection can run in the thread of the loop, which cannot wait for itself.
    if threading.current_thread().name != _THREAD:
        with suppress(TimeoutError):
            closing.result(_CLOSING_SECONDS)
