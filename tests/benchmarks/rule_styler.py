"""Rewriting of reports in a standard style by rules, which stands for a model in measurements without one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from radfact.errors import Failure
from radfact.judges.offline_splitter import split_narrative
from radfact.meta.datasets.reports import SiteReport
from radfact.meta.injection.records import InjectedReport, ReportSentences, parse_facts
from radfact.meta.options import RULES
from radfact.reader.facts import Fact
from radfact.reader.vocabulary import is_plural

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
"""Beginnings of sentences that are not bare noun phrases."""
_DEFINITE = re.compile(r"(?:the|this|these|those|heart|cardiac size)\b", re.IGNORECASE)
"""Beginnings of noun phrases that cannot follow "There is"."""
_STATE = re.compile(
    r"^(?P<what>[^,;:]+?)\s+(?P<state>"
    r"(?:(?:grossly|mildly|to|moderately|slightly|markedly|severely|borderline|relatively|essentially|otherwise|"
    r"again|near|top) )*"
    r"(?:normal|unremarkable|intact|clear|stable|enlarged|unchanged|midline|tortuous|hyperinflated|hyperexpanded)"
    r"(?:,.*| (?:of|in|for|from|with|on|since|given|compared|but|and|bilaterally|as|at|due|when)\b.*)?)$",
    re.IGNORECASE,
)
_INCOMPLETE = re.compile(r"\b(?:of|in|to|at|with|near|than|limits?|and|or|no|not)$", re.IGNORECASE)
"""Last words of an incomplete subject of a state."""
_AFTER_HEAD = re.compile(
    r"(?<=\w)(?: ___)* *(?:[,;:(]|\b(?:of|in|at|on|with|without|within|along|throughout|over|under|near|from|for|by|"
    r"due|to(?! (?:moderate|severe|large|marked)\b)|consistent|compatible|secondary|projecting|overlying|involving|"
    r"measuring|causing|representing|suggesting|suggestive|noted|seen|identified|demonstrated|visualized|present|again|also|"
    r"bilaterally|which|that|versus|likely|extending|adjacent|above|below|between|related|"
    r"(?:stable|unchanged|increased|decreased|improved) (?:from|since|compared))\b|$)"
)
"""What follows the head of a noun phrase."""


class RuleStyler:
    """Writes one finding per sentence in the order and the phrases of a standard report, without an impression.

    Abbreviations are expanded, "No X" becomes "There is no evidence of X" and a bare noun phrase X "There is X".
    Denials of one part of the body are joined; devices, heart, lungs, pleura and bones follow each other. A sentence
    stays unchanged if the ontology would read other facts in the rewritten one.
    """

    name = RULES

    def describe(self) -> dict[str, Any]:
        """Return the name; the rules depend on the version of this package only."""
        return {"rules": self.name}

    def edit(self, reports: Sequence[SiteReport]) -> list[InjectedReport | Failure]:
        """Return each report in the standard style."""
        return [
            InjectedReport(
                sample_id=row.sample_id,
                source_id=row.sample_id,
                reference=row.report,
                candidate=standardize(row.report),
            )
            for row in reports
        ]


def standardize(report: str) -> str:
    """Return a report in the standard style."""
    parts: dict[str, list[str]] = {name: [] for name, _ in (*_PARTS, ("other", ""))}
    for sentence in ReportSentences.of(report).sentences:
        for single in _split(sentence):
            part = next((name for name, pattern in _PARTS if re.search(pattern, single, re.IGNORECASE)), "other")
            parts[part].append(single)
    ordered = [sentence for sentences in parts.values() for sentence in _join_denials(sentences)]
    return " ".join(dict.fromkeys(ordered)) or " ".join(report.split())


def _split(sentence: str) -> list[str]:
    """Return the single findings of a sentence, or the whole sentence if the split would lose a fact."""
    expanded = sentence
    for pattern, words in _ABBREVIATIONS.items():
        expanded = re.sub(pattern, words, expanded)
    whole = f"{expanded[:1].upper()}{expanded[1:]}."
    if _content(parse_facts(whole)) != _content(parse_facts(sentence)):
        whole = f"{sentence}."
    singles = split_narrative(whole)
    facts = [fact for single in singles for fact in parse_facts(single)]
    if not singles or _content(facts) != _content(parse_facts(whole)):
        singles = [whole]
    return [_rephrase(single) for single in singles]


def _rephrase(sentence: str) -> str:
    text = sentence.rstrip(". ")
    if not parse_facts(sentence):
        return sentence
    match = _NO.match(text)
    if match and not _VERB.search(match[1]):
        rephrased = f"There is no evidence of {match[1]}."
    elif match or _VERB.search(text) or _OPENING.match(text):
        rephrased = f"{text}."
    elif (match := _STATE.match(text)) and not _INCOMPLETE.search(match["what"]):
        is_several = " and " in match["what"] or _is_plural(match["what"])
        rephrased = f"{match['what']} {'are' if is_several else 'is'} {match['state']}."
    elif _DEFINITE.match(text):
        rephrased = f"{text}."
    else:
        rephrased = f"There {'are' if _is_plural(text) else 'is'} {_lower_first(text)}."
    return rephrased if _content(parse_facts(rephrased)) == _content(parse_facts(sentence)) else sentence


def _lower_first(text: str) -> str:
    """Lower the first letter, except in abbreviations and names such as Port-A-Cath."""
    first = text.partition(" ")[0]
    return text if first[1:] != first[1:].lower() or first[1:2] == "-" else f"{text[:1].lower()}{text[1:]}"


def _is_plural(phrase: str) -> bool:
    """Return whether a noun phrase is plural, by its first word and the last word of its head."""
    head = _AFTER_HEAD.split(phrase, maxsplit=1)[0].lower().split()
    return bool(head and is_plural([head[0], head[-1]]))


def _join_denials(sentences: Sequence[str]) -> list[str]:
    """Join the denials of one part into one sentence after the other sentences."""
    lead = "There is no evidence of "
    denied = [sentence.removeprefix(lead).rstrip(".") for sentence in sentences if sentence.startswith(lead)]
    others = [sentence for sentence in sentences if not sentence.startswith(lead)]
    if not denied:
        return others
    listed = denied[0] if len(denied) == 1 else f"{', '.join(denied[:-1])} or {denied[-1]}"
    joined = f"{lead}{listed}."
    separate = [f"{lead}{finding}." for finding in denied]
    facts = [fact for sentence in separate for fact in parse_facts(sentence)]
    return [*others, joined] if _content(parse_facts(joined)) == _content(facts) else [*others, *separate]


def _content(facts: Sequence[Fact]) -> list[str]:
    return sorted(repr((f.concept, f.present, f.places, sorted(f.severity), sorted(f.change))) for f in set(facts))
