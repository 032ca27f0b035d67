"""One way to talk to a language model: providers, concurrency, retries, answers kept on disk, parsed and repaired."""

from radfact.llm.cache import ResponseCache
from radfact.llm.call_errors import CallError
from radfact.llm.client import ChatClient, UsageCounter
from radfact.llm.loading import load_chat_client, parse_model_args
from radfact.llm.protocol import CachedResponse, ChatBackend, ChatRequest, Message, PromptPrefix

__all__ = [
    "CachedResponse",
    "CallError",
    "ChatBackend",
    "ChatClient",
    "ChatRequest",
    "Message",
    "PromptPrefix",
    "ResponseCache",
    "UsageCounter",
    "load_chat_client",
    "parse_model_args",
]
