"""The paper's splitter: a chat model makes single-finding sentences of a narrative (paper 004, appendix B.5.1)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from radfact.errors import Failure, InputError
from radfact.io.jsonl import read_json
from radfact.judges.splitter import SplitSentence, sentences_of_split
from radfact.llm import ChatClient, ChatRequest, Message, PromptPrefix, load_chat_client, parse_model_args
from radfact.llm.response_text import EMPTY_WORDS, bodies, dump_yaml, read_data, read_list, unquoted

# Paper 004, listing 1, word for word; the paper's page breaks two of its lines.
SYSTEM_MESSAGE = """\
You are an AI radiology assistant. You are helping process reports from chest X-rays.

Please extract phrases from the radiology report which refer to objects, findings, or anatomies visible in a chest \
X-ray, or the absence of such.

Rules:
- If a sentence describes multiple findings, split them up into separate sentences.
- Exclude clinical speculation or interpretation (e.g. "... highly suggestive of pneumonia").
- Exclude recommendations (e.g. "Recommend a CT").
- Exclude comments on the technical quality of the X-ray (e.g. "there are low lung volumes").
- Include mentions of change (e.g. "Pleural effusion has increased") because change is visible when we compare two \
X-rays.
- If consecutive sentences are closely linked such that one sentence can't be understood without the other one, \
process them together.

The objective is to extract phrases which refer to things which can be located on a chest X-ray, or confirmed not to \
be present."""
DEFAULT_FEW_SHOTS = Path(__file__).with_name("splitter_few_shots.json")
PARAMETERS: Mapping[str, Any] = {"temperature": 0, "top_p": 1, "max_tokens": 2048}
SAME_ORIG = 0.6
"""Share of the words of an `orig` that the narrative must have in the same order: less is somebody else's sentence."""
SAME_SENTENCE = 0.8
"""Share of the words of a sentence that an `orig` must have in the same order, so that the sentence is not lost."""

_KEY = re.compile(r"^[\s{*\"']*(?:-\s+)?[{*\"']*(orig|new)[\"'*]*\s*:[*\s]*(.*)$", re.IGNORECASE)
_ORIG_LINE = re.compile(r"^\s*(?:-\s+)?orig\s*:", re.IGNORECASE | re.MULTILINE)
_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|\n+")


@dataclass(frozen=True, slots=True)
class SplitExample:
    """One worked narrative."""

    narrative: str
    sentences: tuple[SplitSentence, ...]


def load_split_examples(path: Path | str = DEFAULT_FEW_SHOTS) -> list[SplitExample]:
    """Read examples in the published layout: a list of `findings_text` and `parsed_report.sentence_list`.

    Raises:
        InputError: the file cannot be read, or names the field that is wrong.
    """
    examples = read_json(path)
    if not isinstance(examples, list) or not examples:
        raise InputError("expected a list of at least one example", file=path)
    return [_example(example, path, f"[{index}]") for index, example in enumerate(examples)]


def _example(example: Any, path: Path | str, field: str) -> SplitExample:
    narrative = example.get("findings_text") if isinstance(example, dict) else None
    if not isinstance(narrative, str) or not narrative.strip():
        raise InputError("expected a narrative", file=path, field=f"{field}.findings_text")
    field += ".parsed_report"
    for step in ("parsed_report", "sentence_list"):
        example = example.get(step) if isinstance(example, dict) else None
    if not isinstance(example, list) or not example:
        raise InputError("expected a list of {orig, new}", file=path, field=f"{field}.sentence_list")
    sentences = []
    for index, item in enumerate(example):
        orig, new = (item.get("orig"), item.get("new")) if isinstance(item, dict) else (None, None)
        if not (isinstance(orig, str) and isinstance(new, list) and all(isinstance(text, str) for text in new)):
            raise InputError(
                "expected a text 'orig' and a list of texts 'new'", file=path, field=f"{field}.sentence_list[{index}]"
            )
        sentences.append(SplitSentence(orig, tuple(new)))
    return SplitExample(narrative, tuple(sentences))


def few_shot_messages(examples: Sequence[SplitExample]) -> tuple[Message, ...]:
    """The constant part of every prompt: listing 1, then a narrative and its sentences an example (listing 2)."""
    messages: list[Message] = [("system", SYSTEM_MESSAGE)]
    for example in examples:
        answer = [{"orig": one.orig, "new": list(one.new)} for one in example.sentences]
        messages += [("user", example.narrative), ("assistant", dump_yaml(answer))]
    return tuple(messages)


def parse_split(text: str, narrative: str) -> list[SplitSentence]:
    """Read a model's answer, strict on meaning and lenient on form.

    Args:
        text: YAML or JSON, a list of `orig` and `new` (or such a list under one key), fenced or not.
        narrative: what was to be split.

    Returns:
        The pairs in order; all their `new` together may be no sentence.

    Raises:
        ValueError: there is no such list, an `orig` that the narrative does not have, or a sentence of the narrative
            that no `orig` has: it would be lost in silence.
    """
    items = next(filter(None, map(_items, bodies(text))), [])
    if not items:
        raise ValueError("expected a list of orig (a sentence of the report) and new (a list of sentences)")
    for item in items:
        if not _has(narrative, item.orig, SAME_ORIG):
            raise ValueError(f"the report has no sentence '{item.orig:.80}'; give its own sentences as orig")
    origs = [item.orig for item in items]
    for sentence in _SENTENCE_END.split(narrative):
        # A model may quote a heading with what follows, or not at all.
        heading = sentence.rstrip().endswith(":")
        if heading or _has(" ".join(origs), sentence) or any(_has(one, sentence, SAME_SENTENCE) for one in origs):
            continue
        raise ValueError(
            f"the sentence '{sentence:.80}' is missing; give every sentence of the report as orig, with an empty "
            "new where nothing of it is kept"
        )
    return items


