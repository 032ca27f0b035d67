"""One way to talk to a language model: providers, concurrency, retries, answers kept on disk, parsed and repaired."""

from radfact.llm.cache import AnswerCache
from radfact.llm.client import ChatClient, UsageCounter
from radfact.llm.connect import connect, split_model_args
from radfact.llm.conversation import Ask, Backend, Message, Prefix, StoredAnswer
from radfact.llm.faults import CallFault

__all__ = [
    "AnswerCache",
    "Ask",
    "Backend",
    "CallFault",
    "ChatClient",
    "Message",
    "Prefix",
    "StoredAnswer",
    "UsageCounter",
    "connect",
    "split_model_args",
]
