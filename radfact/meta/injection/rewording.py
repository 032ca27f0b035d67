"""Reports in other words with the same meaning, by rules; the ontology of the offline judge checks all facts."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from radfact.io.yaml_files import read_yaml
from radfact.meta.datasets.reports import SiteReport
from radfact.meta.injection.records import InjectedReport, ReportSentences, parse_facts
from radfact.meta.injection.rules import fix_articles

_TABLES: Mapping[str, Any] = read_yaml(Path(__file__).with_suffix(".yaml"))
DETAIL, _REFERS = (re.compile(_TABLES[name], re.IGNORECASE) for name in ("detail", "refers"))
_RULES = {
    kind: [(re.compile(rule["pattern"], re.IGNORECASE), rule["forms"]) for rule in rules]
    for kind, rules in _TABLES["rules"].items()
}
_ABBREVIATIONS: Mapping[str, str] = _TABLES["abbreviations"]
_WORDS: Mapping[str, Mapping[str, str]] = {
    "synonyms": _TABLES["synonyms"],
    "abbreviations": {**_ABBREVIATIONS, **{short: full for full, short in _ABBREVIATIONS.items()}},
}
_LIST = re.compile(r",| or | and |/")
_HEAD_END = re.compile(r" (?:of|in|on|at|within|with|without|from|to|for|along|over|about|involving|overlying)\b")


def reword(source: SiteReport, *, seed: int = 42) -> list[InjectedReport]:
    """Return a candidate of each kind that changes a report: all sentences that its rules match, or their order."""
    document = ReportSentences.of(source.report)
    candidates = []
    for kind, change in KINDS.items():
        text = change(document, random.Random(f"{seed}/{source.sample_id}/{kind}/{document.text}"))
        if text is not None:
            key = f"{source.sample_id}_{kind}"
            candidates.append(InjectedReport.of(source, text, sample_id=key, rewording=kind))
    return candidates


def rephrase(sentence: str, kinds: Sequence[str] = tuple(_RULES)) -> list[str]:
    """Return forms of a sentence, without its final mark, that the ontology reads as the same."""
    forms = (form for kind in kinds for form in _forms(sentence, kind))
    return _same(sentence, map(as_sentence, forms))


def as_sentence(text: str) -> str:
    """Normalize spaces, articles and the first letter."""
    text = fix_articles(" ".join(text.split()))
    return text[:1].upper() + text[1:]


def _same(sentence: str, texts: Iterable[str]) -> list[str]:
    meant = Counter(parse_facts(sentence))
    others = (text for text in texts if meant and text.lower() != sentence.lower())
    return [text for text in others if Counter(parse_facts(text)) == meant]


def _forms(sentence: str, kind: str) -> Iterator[str]:
    for pattern, forms in _RULES[kind]:
        if match := pattern.match(sentence):
            # An abbreviation such as ETT keeps its letters.
            parts = {
                name: part if part[1:2].isupper() else part[:1].lower() + part[1:]
                for name, part in match.groupdict().items()
            }
            items = _LIST.split(parts["what"])
            parts["be"], parts["first_be"] = ("are" if _is_plural(item) else "is" for item in (items[-1], items[0]))
            if " and " in parts["what"]:
                parts["be"] = parts["first_be"] = "are"
            where = parts.get("where", "")
            parts["show"] = "show" if " and " in where or _is_plural(where) else "shows"
            for form in forms:
                if "{one}" not in form or len(items) == 1:
                    yield form.format(**parts, one=parts["what"])


def _is_plural(item: str) -> bool:
    noun = _HEAD_END.split(item.strip())[0]
    return noun.endswith("s") and not noun.endswith(("ss", "us", "is"))


def _replace_words(sentence: str, words: Mapping[str, str]) -> list[str]:
    """Return a sentence with all words of a table replaced."""

    def other(match: re.Match[str]) -> str:
        text = words.get(match[0]) or words[match[0].lower()]
        return text[:1].upper() + text[1:] if match[0][:1].isupper() and match.start() == 0 else text

    keys = "|".join(sorted(map(re.escape, words), key=len, reverse=True))
    # Abbreviations are in capitals, so that their case counts.
    flags = re.NOFLAG if any(key.isupper() for key in words) else re.IGNORECASE
    return _same(sentence, [as_sentence(re.sub(rf"(?<![\w-])(?:{keys})(?![\w-])", other, sentence, flags=flags))])


def _reword_sentences(
    document: ReportSentences, rng: random.Random, *, forms: Callable[[str], list[str]]
) -> str | None:
    texts = {index: forms(sentence) for index, sentence in enumerate(document.sentences)}
    changes = {index: [f"{rng.choice(own)}."] for index, own in texts.items() if own}
    return document.replaced(changes) if changes else None


def _reorder(document: ReportSentences, rng: random.Random) -> str | None:
    """Return the sentences in another order; None if one refers to another, or if the text is more than sentences."""
    sentences = [document.text[start:end] for start, end in document.spans]
    refers = any(map(_REFERS.search, document.sentences)) or any(":" in sentence for sentence in sentences)
    if len(set(sentences)) < 2 or refers or " ".join(sentences) != document.text or not document.text.endswith("."):
        return None
    drawn = sentences
    while drawn == sentences:
        drawn = rng.sample(sentences, len(sentences))
    return " ".join(drawn)


KINDS: Mapping[str, Callable[[ReportSentences, random.Random], str | None]] = {
    **{kind: partial(_reword_sentences, forms=partial(rephrase, kinds=(kind,))) for kind in _RULES},
    **{kind: partial(_reword_sentences, forms=partial(_replace_words, words=words)) for kind, words in _WORDS.items()},
    "order": _reorder,
}
