"""Reports in one standard style: by a language model (paper 002, appendix A), or by rules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from radfact.entailment.facts import Fact
from radfact.errors import Failure
from radfact.meta.asking import PromptedModel, ask_report
from radfact.meta.sentences import Sentences, facts_of
from radfact.sentences.offline import split_narrative

_ABBREVIATIONS = {
    r"\b[Rr]t\.?(?=\s)": "right",
    r"\b[Ll]t\.?(?=\s)": "left",
    r"\b[Bb]il\.?(?=\s)": "bilateral",
    r"\bRUL\b": "right upper lobe",
    r"\bRLL\b": "right lower lobe",
    r"\bLUL\b": "left upper lobe",
    r"\bLLL\b": "left lower lobe",
    r"\bRML\b": "right middle lobe",
    r"\bPTX\b": "pneumothorax",
    r"\bETT\b": "endotracheal tube",
    r"\bNGT\b": "nasogastric tube",
    r"\bw/o\b": "without",
    r"\bw/(?=\s)": "with",
    r"\bc/w\b": "consistent with",
    r"\b[Ww]ithin normal limits\b": "normal",
    r"\bWNL\b": "normal",
}
_PARTS = (
    ("devices", r"tube|catheter|line\b|wire|pacemaker|port|picc|stent|clip|valve|lead|drain|device|suture"),
    ("heart", r"heart|cardi|mediastin|aort|hil[aiu]|vascular|vessel|trachea"),
    (
        "lungs",
        r"lung|pulmon|opaci|consolid|atelect|nodul|granulom|infiltrat|edema|airspace|air space|scar|emphys|pneumonia",
    ),
    ("pleura", r"pleura|effusion|pneumothora|costophrenic|diaphragm"),
    ("bones", r"bon[ey]|osseous|spin[ea]|rib|fractur|degenerat|vertebr|clavic|skelet|thoracic"),
)
_NO = re.compile(
    r"^(?:there (?:is|are) )?no (?:evidence of |signs? of |definite |visualized )?(.+?)"
    r"(?: (?:is |are )?(?:seen|identified|present|noted|visualized|demonstrated))?$",
    re.IGNORECASE,
)
_VERB = re.compile(
    r"\b(?:is|are|was|were|has|have|appears?|demonstrates?|remains?|consists?|projects?|overl\w+|measures?|shows?|"
    r"suggests?|may|can|terminates?|extends?|lies|courses?)\b"
)
_STATE = re.compile(
    r"^(?P<what>.*\b(?:size|structures?|silhouettes?|contours?|vascularity|lungs?|heart|mediastinum|abdomen|spine))\s+"
    r"(?P<state>(?:grossly )?(?:normal|unremarkable|intact|clear|stable|enlarged|unchanged)\b.*)$",
    re.IGNORECASE,
)
_PLURAL = re.compile(r"(?:[^su]s|ae|multiple .*|bilateral .*)$", re.IGNORECASE)


class Styler(Protocol):
    """Rewrites reports in a standard style without a change of content."""

    @property
    def name(self) -> str:
        """As it stands in results."""
        ...

    def describe(self) -> dict[str, Any]:
        """Everything that changes what it writes, JSON values."""
        ...

    def standardise(self, reports: Sequence[str]) -> list[str | Failure]:
        """Each report in the standard style, or why not."""
        ...


class ModelStyler(PromptedModel):
    """The paper's prompt, the report after it; findings and impression as one text."""

    prompt = "standardise"

    def standardise(self, reports: Sequence[str]) -> list[str | Failure]:
        """Each report as the model rewrites it.

        Raises:
            RunFailed: as `ChatClient.ask_all`.
        """
        system = ("system", self.instructions)
        answers = self.client.ask_all([ask_report((system, ("user", report)), report) for report in reports])
        return [*answers]


class RuleStyler:
    """One finding a sentence, in the order of a standard report, in its turns of phrase; no impression is made.

    Abbreviations are written out, "No X" becomes "There is no evidence of X", denials of one part stand together, and
    devices, heart, lungs, pleura and bones follow one another. A sentence in which the ontology would then read
    something else is kept as it was.
    """

    name = "rules"

    def describe(self) -> dict[str, Any]:
        """Its name: rules change with the version of this package alone."""
        return {"rules": self.name}

    def standardise(self, reports: Sequence[str]) -> list[str | Failure]:
        """Each report by rules."""
        return [_standard(report) for report in reports]


def _standard(report: str) -> str:
    parts: dict[str, list[str]] = {name: [] for name, _ in (*_PARTS, ("other", ""))}
    for sentence in Sentences.of(report).sentences:
        for single in _singles(sentence):
            parts[_part(single)].append(single)
    ordered = [one for sentences in parts.values() for one in _joined(sentences)]
    return " ".join(dict.fromkeys(ordered)) or " ".join(report.split())


def _singles(sentence: str) -> list[str]:
    """The single findings of a sentence; the sentence itself where dividing loses one."""
    whole = f"{_written_out(sentence)}."
    if _content(facts_of(whole)) != _content(facts_of(sentence)):
        whole = f"{sentence}."
    divided = split_narrative(whole)
    facts = [fact for one in divided for fact in facts_of(one)]
    singles = divided if divided and _content(facts) == _content(facts_of(whole)) else [whole]
    return [_phrased(one) for one in singles]


def _written_out(text: str) -> str:
    for pattern, words in _ABBREVIATIONS.items():
        text = re.sub(pattern, words, text)
    return text[:1].upper() + text[1:]


def _phrased(sentence: str) -> str:
    text = sentence.rstrip(". ")
    if not facts_of(sentence):
        return sentence
    if match := _NO.match(text):
        phrased = f"There is no evidence of {match[1]}."
    elif _VERB.search(text):
        phrased = f"{text}."
    elif match := _STATE.match(text):
        phrased = f"{match['what']} {_verb(match['what'])} {match['state']}."
    else:
        phrased = f"There {_verb(text.split(' in ')[0].split(' of ')[0])} {_lower(text)}."
    return phrased if _content(facts_of(phrased)) == _content(facts_of(sentence)) else sentence


def _lower(text: str) -> str:
    """Inside a sentence; an abbreviation stays as it is."""
    return text if text[1:2].isupper() else f"{text[:1].lower()}{text[1:]}"


def _verb(noun: str) -> str:
    return "are" if _PLURAL.search(noun) else "is"


def _joined(sentences: Sequence[str]) -> list[str]:
    """Denials of one part as one sentence, behind what is stated."""
    lead = "There is no evidence of "
    denied = [one.removeprefix(lead).rstrip(".") for one in sentences if one.startswith(lead)]
    stated = [one for one in sentences if not one.startswith(lead)]
    if not denied:
        return stated
    listed = denied[0] if len(denied) == 1 else f"{', '.join(denied[:-1])} or {denied[-1]}"
    joined = f"{lead}{listed}."
    apart = [f"{lead}{one}." for one in denied]
    same = _content(facts_of(joined)) == _content([fact for one in apart for fact in facts_of(one)])
    return [*stated, joined] if same else [*stated, *apart]


def _part(sentence: str) -> str:
    return next((name for name, like in _PARTS if re.search(like, sentence, re.IGNORECASE)), "other")


def _content(facts: Sequence[Fact]) -> list[str]:
    return sorted(repr((f.concept, f.present, f.places, sorted(f.severity), sorted(f.change))) for f in set(facts))
