"""A tiny chat model with random weights, as a folder, and what asks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from radfact.entailment.prompt import SYSTEM_MESSAGE
from radfact.llm import ChatClient, Message, Prefix, StoredAnswer

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MARKS = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


def write_tiny_model(folder: Path, texts: Sequence[str], *, template: str = TEMPLATE, **config: Any) -> Path:
    """A Llama of two layers whose tokenizer knows the words of some texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>")
    fast.add_special_tokens({"additional_special_tokens": MARKS[2:]})
    # What every prompt repeats is one token, which makes a step several times cheaper.
    fast.add_tokens([SYSTEM_MESSAGE])
    fast.chat_template = template
    torch.manual_seed(0)
    values: dict[str, Any] = {
        "vocab_size": len(fast),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 1024,
        "eos_token_id": fast.eos_token_id,
        "pad_token_id": fast.pad_token_id,
        "bos_token_id": None,
    }
    LlamaForCausalLM(LlamaConfig(**(values | config))).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


class FolderBackend:
    """Answers as a server of the model's folder would: its chat template, then the likeliest tokens to its end."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)

    async def complete(
        self, prefix: Prefix, messages: Sequence[Message], schema: Mapping[str, Any] | None
    ) -> StoredAnswer:
        del schema
        said = [{"role": role, "content": content} for role, content in (*prefix.messages, *messages)]
        text = self.tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
        ids = self.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            out = self.model.generate(ids, max_new_tokens=60, do_sample=False)[0, ids.shape[1] :]
        return StoredAnswer(self.tokenizer.decode(out, skip_special_tokens=True), ids.shape[1], len(out))

    async def close(self) -> None:
        pass


def ask_folder(folder: Path) -> ChatClient:
    """A client of a model's folder."""
    return ChatClient(FolderBackend(folder), {"model": "tiny"}, concurrency=1)
