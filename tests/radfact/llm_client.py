"""Clients and requests shared by the tests of `radfact.llm`."""

from typing import Any

from radfact.llm import ChatClient, ChatRequest
from radfact.llm.http import HttpBackend

ROUTES = ("aiohttp", "LangChain")
"""Ways to a server with the OpenAI protocol: by its address, or as a provider."""
SECRET = "sk-do-not-show-this-one"


class Waits(list[float]):
    """Stands in for sleeping and notes how long it would have been."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def http_client(base_url: str, **options: Any) -> ChatClient:
    """A client of a server that speaks the OpenAI protocol, which does not really wait between attempts."""
    options.setdefault("sleep", Waits())
    backend = HttpBackend("m", base_url, {"temperature": 0, "max_tokens": 1024}, timeout=5)
    return ChatClient(backend, {"model": "openai:m", "base_url": base_url}, **options)


def numeric(text: str) -> ChatRequest[int]:
    """Return a request whose response must be a whole number."""
    return ChatRequest((("system", "Count."), ("user", text)), int)
