"""Write the values of other implementations on the sample of `docs/parity.json`, which `docs/parity.md` shows.

tests/benchmarks/parity_values.py docs/parity.json

Needs Java and the packages fast-bleu, pycocoevalcap and radeval, in addition to those of the metrics. Values without
such an implementation are those that the file already has.
"""

import json
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from fast_bleu import BLEU as FAST_BLEU
from pycocoevalcap.bleu.bleu import Bleu as CocoBleu
from pycocoevalcap.rouge.rouge import Rouge as CocoRouge
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer
from radeval.metrics.bleu.bleu import Bleu as RadEvalBleu
from radeval.metrics.rouge.rouge import RougeL as RadEvalRougeL
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics.bleu import BLEU

ORDERS = (1, 2, 3, 4)


def compute(candidates: list[str], references: list[str]) -> Iterator[tuple[str, float, str]]:
    """Yield score, value and package."""
    rouge = RougeScorer(["rougeL"])
    scores = [rouge.score(*texts)["rougeL"].fmeasure for texts in zip(references, candidates, strict=True)]
    yield "rouge_l", sum(scores) / len(scores), "rouge_score"
    yield "rouge_l.radeval", RadEvalRougeL()(references, candidates)[0], "radeval"
    for order in ORDERS:
        bleu = BLEU(lowercase=True, max_ngram_order=order)
        yield f"bleu_{order}", bleu.corpus_score(candidates, [references]).score, "sacrebleu"
        yield f"bleu_{order}.radeval", RadEvalBleu(order)(references, candidates)[0], "radeval"
    words = [
        [[word for word in text.lower().replace(".", " .").split(" ") if word] for text in texts]
        for texts in (references, candidates)
    ]
    by_report = [
        FAST_BLEU([reference], {"bigram": (0.5, 0.5)}).get_score([candidate])["bigram"][0]
        for reference, candidate in zip(*words, strict=True)
    ]
    yield "bleu_2.rexrank", sum(by_report) / len(by_report), "fast-bleu"
    tokens = [
        PTBTokenizer().tokenize({index: [{"caption": text}] for index, text in enumerate(texts)})
        for texts in (references, candidates)
    ]
    for order, value in zip(ORDERS, CocoBleu(4).compute_score(*tokens, verbose=0)[0], strict=True):
        yield f"bleu_{order}.coco", value, "pycocoevalcap"
    yield "rouge_l.coco", CocoRouge().compute_score(*tokens)[0], "pycocoevalcap"


def main(path: Path) -> None:
    """Add the values to the file."""
    sample = json.loads(path.read_text("utf-8"))
    texts = [[pair[side] for pair in sample["pairs"]] for side in ("candidate", "reference")]
    for score, value, package in compute(*texts):
        sample["values"][score] = {"value": float(value), "implementation": f"{package} {version(package)}"}
    path.write_text(json.dumps(sample, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
