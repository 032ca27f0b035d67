"""BERTScore with the package bert-score and a model from a local folder."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from radfact.errors import ErrorCode, InputError
from radfact.languages import Language
from radfact.metrics.protocol import Metric, MetricResult, Requirements, Score
from radfact.records import TextPair

LAYER = 5
"""Layer of distilroberta-base that bert-score recommends; its baseline is that of this layer."""

MAX_TOKENS = 512

WEIGHTS = {"bertscore": ("config.json", "tokenizer.json|vocab.json", "model.safetensors|pytorch_model.bin")}


class BertScore(Metric):
    """F1 of BERTScore with distilroberta-base, rescaled with the baseline of bert-score, without idf, as in RadCliQ."""

    name = "bertscore"
    measures = "similarity of words in the embeddings of a language model"
    scores: Mapping[str, Score] = {"bertscore": Score("higher", "F1, rescaled with the baseline")}
    requirements = Requirements(packages=("bert_score", "torch", "transformers"), weights=WEIGHTS)
    cost = "two passes of DistilRoBERTa"
    language = Language.ENGLISH
    source = "component of RadCliQ"

    def __init__(self, folder: Path, *, batch_size: int = 64) -> None:
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
            message = f"expected distilroberta-base: {error!s:.200}"
            raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=folder) from None
        # Published scores have a space before the first word. bert-score requests it at every call, which tokenizers of
        # transformers 5 ignore: they accept the option only when they are loaded.
        tokenizer = AutoTokenizer.from_pretrained(str(folder), add_prefix_space=True)
        # A folder without this setting would not truncate texts.
        tokenizer.model_max_length = min(tokenizer.model_max_length, MAX_TOKENS)
        self._scorer._tokenizer = tokenizer

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        """Score pairs; one with an empty report has the baseline's 0, where bert-score returns -5.55."""
        texts = [[re.sub(" +", " ", text).strip() for text in (pair.candidate, pair.reference)] for pair in pairs]
        values = [0.0] * len(pairs)
        filled = [index for index, both in enumerate(texts) if all(both)]
        if filled:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _, _, f1 = self._scorer.score(*([texts[index][side] for index in filled] for side in (0, 1)))
            for index, value in zip(filled, f1.tolist(), strict=True):
                values[index] = float(value)
        return MetricResult({"bertscore": values})
