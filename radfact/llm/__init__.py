"""One way to talk to a language model: providers, concurrency, retries, cache on disk, answers parsed and repaired."""

from radfact.llm.cache import AnswerCache, StoredAnswer
from radfact.llm.client import Ask, ChatClient, Ledger, Message
from radfact.llm.providers import load_chat_model, split_model_args

__all__ = [
    "AnswerCache",
    "Ask",
    "ChatClient",
    "Ledger",
    "Message",
    "StoredAnswer",
    "load_chat_model",
    "split_model_args",
]
