"""The client that all prompting goes through: calls in parallel, retried, cached, parsed, repaired and counted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from radfact.errors import Failure, RunFailed
from radfact.llm.cache import AnswerCache, StoredAnswer, answer_key

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from tenacity import RetryCallState

T = TypeVar("T")

Message = tuple[str, str]
"""(role, content), role one of system, user, assistant."""

REPAIRS = 2
_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_STOPPING = {
    401: "the key was refused; set the provider's key in the environment",
    403: "access was refused; check the key's rights",
    404: "no such model or address; check the model's name and the base URL",
}


@dataclass(frozen=True, slots=True)
class Ask(Generic[T]):
    """A conversation, and the parser of its answer: it returns a value or raises ValueError saying what is wrong."""

    messages: tuple[Message, ...]
    parse: Callable[[str], T]


@dataclass(slots=True)
class Ledger:
    """What the answers cost: `calls` that reached a model and came back, `cached` answers read from disk instead."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    repairs: int = 0
    failures: int = 0
    cached: int = 0
    retries: int = 0

    def as_dict(self) -> dict[str, int]:
        """All counts by name."""
        return asdict(self)


class ChatClient:
    """Asks a chat model many questions at once, each until its answer can be used or is given up with a reason."""

    def __init__(
        self,
        model: BaseChatModel,
        identity: Mapping[str, Any],
        *,
        concurrency: int = 16,
        cache: AnswerCache | None = None,
        attempts: int = 8,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Take a LangChain chat model.

        Args:
            model: the chat model, with its sampling parameters set.
            identity: everything beside the messages that changes an answer; JSON values, no keys.
            concurrency: calls in flight.
            cache: where answers are kept; none means that they are not.
            attempts: how often one call is tried when the server is busy, slow or down.
            sleep: how to wait, in seconds, between two attempts.
        """
        self.model, self.identity, self.cache = model, dict(identity), cache
        self.concurrency, self.attempts, self.sleep = concurrency, attempts, sleep
        self.ledger = Ledger()

    def ask_all(self, asks: Sequence[Ask[T]]) -> list[T | Failure]:
        """Answers in the order of `asks`; a question whose answer cannot be had or used gives a Failure.

        Raises:
            RunFailed: the server refuses the key or the model, or cannot be reached; answers so far are in the cache.
        """
        # A loop of its own thread: works inside a notebook's loop, and connections live across calls.
        future = asyncio.run_coroutine_threadsafe(self._ask_all(asks), _event_loop())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _ask_all(self, asks: Sequence[Ask[T]]) -> list[T | Failure]:
        answers: list[T | Failure | None] = [None] * len(asks)
        waiting = iter(range(len(asks)))

        async def work() -> None:
            for index in waiting:
                answers[index] = await self._ask(asks[index])

        workers = [asyncio.create_task(work()) for _ in range(min(self.concurrency, len(asks)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return [Failure("not asked") if answer is None else answer for answer in answers]

    async def _ask(self, ask: Ask[T]) -> T | Failure:
        messages = ask.messages
        fault = ""
        for turn in range(REPAIRS + 1):
            answer = await self._answer(messages)
            if isinstance(answer, Failure):
                self.ledger.failures += 1
                return answer
            try:
                value = ask.parse(answer.text)
            except ValueError as error:
                fault = str(error)
            else:
                self.ledger.repairs += turn > 0
                return value
            messages = (*messages, ("assistant", answer.text), ("user", _repair_request(fault)))
        self.ledger.failures += 1
        return Failure(f"no valid answer after {REPAIRS} repairs: {fault}")

    async def _answer(self, messages: tuple[Message, ...]) -> StoredAnswer | Failure:
        key = answer_key(identity=self.identity, messages=messages)
        if self.cache is not None and (stored := self.cache.get(key)) is not None:
            self.ledger.cached += 1
            return stored
        answer = await self._call(messages)
        if isinstance(answer, StoredAnswer):
            if self.cache is not None:
                self.cache.put(key, answer)
            self.ledger.calls += 1
            self.ledger.tokens_in += answer.tokens_in
            self.ledger.tokens_out += answer.tokens_out
        return answer

    async def _call(self, messages: tuple[Message, ...]) -> StoredAnswer | Failure:
        from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt

        retrying = AsyncRetrying(
            retry=retry_if_exception(_is_passing),
            stop=stop_after_attempt(self.attempts),
            wait=_wait,
            sleep=self.sleep,
            before_sleep=self._count_retry,
            reraise=True,
        )
        try:
            reply: AIMessage = await retrying(self.model.ainvoke, list(messages))
        except Exception as error:
            return self._give_up(error)
        usage = reply.usage_metadata or {"input_tokens": 0, "output_tokens": 0}
        return StoredAnswer(str(reply.text), usage["input_tokens"], usage["output_tokens"])

    def _count_retry(self, _: RetryCallState) -> None:
        self.ledger.retries += 1

    def _give_up(self, error: Exception) -> Failure:
        status = _status(error)
        name = self.identity.get("model", "the model")
        if status in _STOPPING:
            raise RunFailed(f"{name}: {_STOPPING[status]} (HTTP {status})") from None
        if status is None and _is_connection(error) and not _is_timeout(error):
            raise RunFailed(f"{name}: the server cannot be reached; answers so far are kept") from None
        what = f"HTTP {status}" if status is not None else type(error).__name__
        return Failure(f"{name}: {what} after {self.attempts} attempts" if _is_passing(error) else f"{name}: {what}")


def _repair_request(fault: str) -> str:
    return f"That answer cannot be used: {fault}. Answer again, in the same layout as before and with nothing else."


def _status(error: BaseException) -> int | None:
    """The HTTP status of a provider's error; their classes differ, the attributes hardly."""
    for holder in (error, getattr(error, "response", None)):
        for name in ("status_code", "code", "http_status"):
            value = getattr(holder, name, None)
            if isinstance(value, int):
                return value
    return None


def _class_names(error: BaseException) -> str:
    return " ".join(cls.__name__ for cls in type(error).__mro__)


def _is_timeout(error: BaseException) -> bool:
    return isinstance(error, TimeoutError) or "Timeout" in _class_names(error)


def _is_connection(error: BaseException) -> bool:
    names = _class_names(error)
    return isinstance(error, ConnectionError) or any(
        word in names for word in ("APIConnectionError", "ConnectError", "TransportError", "ClientConnectionError")
    )


def _is_passing(error: BaseException) -> bool:
    """Whether the same call may succeed a little later."""
    status = _status(error)
    if status is not None:
        return status in _RETRIED
    return _is_timeout(error) or _is_connection(error)


def _wait(state: RetryCallState) -> float:
    """Seconds before the next attempt: what the server asks for, else doubling from 1 to 60 with jitter."""
    from tenacity import wait_exponential_jitter

    error = state.outcome.exception() if state.outcome else None
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        return min(max(float(headers.get("retry-after", "")), 0.0), 300.0)
    except ValueError:
        return float(wait_exponential_jitter(initial=1, max=60)(state))


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="radfact-llm", daemon=True).start()
    return loop
