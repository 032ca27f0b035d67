"""Language models: requests with retries, a cache, parsing and repairs, over providers, servers and vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radfact.lazy import lazy_names

if TYPE_CHECKING:
    from radfact.llm.cache import ResponseCache
    from radfact.llm.call_errors import CallError
    from radfact.llm.client import ChatClient, UsageCounter
    from radfact.llm.loading import load_chat_client, parse_model_args, structured_request
    from radfact.llm.mock import MockChatModel, mock_client
    from radfact.llm.protocol import CachedResponse, ChatBackend, ChatRequest, Message, PromptPrefix

__all__ = [
    "CachedResponse",
    "CallError",
    "ChatBackend",
    "ChatClient",
    "ChatRequest",
    "Message",
    "MockChatModel",
    "PromptPrefix",
    "ResponseCache",
    "UsageCounter",
    "load_chat_client",
    "mock_client",
    "parse_model_args",
    "structured_request",
]

__getattr__ = lazy_names(__name__)
