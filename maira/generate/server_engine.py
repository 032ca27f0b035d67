"""Generation by a server with the OpenAI protocol, or by a provider: the client of the judges, with images."""

from __future__ import annotations

import asyncio
import base64
import io
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from maira.data.image_check import ImageCheck
from maira.generate.engine import Engine, EngineOptions, FailedRequest, GenerationRequest, Response, read_chat
from maira.generate.features import read_image
from radfact.errors import ErrorCode, Failure, InputError, RunError
from radfact.llm import CachedResponse, CallError, ChatBackend, ChatRequest, Message, PromptPrefix, load_chat_client
from radfact.options import rename_fields

_CONCURRENCY = 8
"""Calls in flight: fewer than for judges, since images take a server longer."""
_MARK = re.compile("\0([0-9]+)\0")
"""Place of an image in the text of a message, with its index."""
_CUT = "\0"
"""End of a text that the limit of tokens ended, which the client would refuse."""
_WORDING = {
    "--judge-arg": "--engine-arg",
    " (of a splitter: --splitter-arg)": "",
    "; completed responses are cached": "",
    "no valid answer after 0 repairs: ": "",
    "(max_tokens)": "(--max-new-tokens)",
}
"""Words of the client's errors, and what they are here."""


class ServerEngine(Engine):
    """An engine that sends prompts and whole images to a model; the requests of a run have one limit of tokens."""

    def __init__(self, _: Path | None, options: EngineOptions) -> None:
        self.name, self.options = str(options.model), options

    def generate(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Response | FailedRequest]]:
        """Yield the index and the response of every request as it arrives, with the seconds since the one before."""
        options, (first, *_) = self.options, requests
        model = self.name if options.base_url is None else f"openai:{self.name.removeprefix('openai:')}"
        temperature = 0.0 if first.sampling is None else first.sampling.temperature
        with rename_fields({"judge": "model", "judge_args": "engine_args"}):
            parameters = {"temperature": temperature, "max_tokens": first.max_new_tokens, **options.engine_args}
            concurrency = options.concurrency or _CONCURRENCY
            client = load_chat_client(
                model, base_url=options.base_url, parameters=parameters, concurrency=concurrency, max_invalid=0
            )
        images = [image for request in requests for image in request.example.images]
        client.backend = _ImageBackend(client.backend, images, options.image_check)
        results: SimpleQueue[tuple[int, Response | FailedRequest] | None] = SimpleQueue()
        errors: list[Exception] = []
        places = count()

        def read(index: int, text: str) -> None:
            response = Response(text.removesuffix(_CUT), text.endswith(_CUT), 0.0)
            results.put((index, read_chat(response, requests[index].example)))

        def run(chats: Sequence[ChatRequest[None]]) -> None:
            try:
                for index, answer in enumerate(client.complete_all(chats)):
                    if isinstance(answer, Failure):
                        results.put((index, FailedRequest(_reword(answer.reason.removeprefix(f"{model}: ")))))
            except Exception as error:
                errors.append(error)
            results.put(None)

        def mark(item: dict[str, Any]) -> str:
            return item.get("text") or f"\0{next(places)}\0"

        conversations = (request.example.messages for request in requests)
        marked = (tuple((m["role"], "".join(map(mark, m["content"]))) for m in messages) for messages in conversations)
        chats = [ChatRequest(messages, partial(read, index), repairs=0) for index, messages in enumerate(marked)]
        with client:
            # Not waited for: an interrupted run ends at once.
            Thread(target=run, args=(chats,), daemon=True).start()
            last = time.perf_counter()
            while (result := results.get()) is not None:
                if isinstance(response := result[1], Response):
                    response, last = replace(response, seconds=time.perf_counter() - last), time.perf_counter()
                yield result[0], response
        for error in errors:
            if not isinstance(error, RunError):
                raise error
            code = ErrorCode.RUN_FAILED if error.code is ErrorCode.JUDGE_FAILED else error.code
            raise RunError(_reword(str(error)), code=code) from None


def _reword(message: str) -> str:
    for words, ours in _WORDING.items():
        message = message.replace(words, ours)
    return message


class _ImageBackend:
    """A backend that reads the images of a conversation when it is sent."""

    def __init__(self, backend: ChatBackend, images: Sequence[Path], image_check: ImageCheck) -> None:
        self._backend, self._images, self._image_check = backend, images, image_check
        self.close: Callable[[], Any] = backend.close

    async def complete(
        self, prefix: PromptPrefix, messages: Sequence[Message], schema: Mapping[str, Any] | None
    ) -> CachedResponse:
        try:
            shown: Any = [(role, await asyncio.to_thread(self._content, text)) for role, text in messages]
        except InputError as error:
            raise CallError("refused", str(error)) from None
        response = await self._backend.complete(prefix, shown, schema)
        return replace(response, text=response.text + _CUT, cut=False) if response.cut else response

    def _content(self, text: str) -> str | list[dict[str, Any]]:
        parts = _MARK.split(text)
        content: list[dict[str, Any]] = []
        for index, part in enumerate(parts):
            if index % 2:
                png = io.BytesIO()
                read_image(self._images[int(part)], self._image_check).save(png, "PNG")
                url = f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"
                content.append({"type": "image_url", "image_url": {"url": url}})
            elif part.strip():
                content.append({"type": "text", "text": part})
        return content if len(parts) > 1 else text
