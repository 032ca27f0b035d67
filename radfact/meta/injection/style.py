"""Reports in one standard style: by a language model (paper 002, appendix A), or by rules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from radfact.errors import Failure
from radfact.judges.offline.facts import Fact
from radfact.judges.offline.splitter import split_narrative
from radfact.judges.offline.vocabulary import is_plural
from radfact.meta.injection.llm_editor import PromptedModel, ask_report
from radfact.meta.injection.sentences import Sentences, facts_of

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
    r"^(?:there (?:is|are|was|were) )?no (?!longer)"
    r"(?:(?:definite |convincing |obvious |radiographic )?(?:evidence|signs?) (?:of|for) |definite |visualized )?(.+?)"
    r"(?: (?:is |are |was |were )?"
    r"(?:seen|identified|present|noted|visualized|demonstrated|appreciated|evident|detected|apparent))?$",
    re.IGNORECASE,
)
_VERB = re.compile(
    r"(?:\b(?:is|are|was|were|be|been|has|have|had|does|do|appears?|seems?|demonstrates?|remains?|consists?|projects?|"
    r"overl(?:ies?|ays?)|measures?|shows?|reveals?|suggests?|represents?|reflects?|indicates?|obscures?|limits|"
    r"traverses?|may|can|cannot|could|might|would|should|terminates?|extends?|lies|courses?|ends)|'(?:s been|ve|re))\b",
    re.IGNORECASE,
)
_OPENING = re.compile(
    r"(?:there|it|he|she|i|they|patient|with|without|within|given|considering|accounting|allowing|although|while|since|"
    r"as|and|or|but|in|on|at|for|from|by|to|of|after|compared|status|negative|positive|rotated|correlate|recommend|"
    r"questioned)\b|otherwise,",
    re.IGNORECASE,
)
"""What no bare noun phrase begins with."""
_DEFINITE = re.compile(r"(?:the|this|these|those|heart|cardiac size)\b", re.IGNORECASE)
"""What a noun phrase begins with that "There is" cannot stand before."""
_STATE = re.compile(
    r"^(?P<what>[^,;:]+?)\s+(?P<state>"
    r"(?:(?:grossly|mildly|to|moderately|slightly|markedly|severely|borderline|relatively|essentially|otherwise|"
    r"again|near|top) )*"
    r"(?:normal|unremarkable|intact|clear|stable|enlarged|unchanged|midline|tortuous|hyperinflated|hyperexpanded)"
    r"(?:,.*| (?:of|in|for|from|with|on|since|given|compared|but|and|bilaterally|as|at|due|when)\b.*)?)$",
    re.IGNORECASE,
)
_HANGING = re.compile(r"\b(?:of|in|to|at|with|near|than|limits?|and|or|no|not)$", re.IGNORECASE)
"""What the subject of a state does not end with."""
_BEHIND = re.compile(
    r"(?<=\w)(?: ___)* *(?:[,;:(]|\b(?:of|in|at|on|with|without|within|along|throughout|over|under|near|from|for|by|"
    r"due|to(?! (?:moderate|severe|large|marked)\b)|consistent|compatible|secondary|projecting|overlying|involving|"
    r"measuring|causing|representing|suggesting|suggestive|noted|seen|identified|demonstrated|visualized|present|again|also|"
    r"bilaterally|which|that|versus|likely|extending|adjacent|above|below|between|related|"
    r"(?:stable|unchanged|increased|decreased|improved) (?:from|since|compared))\b|$)"
)
"""What follows the head of a noun phrase."""


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
            RunError: as `ChatClient.complete_all`.
        """
        system = ("system", self.instructions)
        answers = self.client.complete_all([ask_report((system, ("user", report)), report) for report in reports])
        return [*answers]


class RuleStyler:
    """One finding a sentence, in the order of a standard report, in its turns of phrase; no impression is made.

    Abbreviations are written out, "No X" becomes "There is no evidence of X" and a bare noun phrase X "There is X",
    denials of one part stand together, and devices, heart, lungs, pleura and bones follow one another. A sentence in
    which the ontology would then read something else is kept as it was.
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
    match = _NO.match(text)
    if match and not _VERB.search(match[1]):
        phrased = f"There is no evidence of {match[1]}."
    elif match or _VERB.search(text) or _OPENING.match(text):
        phrased = f"{text}."
    elif (match := _STATE.match(text)) and not _HANGING.search(match["what"]):
        several = " and " in match["what"] or _is_plural(match["what"])
        phrased = f"{match['what']} {'are' if several else 'is'} {match['state']}."
    elif _DEFINITE.match(text):
        phrased = f"{text}."
    else:
        phrased = f"There {'are' if _is_plural(text) else 'is'} {_lower(text)}."
    return phrased if _content(facts_of(phrased)) == _content(facts_of(sentence)) else sentence


def _lower(text: str) -> str:
    """Inside a sentence; an abbreviation or a name such as Port-A-Cath stays as it is."""
    first = text.partition(" ")[0]
    return text if first[1:] != first[1:].lower() or first[1:2] == "-" else f"{text[:1].lower()}{text[1:]}"


def _is_plural(phrase: str) -> bool:
    """Whether a noun phrase is, by its first word and the last one of its head."""
    head = _BEHIND.split(phrase, maxsplit=1)[0].lower().split()
    return bool(head and is_plural([head[0], head[-1]]))


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
