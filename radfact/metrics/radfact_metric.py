"""RadFact as one of the metrics: its figures, and its sentences as details."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from radfact.io.pairs import Pair
from radfact.judges import Judge, Splitter
from radfact.metrics.protocol import Counts, Pooled, Scored
from radfact.results.radfact_writer import sentence_row
from radfact.scoring.radfact import RadFact
from radfact.scoring.sample import F1_PARTS, FIGURES, SampleScore
from radfact.statistics.bootstrap import Direction, Summary, summarize
from radfact.statistics.significance import f1_counts, f1_from_counts

if TYPE_CHECKING:
    from radfact.metrics.resources import Resources


class RadFactMetric:
    """RadFact (paper 004, appendix C) behind the protocol of metrics."""

    name = "radfact"
    figures: Mapping[str, Direction] = dict.fromkeys(FIGURES, "higher")
    headline = ("logical_f1",)
    pooled: Mapping[str, Callable[[Counts], float]] = dict.fromkeys(F1_PARTS, f1_from_counts)
    of_boxes = frozenset(name for name in FIGURES if not name.startswith("logical"))
    worst: Mapping[str, float] = {"logical_precision": 0.0, "logical_f1": 0.0}

    def __init__(self, judge: Judge, splitter: Splitter, options: Mapping[str, Any]) -> None:
        """Take who answers, and the options of `radfact.scoring.radfact.RadFact`."""
        self.judge, self.splitter = judge, splitter
        self.radfact = RadFact(judge, splitter=splitter, **options)

    @classmethod
    def make(cls, resources: Resources, **options: Any) -> RadFactMetric:
        """With the judge and the splitter of a run, and further options of `radfact.scoring.radfact.RadFact`."""
        return cls(*resources.entailment(), {**resources.radfact, **options})

    def describe(self) -> dict[str, Any]:
        """Everything that changes a value."""
        options = {name: value for name, value in self.radfact.options.items() if name not in ("bootstrap", "seed")}
        return {"judge": self.judge.describe(), "splitter": self.splitter.describe(), "options": options}

    def score(self, pairs: Sequence[Pair]) -> Scored:
        """Nine figures; details are the numbers of sentences and a row a sentence, as `sentences.jsonl` has them."""
        result = self.radfact.score(list(pairs))
        rows: dict[str, list[dict[str, Any]]] = {sample.sample_id: [] for sample in result.samples}
        for sentence in result.sentences:
            rows[sentence.sample_id].append(sentence_row(sentence))
        usage: dict[str, int] = {}
        for spent in result.usage.values():
            for name, count in spent.items():
                usage[name] = usage.get(name, 0) + count
        if "unread_sentences" in result.counts:
            usage |= {"unread_sentences": result.counts["unread_sentences"], "sentences": len(result.sentences)}
        return Scored(
            {name: [sample.figures[name] for sample in result.samples] for name in FIGURES},
            pooled={
                name: Pooled(f1_counts(_parts(result.samples, *parts)), f1_from_counts)
                for name, parts in F1_PARTS.items()
            },
            details=[{"counts": dict(sample.counts), "sentences": rows[sample.sample_id]} for sample in result.samples],
            failures={place: one.failure for place, one in enumerate(result.samples) if one.failure is not None},
            usage=usage,
        )

    def summarize(self, scored: Scored, *, replicates: int, seed: int) -> dict[str, Summary]:
        """The figures of the set as `RadFact` gives them: replicates are drawn from samples with two reports to judge.

        Args:
            scored: as `score` gave it.
            replicates: of the bootstrap.
            seed: of the bootstrap.
        """
        judged = [
            place
            for place, detail in enumerate(scored.details)
            if place not in scored.failures or detail["counts"]["failed_sentences"] > 0
        ]
        values = {
            name: [column[place] for place in judged] for name, column in scored.values.items() if name not in F1_PARTS
        }
        found = summarize(values, f1=F1_PARTS, replicates=replicates, seed=seed)
        return {name: found[name] for name in FIGURES}


def _parts(samples: Sequence[SampleScore], precision: str, recall: str) -> Counts:
    return np.array([[one.figures[precision], one.figures[recall]] for one in samples], dtype=np.float64)
