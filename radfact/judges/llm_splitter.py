"""The splitter of the paper: a chat model splits narratives into single findings (MAIRA-2, appendix B.5.1)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from radfact.errors import Failure
from radfact.judges.options import JudgeOptions
from radfact.judges.prompt import Sentence, read_examples
from radfact.judges.protocol import ExplainingSplitter, SplitSentence, flatten_split
from radfact.judges.response import fields_by_line, has_texts, texts_of
from radfact.llm import ChatClient, ChatRequest, Message, PromptPrefix
from radfact.llm.plan import RequestPlan, plan_requests
from radfact.llm.response_text import bodies, dump_yaml, read_data, read_list, unquoted
from radfact.reader.segmentation import running_text

SYSTEM_MESSAGE = Path(__file__).with_name("splitter_system.txt").read_text("utf-8").rstrip()
"""Source: MAIRA-2, listing 1, verbatim; the paper breaks two of its lines."""
DEFAULT_FEW_SHOTS = Path(__file__).with_name("splitter_few_shots.json")
PARAMETERS: Mapping[str, Any] = {"temperature": 0, "top_p": 1, "max_tokens": 2048}
ORIG_COVER = 0.6
"""Share of the words of an `orig` that the narrative must have in the same order."""
SENTENCE_COVER = 0.8
"""Share of the words of a sentence that an `orig` must have in the same order for the sentence to count as present."""

_ORIG_LINE = re.compile(r"^\s*(?:-\s+)?orig\s*:", re.IGNORECASE | re.MULTILINE)
_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|\n+")


class _Split(BaseModel):
    orig: str
    new: list[str]


class _ParsedReport(BaseModel):
    sentence_list: Annotated[list[_Split], Field(min_length=1)]


class SplitExample(BaseModel):
    """A worked narrative in the published layout."""

    findings_text: Sentence
    parsed_report: _ParsedReport


def few_shot_messages(examples: Sequence[SplitExample]) -> tuple[Message, ...]:
    """Return the constant part of every prompt: listing 1, then the worked narratives (listing 2)."""
    messages: list[Message] = [("system", SYSTEM_MESSAGE)]
    for example in examples:
        answer = example.model_dump()["parsed_report"]["sentence_list"]
        messages += [("user", example.findings_text), ("assistant", dump_yaml(answer))]
    return tuple(messages)


def parse_split(text: str, narrative: str) -> list[SplitSentence]:
    """Parse the response to one narrative; ValueError if it lacks or invents a sentence of the narrative."""
    items = next(filter(None, map(_read_items, bodies(text))), [])
    if not items:
        raise ValueError("expected a list of orig (a sentence of the report) and new (a list of sentences)")
    for item in items:
        if not _contains(narrative, item.orig, ORIG_COVER):
            raise ValueError(f"the report has no sentence '{item.orig:.80}'; give its own sentences as orig")
    origs = [item.orig for item in items]
    for sentence in _SENTENCE_END.split(narrative):
        # A model may quote a heading with the next sentence, or not at all.
        is_heading = sentence.rstrip().endswith(":")
        is_covered = is_heading or _contains(" ".join(origs), sentence)
        if not is_covered and not any(_contains(orig, sentence, SENTENCE_COVER) for orig in origs):
            advice = "give every sentence of the report as orig, with an empty new where nothing of it is kept"
            raise ValueError(f"the sentence '{sentence:.80}' is missing; {advice}")
    return items


def _contains(source: str, text: str, share: float = 1.0) -> bool:
    """Return whether the source has the words of a text consecutively, or this share of them in the same order."""
    words, source_words = _WORD.findall(text.lower()), _WORD.findall(source.lower())
    if f" {' '.join(words)} " in f" {' '.join(source_words)} ":
        return True
    blocks = SequenceMatcher(None, words, source_words, autojunk=False).get_matching_blocks() if share < 1 else []
    return sum(block.size for block in blocks) >= share * len(words)


def _read_items(body: str) -> list[SplitSentence]:
    data = read_data(body)
    if isinstance(data, dict) and "orig" not in data:
        data = next((value for value in data.values() if isinstance(value, list)), None)
    items = [_read_item(item) for item in (data if isinstance(data, list) else [data])]
    sentences = [item for item in items if item is not None]
    # Listing 2 repeats its keys on one level; YAML would keep only the last.
    origs = len(_ORIG_LINE.findall(body))
    return sentences if sentences and len(sentences) == max(len(items), origs) else _read_items_by_line(body)


def _read_item(data: Any) -> SplitSentence | None:
    if not isinstance(data, dict) or not isinstance(data.get("orig"), str) or "new" not in data:
        return None
    return SplitSentence(data["orig"], tuple(texts_of(data["new"]))) if has_texts(data["new"]) else None


def _read_items_by_line(body: str) -> list[SplitSentence]:
    """Read `orig:` and `new:` line by line if the whole is no YAML, as with a colon inside a sentence."""
    fields = fields_by_line(body, "orig|new", first="orig|new")
    origs, news = ([lines for name, lines in fields if name == key] for key in ("orig", "new"))
    if len(origs) != len(news):
        return []
    texts = [unquoted(" ".join(line.strip() for line in lines).strip(" ,")) for lines in origs]
    return [SplitSentence(orig, tuple(texts_of(read_list(new)))) for orig, new in zip(texts, news, strict=True)]


class PromptedModel:
    """A chat model with the constant part of its prompt."""

    def __init__(self, name: str, client: ChatClient, prefix: PromptPrefix, description: Mapping[str, Any]) -> None:
        self.name, self.client = name, client
        self._prefix, self._description = prefix, description

    def describe(self) -> dict[str, Any]:
        """Return the name, the model's parameters, and the hash and sources of the constant part of the prompt."""
        return {"name": self.name, **self.client.identity, **self._description}

    def usage(self) -> dict[str, int]:
        return self.client.usage_counter.as_dict()

    def close(self) -> None:
        self.client.close()


