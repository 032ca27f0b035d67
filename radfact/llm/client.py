"""The client that all prompting goes through: calls in parallel, retried, kept, parsed, repaired and counted."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from radfact.errors import Failure, RunError
from radfact.llm.cache import GroupCommit, ResponseCache, canonical_json, response_key
from radfact.llm.call_errors import ATTEMPTS, CallError, CallErrorKind, leaving_out, redact, shown
from radfact.llm.protocol import CachedResponse, ChatBackend, ChatRequest, Message

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")

PATIENCE_AT_FIRST = 5.0
"""Seconds of waiting for a server that has not yet been reached: an address is more often wrong than late."""

# A refusal costs nothing and says little of other questions, so far more of them are wanted than any one report has.
# A question given up for another trouble was tried again for minutes.
FRUITLESS: Mapping[CallErrorKind, int] = {"refused": 256, "busy": 16, "broken": 16, "slow": 16}
"""Questions given up for one trouble, with none answered for any, after which all the others would fare the same."""

_CLOSING_SECONDS = 5.0
_INHERITED: list[tuple[ChatBackend, GroupCommit | None]] = []
"""What a forked process keeps of its parent's clients, since what is thrown away is closed."""
# A parser may quote the answer, which may be as long as the model's breath.
_FAULT_SHOWN = 300


@dataclass(slots=True)
class UsageCounter:
    """What the answers cost, and how far they are; may be read from any thread while they come in.

    `calls` reached a model and came back; `cached` answers were there already (on disk, or an equal question's);
    `planned` questions were given, `done` are settled, `failures` of them without a valid answer.
    """

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    repairs: int = 0
    failures: int = 0
    cached: int = 0
    retries: int = 0
    planned: int = 0
    done: int = 0

    def as_dict(self) -> dict[str, int]:
        """All counts by name."""
        return asdict(self)


