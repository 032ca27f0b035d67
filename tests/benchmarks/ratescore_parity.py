"""Compare RaTEScore with the package RaTEScore: sentences of IU-Xray, entities of labels, scores of entities.

    python tests/benchmarks/ratescore_parity.py FOLDER

FOLDER holds `NLMCXR_reports.tgz` and `indiana_projections.csv`. Needs the packages RaTEScore and medspacy. No weights
are needed: labels, types and embeddings are random.
"""

from __future__ import annotations

import argparse
import random
import re
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from RaTEScore.scorer import DEFAULT_MATRIX_LONG
from RaTEScore.utils import compute, post_process, sentence_split

from maira.data.sources.iu_xray import read_iu_xray
from radfact.metrics.classical.ratescore import TYPES, Entities, decode_spans, harmonic_mean, match_entities
from radfact.reader.segmentation import segment_sentences

WIDTH = 32
_NUMBER = re.compile(r"^\W*\d{1,2}[.)]\s+")


class WordTokenizer:
    """Joins tokens by spaces."""

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Join tokens."""
        return " ".join(tokens)


def count_equal_sentences(texts: list[str]) -> int:
    """Count texts that both split into the same sentences, apart from list numbers and final punctuation."""
    return sum(
        [_plain(sentence) for sentence in segment_sentences(text) if len(sentence) > 1]
        == [_plain(item) for item in sentence_split([text])[0]]
        for text in texts
    )


def _plain(sentence: str) -> str:
    return " ".join(_NUMBER.sub("", sentence).strip(" .;,").split())


def count_equal_entities(number: int, seed: int) -> int:
    """Count random label sequences with equal entities; the last token, such as a full stop, belongs to none.

    Args:
        number: number of sequences.
        seed: seed of the sequences.
    """
    rng = random.Random(seed)
    labels = ["O"] * len(TYPES) + [f"{prefix}-{kind}" for prefix in "BI" for kind in TYPES]
    equal = 0
    for _ in range(number):
        sequence = [*rng.choices(labels, k=rng.randint(1, 9)), "O"]
        tokens = [f"t{index}" for index in range(len(sequence))]
        ours = [(" ".join(tokens[start:stop]), kind) for start, stop, kind in decode_spans(sequence)]
        padded = ["O", *sequence, rng.choice(labels)]
        equal += post_process(["[CLS]", *tokens, "[SEP]"], padded, WordTokenizer()) == ours
    return equal


def largest_difference(number: int, seed: int) -> float:
    """Return the largest difference of the scores of random pairs of entities.

    Args:
        number: number of pairs.
        seed: seed of the entities.
    """
    rng = np.random.default_rng(seed)
    matrix = {tuple(key.upper().split("_")): value for key, value in DEFAULT_MATRIX_LONG.items()}
    differences = []
    for _ in range(number):
        sides = [_random_entities(rng) for _ in range(2)]
        ours = harmonic_mean(match_entities(*sides).score, match_entities(*sides[::-1]).score)
        first, second = ((torch.tensor(side.embeddings), [TYPES[kind] for kind in side.types]) for side in sides)
        scores = [
            compute(left[0], right[0], left[1], right[1], matrix) for left, right in ((first, second), (second, first))
        ]
        differences.append(abs(ours - harmonic_mean(*scores)))
    return max(differences)


def _random_entities(rng: np.random.Generator) -> Entities:
    count = int(rng.integers(1, 9))
    vectors = rng.normal(size=(count, WIDTH)) + 1
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Entities(("",) * count, rng.integers(0, len(TYPES), count), vectors)


def main() -> None:
    """Print the three numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    studies = read_iu_xray(parser.parse_args().folder).studies
    # The reader replaces the placeholders of the archive.
    texts = [study.findings.replace("___", "XXXX") for study in studies if study.findings]
    print(f"RaTEScore {version('RaTEScore')}, medspacy {version('medspacy')}")
    print(f"same sentences: {count_equal_sentences(texts)} of {len(texts)} findings sections")
    print(f"same entities: {count_equal_entities(200_000, seed=1)} of 200000 label sequences")
    print(f"largest difference of 3000 scores: {largest_difference(3000, seed=1):.1e}")


if __name__ == "__main__":
    main()
