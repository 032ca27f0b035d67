"""The paper's judge: a chat model shown ten worked reports, asked for evidence first and status second."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, get_args

from radfact.entailment.judge import Question, Status, Verdict
from radfact.errors import Failure, InputError
from radfact.jsonl import read_text
from radfact.llm import AnswerCache, Ask, ChatClient, Message, load_chat_model, split_model_args

# Paper 004, listing 3, word for word.
SYSTEM_MESSAGE = (
    "You are an AI radiology assistant. Your task is to assess whether a statement about a chest X-ray "
    '(the "hypothesis") is true or not, given a reference report about the chest X-ray. '
    "This task is known as entailment verification. "
    'If the statement is true ("entailed") according to the reference, provide the evidence to support it.'
)
DEFAULT_FEW_SHOTS = Path(__file__).with_name("few_shots.json")
PARAMETERS: dict[str, Any] = {"temperature": 0, "top_p": 1, "max_tokens": 1024}
EVIDENCE_COVER = 0.6
"""Share of a quoted evidence text that the longest common substring with a premise must cover."""

_DIRECTIONS = (("A", "B"), ("B", "A"))
_STATUSES = ("entailment", "neutral", "contradiction", "not_entailment")
_ENTAILED = frozenset({"entailment", "entailed", "yes", "true"})
_NOT_ENTAILED = frozenset({"not entailment", "not entailed", "neutral", "contradiction", "no", "false"})
_EMPTY = frozenset({"", "null", "none", "~", "[]", "n/a"})
_FENCE = re.compile(r"```[a-zA-Z]*\s*\n(.*?)```", re.DOTALL)
_KEY = re.compile(r"^\s*[\"']?(phrase|evidence|status)[\"']?\s*:\s?(.*)$", re.IGNORECASE)
_DASHES = re.compile(r"[\u2010-\u2015\u2212]")


@dataclass(frozen=True, slots=True)
class FewShot:
    """One worked question: the report, the hypothesis, the sentences that decide it, and the verdict."""

    reference: tuple[str, ...]
    phrase: str
    evidence: tuple[str, ...]
    status: Status


def load_few_shots(path: Path | str = DEFAULT_FEW_SHOTS) -> list[FewShot]:
    """Read examples in the published bidirectional layout: one shot a sentence of A given B, then of B given A.

    Raises:
        InputError: the file cannot be read, or names the field that is wrong.
    """
    try:
        examples = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg}", file=path, line=error.lineno) from None
    if not isinstance(examples, list) or not examples:
        raise InputError("expected a list of at least one example", file=path)
    return [shot for index, example in enumerate(examples) for shot in _shots(example, path, index)]


def _shots(example: Any, path: Path | str, index: int) -> list[FewShot]:
    shots = []
    for own, other in _DIRECTIONS:
        field = f"[{index}].input.phrases_{other}"
        try:
            reference = tuple(map(str, example["input"][f"phrases_{other}"]))
            field = f"[{index}].output.phrases_{own}_evidenced"
            for item in example["output"][f"phrases_{own}_evidenced"]:
                if item["status"] not in _STATUSES:
                    raise InputError(
                        f"expected one of {', '.join(_STATUSES)}, found '{item['status']}'", file=path, field=field
                    )
                status: Status = "entailment" if item["status"] == "entailment" else "not_entailment"
                shots.append(FewShot(reference, str(item["phrase"]), tuple(map(str, item["evidence"])), status))
        except (KeyError, TypeError):
            raise InputError(
                "missing or of another kind than in the published layout", file=path, field=field
            ) from None
    return shots


def _yaml(value: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True, width=10_000)


def prompt_prefix(few_shots: Sequence[FewShot]) -> tuple[Message, ...]:
    """The constant part of every prompt: the system message, then a user and an assistant message a shot."""
    messages: list[Message] = [("system", SYSTEM_MESSAGE)]
    for shot in few_shots:
        answer = {"phrase": shot.phrase, "evidence": list(shot.evidence), "status": shot.status}
        messages += [("user", query(shot.reference, shot.phrase)), ("assistant", _yaml(answer))]
    return tuple(messages)


def query(reference: Sequence[str], hypothesis: str) -> str:
    """A question as the user message of the protocol (paper 004, listing 5)."""
    return _yaml({"reference": list(reference), "hypothesis": hypothesis})


def parse_answer(text: str, premises: Sequence[str]) -> tuple[Verdict, int]:
    """Read a model's answer, strict on meaning and lenient on form.

    Args:
        text: YAML or JSON with `evidence` and `status`, fenced or not.
        premises: the sentences that evidence may quote.

    Returns:
        The verdict, and how many evidence texts matched no premise and were dropped.

    Raises:
        ValueError: no status, an unknown one, or an entailment without evidence among the premises.
    """
    fields = _fields(text)
    word = " ".join(re.split(r"[\s_-]+", str(fields.get("status", "")).strip(" .*\"'").lower()))
    if word not in _ENTAILED | _NOT_ENTAILED:
        found = f"found '{word}'" if word else "found none"
        raise ValueError(f"status must be {' or '.join(get_args(Status))}, {found}")
    matches = [_match(quoted, premises) for quoted in _listed(fields.get("evidence"))]
    evidence = tuple(sorted({match for match in matches if match is not None}))
    dropped = matches.count(None)
    if word in _NOT_ENTAILED:
        return Verdict("not_entailment", evidence), dropped
    if not evidence:
        raise ValueError("entailment needs evidence: quote at least one sentence of the reference word for word")
    return Verdict("entailment", evidence), dropped


def _fields(text: str) -> dict[str, Any]:
    import yaml

    fenced = _FENCE.search(text)
    body = (fenced[1] if fenced else text.replace("```", "")).strip()
    try:
        # The base loader keeps every scalar as it is written, so No and True stay words.
        value = yaml.load(body, Loader=yaml.BaseLoader)
    except yaml.YAMLError:
        value = None
    if isinstance(value, str) and " ".join(value.split()).strip(".").lower() in _ENTAILED | _NOT_ENTAILED | {
        "not_entailment"
    }:
        return {"status": value}
    if isinstance(value, dict):
        fields = {str(key).strip().lower(): item for key, item in value.items()}
        evidence = fields.get("evidence", [])
        if "status" in fields and (
            isinstance(evidence, str)
            or (isinstance(evidence, list) and all(isinstance(item, str) for item in evidence))
        ):
            return fields
    return _fields_by_line(body)


def _fields_by_line(body: str) -> dict[str, Any]:
    """Read `key: value` lines and list items when the whole is no YAML, as with a colon inside a sentence."""
    fields: dict[str, Any] = {}
    current = ""
    for line in body.splitlines():
        if match := _KEY.match(line):
            current = match[1].lower()
            value = match[2].strip().strip(",")
            fields[current] = [_unquoted(value)] if current == "evidence" and value.lower() not in _EMPTY else value
            if current == "evidence" and value.lower() in _EMPTY:
                fields[current] = []
        elif current == "evidence" and line.strip(" ,[]"):
            item = line.strip().strip(",")
            if item.startswith("- "):
                fields[current].append(_unquoted(item[2:]))
            elif fields[current]:
                fields[current][-1] += f" {item}"
    return fields


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _listed(evidence: Any) -> list[str]:
    texts = evidence if isinstance(evidence, list) else [evidence or ""]
    return [text for item in texts if (text := str(item).strip()).lower() not in _EMPTY]


def _normalised(text: str) -> str:
    text = " ".join(_DASHES.sub("-", text).lower().split())
    return text[:-1].rstrip() if text[-1:] in tuple(".,;:!?") else text


def _match(quoted: str, premises: Sequence[str]) -> int | None:
    """The first premise that a quotation means: verbatim, then normalised, then by the longest common substring."""
    if quoted in premises:
        return list(premises).index(quoted)
    wanted, known = _normalised(quoted), [_normalised(premise) for premise in premises]
    if wanted in known:
        return known.index(wanted)
    best, best_size = None, 0
    for index, premise in enumerate(known):
        size = SequenceMatcher(None, wanted, premise, autojunk=False).find_longest_match().size
        if size > best_size:
            best, best_size = index, size
    return best if wanted and best_size >= EVIDENCE_COVER * len(wanted) else None


class LLMJudge:
    """A chat model as judge, asked exactly as in the paper (paper 004, appendix C.2)."""

    def __init__(
        self, name: str, client: ChatClient, few_shots: Sequence[FewShot], *, few_shots_from: str = "default"
    ) -> None:
        """Take the judge's name as it stands in results, the client to ask through, and the worked examples."""
        self.name, self.client = name, client
        self._prefix = prompt_prefix(few_shots)
        self._few_shots, self._few_shots_from = len(few_shots), few_shots_from
        self._counts: Counter[str] = Counter()

    def judge(self, questions: Sequence[Question]) -> list[Verdict | Failure]:
        """One answer a question, in order; equal questions are asked once.

        Raises:
            RunFailed: the server refuses the key or the model, or cannot be reached.
        """
        unique = list(dict.fromkeys(questions))
        answered = [q for q in unique if q.premises]
        verdicts: dict[Question, Verdict | Failure] = {
            q: Verdict("not_entailment", (), "the other report is empty") for q in unique if not q.premises
        }
        asks: list[Ask[Verdict]] = [self._ask(question) for question in answered]
        answers = self.client.ask_all(asks)
        verdicts.update(zip(answered, answers, strict=True))
        return [verdicts[question] for question in questions]

    def _ask(self, question: Question) -> Ask[Verdict]:
        def parse(text: str) -> Verdict:
            verdict, dropped = parse_answer(text, question.premises)
            self._counts["evidence_dropped"] += dropped
            return verdict

        return Ask((*self._prefix, ("user", query(question.premises, question.hypothesis))), parse)

    def describe(self) -> dict[str, Any]:
        """Name, model parameters, the hash of the constant prompt, and whose examples it shows."""
        prompt = json.dumps(self._prefix, ensure_ascii=False)
        return {
            "name": self.name,
            **self.client.identity,
            "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(),
            "few_shots": self._few_shots,
            "few_shots_from": self._few_shots_from,
        }

    def account(self) -> dict[str, int]:
        """The client's ledger, and the quotations that matched no premise."""
        return {**self.client.ledger.as_dict(), "evidence_dropped": self._counts["evidence_dropped"]}


def load_llm_judge(
    name: str,
    *,
    base_url: str | None = None,
    model_args: Mapping[str, str] | None = None,
    cache: Path | None = None,
) -> LLMJudge:
    """Make the paper's judge from "PROVIDER:MODEL"; the arguments are those of `radfact.entailment.load_judge`.

    Raises:
        InputError: an unknown provider, a missing package or key, or an option that does not fit.
    """
    arguments = PARAMETERS | split_model_args(model_args)
    few_shots_path = arguments.pop("few_shots", None)
    concurrency = arguments.pop("concurrency", 16)
    if not isinstance(concurrency, int) or concurrency < 1:
        raise InputError(
            f"expected a whole number of at least 1, found '{concurrency}'", field="model_args.concurrency"
        )
    shots = load_few_shots(few_shots_path or DEFAULT_FEW_SHOTS)
    source = "default examples (not the published ones)" if few_shots_path is None else Path(few_shots_path).name
    model = load_chat_model(name, base_url=base_url, **arguments)
    identity = {"model": name, "base_url": base_url, "parameters": arguments}
    client = ChatClient(model, identity, concurrency=concurrency, cache=None if cache is None else AnswerCache(cache))
    return LLMJudge(name, client, shots, few_shots_from=source)
