"""A small tokenizer for models that are trained from scratch."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from maira.model.prompts import GROUNDING, RELEASE_FINDINGS, RELEASE_PHRASE, SYSTEM
from maira.model.tokens import add_tokens

CONSTANT_PASSAGES = (f"{SYSTEM} USER:", RELEASE_FINDINGS, GROUNDING, RELEASE_PHRASE.strip())
"""Passages that every prompt of a task repeats; as one token each they make a step of a small model a third cheaper."""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer and add MAIRA-2's tokens; any text can be encoded and decoded unchanged."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(list(CONSTANT_PASSAGES))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    add_tokens(fast)
    return fast


def words_of(text: str) -> str:
    """Return a text without MAIRA-2's tokens and the constant passages, which must not shape the vocabulary."""
    for passage in CONSTANT_PASSAGES:
        text = text.replace(passage, " ")
    return re.sub(r"<[^<> ]+>", " ", text)
