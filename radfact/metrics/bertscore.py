"""BERTScore by the library bert-score, with its model from a local folder."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from radfact.errors import InputError
from radfact.io.pairs import Pair
from radfact.metrics.protocol import Scored
from radfact.records import narrative
from radfact.statistics.bootstrap import Direction

LAYER = 5
"""Of distilroberta-base, as the library has it for this model; its baseline is that of this layer."""

LONGEST = 512


class BertScore:
    """F1 of BERTScore with distilroberta-base, rescaled with the library's baseline, without idf.

    Without idf, because a score must not depend on the other pairs. Source: RadCliQ's part of that name.
    """

    name = "bertscore"
    figures: Mapping[str, Direction] = {"bertscore": "higher"}

    def __init__(self, folder: Path, *, batch_size: int = 64) -> None:
        """Load the model.

        Args:
            folder: distilroberta-base as transformers writes it: `config.json`, the tokenizer, the weights.
            batch_size: texts in one forward pass.

        Raises:
            InputError: the folder holds another model.
            ModuleNotFoundError: bert-score is not installed.
        """
        from bert_score import BERTScorer
        from transformers import AutoTokenizer

        baseline = resources.files("bert_score") / "rescale_baseline" / "en" / "distilroberta-base.tsv"
        try:
            self._scorer = BERTScorer(
                model_type=str(folder),
                num_layers=LAYER,
                lang="en",
                rescale_with_baseline=True,
                baseline_path=str(baseline),
                batch_size=batch_size,
                use_fast_tokenizer=True,
            )
        except (OSError, ValueError, KeyError, AssertionError) as error:
            raise InputError(f"not distilroberta-base: {error!s:.200}", file=folder) from None
        # The library asks for a space before the first word at every call (sent_encode), as published figures have it;
        # tokenizers of transformers 5 pass over that, and take it only when they are loaded.
        tokenizer = AutoTokenizer.from_pretrained(str(folder), add_prefix_space=True)
        # A folder without that setting would have no text cut to what the model can take.
        tokenizer.model_max_length = min(tokenizer.model_max_length, LONGEST)
        self._scorer._tokenizer = tokenizer

    def score(self, pairs: Sequence[Pair]) -> Scored:
        """One value a pair, mostly from 0 to 1 (rescaled values may be below 0); the figure of the set is their mean.

        A pair with an empty report has the value of no similarity at all, the baseline's 0; the library, and with it
        the published RadCliQ, has (0 - baseline) / (1 - baseline) = -5.55 there.
        """
        texts = [tuple(_one_line(narrative(one)) for one in (pair.candidate, pair.reference)) for pair in pairs]
        values = [0.0] * len(pairs)
        places = [place for place, both in enumerate(texts) if all(both)]
        if places:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _, _, f1 = self._scorer.score([texts[one][0] for one in places], [texts[one][1] for one in places])
            for place, value in zip(places, f1.tolist(), strict=True):
                values[place] = float(value)
        return Scored({"bertscore": values})


def _one_line(text: str) -> str:
    return re.sub(" +", " ", text).strip()
