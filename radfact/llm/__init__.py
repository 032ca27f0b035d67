"""Language models: requests with retries, a cache, parsing and repairs, over providers, servers and vLLM."""

from radfact.llm.cache import ResponseCache
from radfact.llm.call_errors import CallError
from radfact.llm.client import ChatClient, UsageCounter
from radfact.llm.loading import load_chat_client, parse_model_args
from radfact.llm.mock import MockChatModel, mock_client
from radfact.llm.protocol import CachedResponse, ChatBackend, ChatRequest, Message, PromptPrefix
from radfact.llm.structured import structured_request

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