def _has(source: str, text: str, share: float = 1.0) -> bool:
    """Whether the source has the words of a text one after another, or this share of them in the same order."""
    wanted, given = _WORD.findall(text.lower()), _WORD.findall(source.lower())
    if f" {' '.join(wanted)} " in f" {' '.join(given)} ":
        return True
    blocks = SequenceMatcher(None, wanted, given, autojunk=False).get_matching_blocks() if share < 1 else []
    return sum(block.size for block in blocks) >= share * len(wanted)


def _items(body: str) -> list[SplitSentence]:
    data = read_data(body)
    if isinstance(data, dict) and "orig" not in data:
        data = next((value for value in data.values() if isinstance(value, list)), None)
    items = [_item(item) for item in (data if isinstance(data, list) else [data])]
    read = [item for item in items if item is not None]
    # Listing 2 has its keys again and again on one level, of which YAML keeps the last.
    begun = len(_ORIG_LINE.findall(body))
    return read if read and len(read) == max(len(items), begun) else _items_by_line(body)


def _item(data: Any) -> SplitSentence | None:
    if not isinstance(data, dict) or not isinstance(data.get("orig"), str) or "new" not in data:
        return None
    texts = data["new"] if isinstance(data["new"], list) else [data["new"]]
    if not all(isinstance(text, str | None) for text in texts):
        return None
    return SplitSentence(data["orig"], _kept([text for text in texts if text is not None]))


def _items_by_line(body: str) -> list[SplitSentence]:
    """Read `orig:` and `new:` line by line where the whole is no YAML, as with a colon inside a sentence."""
    origs: list[list[str]] = []
    news: list[list[str]] = []
    lines: list[str] = []
    for line in body.splitlines():
        if match := _KEY.match(line):
            lines = [match[2]]
            (origs if match[1].lower() == "orig" else news).append(lines)
        else:
            lines.append(line)
    if len(origs) != len(news):
        return []
    return [
        SplitSentence(unquoted(" ".join(part.strip() for part in orig).strip(" ,")), _kept(read_list(new)))
        for orig, new in zip(origs, news, strict=True)
    ]


def _kept(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(stripped for text in texts if (stripped := text.strip()).lower() not in EMPTY_WORDS)


class LLMSplitter:
    """A chat model as splitter, asked as in the paper (paper 004, appendix B.5.1)."""

    def __init__(
        self,
        name: str,
        client: ChatClient,
        examples: Sequence[SplitExample],
        *,
        examples_from: str = "default examples (not the published ones)",
    ) -> None:
        """Take the splitter's name as it stands in results, the client to ask through, and the worked examples."""
        self.name, self.client = name, client
        self._prefix = PromptPrefix(few_shot_messages(examples))
        self._examples, self._examples_from = len(examples), examples_from

    def split(self, narratives: Sequence[str]) -> list[list[str] | Failure]:
        """The sentences of each narrative, in order; equal ones are asked once, empty ones not at all.

        Raises:
            RunError: the server refuses the key or the model, or cannot be reached.
        """
        return [one if isinstance(one, Failure) else sentences_of_split(one) for one in self.explain(narratives)]

    def explain(self, narratives: Sequence[str]) -> list[list[SplitSentence] | Failure]:
        """As `split`, with the sentence of the narrative that each was made of.

        Raises:
            RunError: as `split`.
        """
        unique = [one for one in dict.fromkeys(narratives) if one.strip()]
        answers = self.client.complete_all([self._ask(narrative) for narrative in unique])
        pairs: dict[str, list[SplitSentence] | Failure] = dict(zip(unique, answers, strict=True))
        return [pairs.get(narrative, []) for narrative in narratives]

    def _ask(self, narrative: str) -> ChatRequest[list[SplitSentence]]:
        def parse(text: str) -> list[SplitSentence]:
            return parse_split(text, narrative)

        return ChatRequest((("user", narrative),), parse, prefix=self._prefix)

    def describe(self) -> dict[str, Any]:
        """Name, model parameters, the hash of the constant prompt, and whose examples it shows."""
        return {
            "name": self.name,
            **self.client.identity,
            "prompt_sha256": self._prefix.sha256,
            "system_from": "paper 004, listing 1",
            "few_shots": self._examples,
            "few_shots_from": self._examples_from,
        }

    def usage(self) -> dict[str, int]:
        """The client's usage_counter."""
        return self.client.usage_counter.as_dict()

    def close(self) -> None:
        """Give back connections and the answers' file."""
        self.client.close()


def load_llm_splitter(
    name: str,
    *,
    base_url: str | None = None,
    splitter_args: Mapping[str, Any] | None = None,
    few_shots: Path | None = None,
    concurrency: int | None = None,
    cache: Path | None = None,
) -> LLMSplitter:
    """Make the paper's splitter; the arguments are those of `radfact.judges.load_splitter`.

    Raises:
        InputError: an unknown provider, a missing package or key, or an option that does not fit.
    """
    parameters = {**PARAMETERS, **parse_model_args(splitter_args, field="splitter_args")}
    examples = load_split_examples(few_shots or DEFAULT_FEW_SHOTS)
    try:
        client = load_chat_client(name, base_url=base_url, parameters=parameters, concurrency=concurrency, cache=cache)
    except InputError as error:
        # Models are mostly judges, and their errors name that option.
        option = error.field and error.field.replace("judge", "splitter", 1)
        raise InputError(error.message, file=error.file, line=error.line, field=option) from None
    if few_shots is None:
        return LLMSplitter(name, client, examples)
    return LLMSplitter(name, client, examples, examples_from=Path(few_shots).name)