class ChatClient:
    """Asks a language model many questions at once, each until its answer can be used or is given up with a reason.

    One pool keeps `concurrency` calls in flight from the first to the last question, in the order of the questions
    (those with the same beginning stay together, for the sake of a server's prefix cache). Equal questions are asked
    once. With a cache, an answer is on disk before it counts.
    """

    def __init__(
        self,
        backend: ChatBackend,
        identity: Mapping[str, Any],
        *,
        concurrency: int = 16,
        cache: ResponseCache | None = None,
        attempts: Mapping[CallErrorKind, int] = ATTEMPTS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Take a backend; it and the cache are closed with the client.

        Args:
            backend: who answers.
            identity: what is asked, as it stands in results: `model`, `parameters`, `base_url`, ...; JSON values, no
                keys. All of it but the address is part of the key under which answers are kept: a server that comes
                back on another machine or port goes on where it was, and another model wants another name.
            concurrency: calls in flight, of all threads together.
            cache: where answers are kept; none means in memory, as long as the client lives.
            attempts: how often one call is tried, by the kind of trouble; a kind that is absent is not tried again.
            sleep: how to wait, in seconds, between two attempts.
        """
        self.backend, self.identity, self.concurrency = backend, dict(identity), concurrency
        self.attempts, self.sleep = attempts, sleep
        self.usage_counter = UsageCounter()
        own_server = self.identity.get("base_url") is not None
        self._key_identity = canonical_json({**self.identity, "base_url": own_server})
        self._disk = None if cache is None else GroupCommit(cache)
        self._asked: dict[str, asyncio.Future[CachedResponse | Failure]] = {}
        self._slots = asyncio.Semaphore(concurrency)
        self._reached = self._answered = False
        self._given_up: dict[CallErrorKind, tuple[int, str]] = {}
        self._closer = weakref.finalize(self, _close, backend, self._disk, os.getpid())

    def complete_all(self, asks: Sequence[ChatRequest[T]]) -> list[T | Failure]:
        """Answers in the order of `asks`; a question whose answer cannot be had or used gives a Failure.

        Works from any thread, also from within a running event loop (a notebook's), which it holds up.

        Raises:
            RunError: the server refuses the key or the model, cannot be reached, or refuses every question; answers
                so far are in the cache.
        """
        # A loop of its own thread: works inside a notebook's loop, and connections live across calls.
        future = asyncio.run_coroutine_threadsafe(self._ask_all(asks), _event_loop())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Close the backend and the cache; otherwise done when the client is forgotten or the program ends."""
        self._closer()

    def __enter__(self) -> ChatClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def _ask_all(self, asks: Sequence[ChatRequest[T]]) -> list[T | Failure]:
        self.usage_counter.planned += len(asks)
        answers: dict[int, T | Failure] = {}
        waiting = iter(range(len(asks)))

        async def work() -> None:
            while not self._fruitless() and (index := next(waiting, None)) is not None:
                answer = await self._ask(asks[index])
                answers[index] = answer
                self.usage_counter.done += 1

        try:
            while len(answers) < len(asks):
                await _all(work() for _ in range(min(self.concurrency, len(asks) - len(answers))))
                # Not before the calls under way have ended: one may be answered, which shows that others can be.
                if why := self._fruitless():
                    self._given_up.clear()
                    raise RunError(why)
        finally:
            if self._disk is not None:
                await self._disk.settle()
        return [answers[index] for index in range(len(asks))]

    async def _ask(self, ask: ChatRequest[T]) -> T | Failure:
        messages = ask.messages
        fault = ""
        for turn in range(ask.repairs + 1):
            answer = await self._answer(ask, messages)
            if isinstance(answer, Failure):
                self.usage_counter.failures += 1
                return answer
            try:
                value = _read(answer, ask.parse)
            except ValueError as error:
                fault = " ".join(str(error).split())[:_FAULT_SHOWN]
            else:
                self.usage_counter.repairs += turn > 0
                return value
            # Some chat templates refuse an empty turn, and most want the roles to alternate.
            messages = (*messages, ("assistant", answer.text.strip() or "..."), ("user", _repair_request(fault)))
        self.usage_counter.failures += 1
        return Failure(f"no valid answer after {ask.repairs} repairs: {redact(fault)}")

    async def _answer(self, ask: ChatRequest[T], messages: tuple[Message, ...]) -> CachedResponse | Failure:
        key = response_key(self._key_identity, ask.prefix, messages, ask.schema)
        while (shared := self._asked.get(key)) is not None:
            answer = await asyncio.shield(shared)
            if answer is not _ABANDONED:
                self.usage_counter.cached += 1
                return answer
        if self._disk is not None and (stored := self._disk.cache.get(key)) is not None:
            self.usage_counter.cached += 1
            self._answered = True
            return stored
        future = self._asked[key] = asyncio.get_running_loop().create_future()
        answer = _ABANDONED
        try:
            answer = await self._ask_model(key, ask, messages)
        finally:
            if self._disk is not None or isinstance(answer, Failure):
                del self._asked[key]
            future.set_result(answer)
        return answer

    async def _ask_model(
        self, key: str, ask: ChatRequest[T], messages: tuple[Message, ...]
    ) -> CachedResponse | Failure:
        async with self._slots:
            answer = await self._call(ask, messages)
            if isinstance(answer, CachedResponse) and self._disk is not None:
                await self._disk.put(key, answer)
        if isinstance(answer, CachedResponse):
            self.usage_counter.calls += 1
            self.usage_counter.tokens_in += answer.tokens_in
            self.usage_counter.tokens_out += answer.tokens_out
        return answer

    async def _call(self, ask: ChatRequest[T], messages: tuple[Message, ...]) -> CachedResponse | Failure:
        from tenacity import AsyncRetrying, retry_if_exception

        tried: Counter[CallErrorKind] = Counter()
        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, CallError) and error.trouble in self.attempts),
            stop=lambda state: self._is_enough(state, tried),
            wait=_wait,
            sleep=self.sleep,
            before_sleep=self._count_retry,
            reraise=True,
        )
        try:
            answer: CachedResponse = await retrying(self._try, ask, messages, tried)
        except CallError as fault:
            return self._give_up(fault, ask, messages)
        self._answered = True
        return answer

    async def _try(
        self, ask: ChatRequest[T], messages: tuple[Message, ...], tried: Counter[CallErrorKind]
    ) -> CachedResponse:
        try:
            answer = await self.backend.complete(ask.prefix, messages, ask.schema)
        except CallError as fault:
            tried[fault.trouble] += 1
            self._reached = self._reached or fault.trouble != "unreachable"
            raise
        self._reached = True
        # Half a surrogate pair, which JSON can carry, is no text that can be written to disk.
        text = answer.text.encode(errors="replace").decode()
        return CachedResponse(text, answer.tokens_in, answer.tokens_out, answer.cut)

    def _is_enough(self, state: RetryCallState, tried: Mapping[CallErrorKind, int]) -> bool:
        fault = state.outcome.exception() if state.outcome else None
        if not isinstance(fault, CallError):
            return True
        if fault.trouble == "unreachable" and not self._reached:
            waited = max(state.idle_for, state.seconds_since_start or 0.0)
            return waited >= PATIENCE_AT_FIRST
        return tried[fault.trouble] >= self.attempts[fault.trouble]

    def _count_retry(self, _: RetryCallState) -> None:
        self.usage_counter.retries += 1

    def _give_up(self, fault: CallError, ask: ChatRequest[T], messages: tuple[Message, ...]) -> Failure:
        name = self.identity.get("model", "the model")
        if fault.trouble == "unreachable":
            raise RunError(f"{name}: the server cannot be reached{self._address()}; answers so far are kept") from None
        said = shown(fault.said, (content for _, content in (*ask.prefix.messages, *messages)))
        reason = f"{name}: {fault.what}" + (f" ({said})" if said else "")
        if fault.trouble == "stopped":
            raise RunError(reason) from None
        # An answer shows that the model takes what is sent with every question.
        asked = {} if self._answered else self.identity.get("parameters", {})
        if fault.trouble == "refused" and (option := leaving_out(fault.said, asked)):
            raise RunError(f"{reason}; leave it out with {option} (of a splitter: --splitter-arg)") from None
        if fault.trouble in self.attempts:
            reason += f", {self.attempts[fault.trouble]} times"
        self._given_up[fault.trouble] = (self._given_up.get(fault.trouble, (0, ""))[0] + 1, reason)
        return Failure(reason)

    def _fruitless(self) -> str:
        """Why it is of no use to ask on; empty where an answer was had, or too little is known."""
        if not self._answered:
            for trouble, (count, reason) in self._given_up.items():
                if count >= FRUITLESS[trouble]:
                    return f"{reason}; {count} questions fared so, and none was answered"
        return ""

    def _address(self) -> str:
        base_url = self.identity.get("base_url")
        return "" if base_url is None else f" at {base_url}"


