"""METEOR by the library nltk, with WordNet from a local folder."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from radfact.errors import InputError
from radfact.io.pairs import Pair
from radfact.metrics.protocol import Scored
from radfact.records import narrative
from radfact.statistics.bootstrap import Direction


class Meteor:
    """METEOR with stems and synonyms (alpha 0.9, beta 3, gamma 0.5), on words and marks in lower case.

    Words are cut by `nltk.wordpunct_tokenize`, which needs no model of its own. Source: paper 004, D.1.
    """

    name = "meteor"
    figures: Mapping[str, Direction] = {"meteor": "higher"}

    def __init__(self, folder: Path) -> None:
        """Read WordNet.

        Args:
            folder: WordNet in NLTK's layout, with `lexnames`, `data.*`, `index.*` and `*.exc`.

        Raises:
            InputError: the folder holds something else.
            ModuleNotFoundError: nltk is not installed.
        """
        import nltk.data
        from nltk.corpus.reader.wordnet import WordNetCorpusReader

        folder = Path(folder).resolve()
        # NLTK reads only from folders that it was told of.
        if str(folder) not in nltk.data.path:
            nltk.data.path.append(str(folder))
        # Its map between versions of WordNet, for other languages, would want WordNet in NLTK's own folder too.
        english = type("English", (WordNetCorpusReader,), {"map_wn": lambda *_: None})
        with warnings.catch_warnings():
            # It says that other languages than English are not there.
            warnings.simplefilter("ignore", UserWarning)
            try:
                self._wordnet = english(str(folder), None)
            except (OSError, LookupError, ValueError, AssertionError) as error:
                raise InputError(f"not WordNet in NLTK's layout: {error!s:.200}", file=folder) from None

    def score(self, pairs: Sequence[Pair]) -> Scored:
        """One value a pair, from 0 to 1; the figure of the set is their mean."""
        from nltk.tokenize import wordpunct_tokenize
        from nltk.translate.meteor_score import single_meteor_score

        values = []
        for pair in pairs:
            reference, candidate = (wordpunct_tokenize(narrative(one)) for one in (pair.reference, pair.candidate))
            values.append(float(single_meteor_score(reference, candidate, wordnet=self._wordnet)))
        return Scored({"meteor": values})
