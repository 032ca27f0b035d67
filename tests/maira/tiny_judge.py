"""A tiny chat model with random weights in a folder, its training examples and a client for it."""

import random
from collections.abc import Mapping, Sequence
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from maira.judge.pairing import ReportPair
from maira.judge.run_config import JudgeTrainConfig
from maira.judge.samples import ChatSample, TrainingExample
from maira.judge.training import setup_judge_training
from maira.judge.verdicts import held_out_judgments, make_entailment_examples
from maira.train.loop import run_training
from radfact.io.jsonl import write_json, write_jsonl
from radfact.judges import load_splitter
from radfact.judges.llm_judge import judge_prompt
from radfact.judges.offline import OfflineJudge
from radfact.judges.prompt import SYSTEM_MESSAGE
from radfact.llm import CachedResponse, ChatClient, Message, PromptPrefix
from radfact.records import Pair

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
DATA: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("tiny_judge.yaml").read_text("utf-8"))
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
    tokens = {"vocab_size": len(fast), "eos_token_id": fast.eos_token_id, "pad_token_id": fast.pad_token_id}
    LlamaForCausalLM(LlamaConfig(**(DATA["model"] | tokens | config))).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def example_set() -> list[TrainingExample]:
    """Whether a finding is there, of reports of two findings, by the offline judge."""
    rng = random.Random(0)
    pairs = []
    combinations = product(DATA["findings"], (0, 1), (0, 1), DATA["other sentences"])
    for number, (finding, is_present, is_stated, sentence) in enumerate(combinations):
        texts = [f"{finding.capitalize()}." if yes else f"No {finding}." for yes in (is_present, is_stated)]
        reference = f"{texts[0]} {sentence}" if rng.random() < 0.5 else f"{sentence} {texts[0]}"
        pairs.append(ReportPair(Pair(f"{number}", texts[1], reference), "random", f"{number}"))
    offline = {"offline": OfflineJudge()}
    examples, _ = make_entailment_examples(pairs, judge_prompt(Path("none")), load_splitter("offline"), offline)
    return [example for example in examples if "/A" in example.name]


def samples(examples: Sequence[TrainingExample]) -> list[ChatSample]:
    """A fifth of them held out."""
    rng = random.Random(1)
    hold_out = set(rng.sample(range(len(examples)), len(examples) // 5))
    return [
        example.to_sample("entailment", "heldout" if place in hold_out else "train")
        for place, example in enumerate(examples)
    ]


def write_samples(path: Path, chat_samples: Sequence[ChatSample]) -> None:
    write_jsonl(path, (sample.model_dump() for sample in chat_samples))


def train_config(model: Path, data: Path, out: Path, **changes: Any) -> JudgeTrainConfig:
    """Three steps by default, with a state after every second one."""
    return JudgeTrainConfig.model_validate({"model": model, "train": data, "out": out} | DATA["run"] | changes)


def texts(examples: Sequence[TrainingExample]) -> list[str]:
    """What its tokenizer needs to know."""
    return [example.messages[-1][1] for example in examples] + [example.answer for example in examples]


def train_judge(config: JudgeTrainConfig) -> Path:
    return run_training(config, setup_judge_training, Console(file=StringIO()))


def train_tiny_judge(folder: Path, **config: Any) -> tuple[Path, Path]:
    """Train a judge on a few hundred pairs; return it and the held-out file. `config` is that of the model."""
    examples = example_set()
    chat_samples = samples(examples)
    (folder / "model").mkdir()
    model = write_tiny_model(folder / "model", texts(examples), **config)
    write_samples(folder / "samples.jsonl", chat_samples)
    hold_out = [example for example, sample in zip(examples, chat_samples, strict=True) if sample.split == "heldout"]
    write_json(folder / "heldout.json", held_out_judgments(hold_out))
    config_of_run = train_config(model, folder / "samples.jsonl", folder / "run", **DATA["whole run"])
    return train_judge(config_of_run), folder / "heldout.json"


class FolderBackend:
    """Answers as a server of the model's folder would: its chat template, then the likeliest tokens to its end."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)

    async def complete(
        self, prefix: PromptPrefix, messages: Sequence[Message], schema: Mapping[str, Any] | None
    ) -> CachedResponse:
        del schema
        said = [{"role": role, "content": content} for role, content in (*prefix.messages, *messages)]
        text = self.tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
        ids = self.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            out = self.model.generate(ids, max_new_tokens=60, do_sample=False)[0, ids.shape[1] :]
        return CachedResponse(self.tokenizer.decode(out, skip_special_tokens=True), ids.shape[1], len(out))

    async def close(self) -> None:
        pass


def ask_folder(folder: Path) -> ChatClient:
    """A client of a model's folder."""
    return ChatClient(FolderBackend(folder), {"model": "tiny"}, concurrency=1)