class LLMSplitter(PromptedModel, ExplainingSplitter):
    """A chat model as splitter, with the prompts of the paper (MAIRA-2, appendix B.5.1) and worked narratives."""

    def __init__(
        self,
        name: str,
        client: ChatClient,
        examples: Sequence[SplitExample],
        *,
        examples_from: str = "default examples (not the published ones)",
    ) -> None:
        prefix = PromptPrefix(few_shot_messages(examples))
        description = {
            "prompt_sha256": prefix.sha256,
            "system_from": "MAIRA-2, listing 1",
            "few_shots": len(examples),
            "few_shots_from": examples_from,
        }
        super().__init__(name, client, prefix, description)

    def explain(self, narratives: Sequence[str]) -> list[list[SplitSentence] | Failure]:
        """Return the split sentences of each narrative, in order; equal ones are sent once, empty ones not at all."""
        requests = self._requests(narratives)
        responses = self.client.complete_all(list(requests.values()))
        results: dict[str, list[SplitSentence] | Failure] = dict(zip(requests, responses, strict=True))
        return [results.get(narrative, []) for narrative in narratives]

    def plan(self, narratives: Sequence[str]) -> tuple[RequestPlan, list[list[str] | Failure | None]]:
        """Count the requests of `split`, and return the sentences of the narratives whose response is cached."""
        requests = self._requests(narratives)
        plan, splits = plan_requests(self.client, list(requests.values()))
        cached = dict(zip(requests, splits, strict=True))
        found = [cached.get(narrative, []) for narrative in narratives]
        return plan, [None if split is None else flatten_split(split) for split in found]

    def _requests(self, narratives: Sequence[str]) -> dict[str, ChatRequest[list[SplitSentence]]]:
        return {
            narrative: ChatRequest(
                (("user", text),), partial(parse_split, narrative=text), self._prefix, reports=(narrative,)
            )
            for narrative in narratives
            if (text := running_text(narrative))
        }


def load_llm_splitter(options: JudgeOptions, cache: Path | None = None) -> LLMSplitter:
    """Load the splitter of the paper with the model and the few-shot examples of options."""
    client, few_shots = options.load_client(PARAMETERS, cache), options.few_shots
    source = {} if few_shots is None else {"examples_from": few_shots.name}
    examples = read_examples(few_shots or DEFAULT_FEW_SHOTS, SplitExample)
    return LLMSplitter(options.required_judge, client, examples, **source)
