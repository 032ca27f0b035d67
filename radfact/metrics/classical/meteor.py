"""METEOR with the package nltk and WordNet from a local folder."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, InputError
from radfact.languages import Language
from radfact.metrics.protocol import Metric, MetricResult, Requirements, Score
from radfact.records import TextPair

LEXNAMES = Path(__file__).with_name("lexnames.txt")
"""Names of lexicographer files, which Debian's package wordnet-base lacks. Source: WordNet 3.0, lexnames(5)."""


class Meteor(Metric):
    """METEOR with stems and synonyms (alpha 0.9, beta 3, gamma 0.5) on lower-case tokens of `wordpunct_tokenize`."""

    name = "meteor"
    measures = "words matched by form, stem and synonym"
    scores: Mapping[str, Score] = {"meteor": Score("higher", "METEOR")}
    requirements = Requirements(packages=("nltk",), weights={"wordnet": ("data.noun", "index.noun", "noun.exc")})
    cost = "nothing"
    language = Language.ENGLISH
    source = "MAIRA-2, appendix D.1"

    def __init__(self, folder: Path) -> None:
        import nltk.data
        from nltk.corpus.reader.wordnet import WordNetCorpusReader

        folder = Path(folder).resolve()
        # NLTK refuses to read from other folders.
        if str(folder) not in nltk.data.path:
            nltk.data.path.append(str(folder))

        def open_file(reader: Any, name: str) -> Any:
            is_missing = name == "lexnames" and not (folder / name).exists()
            return LEXNAMES.open() if is_missing else WordNetCorpusReader.open(reader, name)

        # Mapping WordNet versions, which only other languages need, would require WordNet in NLTK's own folder too.
        english = type("English", (WordNetCorpusReader,), {"map_wn": lambda *_: None, "open": open_file})
        with warnings.catch_warnings():
            # NLTK warns that languages other than English are missing.
            warnings.simplefilter("ignore", UserWarning)
            try:
                self._wordnet = english(str(folder), None)
            except (OSError, LookupError, ValueError, AssertionError) as error:
                message = f"expected WordNet in NLTK's layout: {error!s:.200}"
                raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=folder) from None

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        from nltk.translate.meteor_score import single_meteor_score

        (name,) = self.scores
        values = []
        for pair in pairs:
            reference, candidate = self._tokenize(pair.reference), self._tokenize(pair.candidate)
            values.append(float(single_meteor_score(reference, candidate, wordnet=self._wordnet)))
        return MetricResult({name: values})

    def _tokenize(self, text: str) -> list[str]:
        from nltk.tokenize import wordpunct_tokenize

        return list(wordpunct_tokenize(text))


class HuggingFaceMeteor(Meteor):
    """METEOR as in Hugging Face evaluate: the words of each sentence by the rules of `nltk.word_tokenize`."""

    variant = "hf"
    difference = "tokens of nltk.word_tokenize: T-spine is one token; sentences split by untrained Punkt"
    source = "Hugging Face evaluate 0.4"
    scores: Mapping[str, Score] = {"meteor.hf": Score("higher", "METEOR")}

    def _tokenize(self, text: str) -> list[str]:
        from nltk.tokenize import NLTKWordTokenizer
        from nltk.tokenize.punkt import PunktSentenceTokenizer

        words = NLTKWordTokenizer()
        return [word for sentence in PunktSentenceTokenizer().tokenize(text) for word in words.tokenize(sentence)]