async def _all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all, or for the first that fails; the others are ended then, as they are where this is cancelled."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# Stands in for the answer of a call that was cancelled: whoever shares the question asks it anew.
_ABANDONED = Failure("abandoned")


def _read(answer: CachedResponse, parse: Callable[[str], T]) -> T:
    if not answer.text.strip():
        raise ValueError("it is empty")
    if not answer.cut:
        return parse(answer.text)
    # Half an answer may still read like a whole one; a parser that keeps what it can use gets to see it.
    with suppress(ValueError):
        parse(answer.text)
    raise ValueError("it was cut off at the limit of tokens; keep it short")


def _repair_request(fault: str) -> str:
    return f"That answer cannot be used: {fault}. Answer again, in the same layout as before and with nothing else."


def _wait(state: RetryCallState) -> float:
    """Seconds before the next attempt: what the server asks for, and at random up to a bound that doubles to 60.

    The latter in any case: a server may ask for 0 seconds or for a time gone by, and calls that are all told the same
    time would all come back at once.
    """
    from tenacity import wait_random_exponential

    fault = state.outcome.exception() if state.outcome else None
    asked = (fault.retry_after or 0.0) if isinstance(fault, CallError) else 0.0
    return asked + float(wait_random_exponential(multiplier=1, max=60)(state))


def _event_loop() -> asyncio.AbstractEventLoop:
    return _loop_of(os.getpid())


@cache
def _loop_of(_process: int) -> asyncio.AbstractEventLoop:
    """The loop of a process: a forked one has its parent's, but not the thread that ran it."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="radfact-llm", daemon=True).start()
    return loop


def _close(backend: ChatBackend, disk: GroupCommit | None, process: int) -> None:
    if os.getpid() != process:
        # A forked process has a copy of the client, and its parent's selector: closing connections, it would take
        # the parent's eyes off them.
        _INHERITED.append((backend, disk))
        return

    async def close() -> None:
        await backend.close()
        if disk is not None:
            await disk.close()

    loop = _event_loop()
    closing = asyncio.run_coroutine_threadsafe(close(), loop)
    # A client may be forgotten in the loop's own thread, which cannot wait for itself.
    if _running_loop() is not loop:
        with suppress(TimeoutError):
            closing.result(_CLOSING_SECONDS)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
