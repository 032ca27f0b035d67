"""Split narrative findings into single-finding sentences, for grounding and annotation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from maira.data.manifest import Failure
from maira.data.study import Study
from radfact.errors import Failure as QueryFailure
from radfact.judges.protocol import ExplainingSplitter, SplitSentence, flatten_split
from radfact.records import Sentence

Target = Literal["grounded_findings", "phrases"]
"""Field that receives the sentences: a grounded report without boxes, or phrases for annotators to locate."""


@dataclass(frozen=True)
class SplitStudies:
    """Studies with sentences in input order, the split sentences by `sample_id`, and the skipped studies."""

    studies: list[Study]
    splits: dict[str, list[SplitSentence]]
    counts: dict[str, int]
    unchanged: int = 0
    failures: list[Failure] = field(default_factory=list)


def split_findings(
    studies: Sequence[Study], splitter: ExplainingSplitter, target: Target = "grounded_findings"
) -> SplitStudies:
    """Split the narrative findings of studies into single-finding sentences (MAIRA-2, appendix B.5.1)."""
    pending = [study for study in studies if getattr(study, target) is None and study.findings is not None]
    narratives = list(dict.fromkeys(study.findings for study in pending if study.findings is not None))
    splits_of = dict(zip(narratives, splitter.explain(narratives), strict=True))
    result: list[Study] = []
    splits: dict[str, list[SplitSentence]] = {}
    failures: list[Failure] = []
    unchanged = 0
    for study in studies:
        if getattr(study, target) is not None:
            unchanged += 1
            result.append(study)
            continue
        split = splits_of.get(study.findings) if study.findings is not None else None
        if split is None:
            reason = "no findings section"
        elif isinstance(split, QueryFailure):
            reason = split.reason
        else:
            splits[study.sample_id] = split
            if report := [Sentence(text=text) for text in flatten_split(split)]:
                result.append(study.model_copy(update={target: report}))
                continue
            reason = "no sentence of the findings describes a finding"
        failures.append(Failure(sample_id=study.sample_id, stage="sentences", reason=reason))
    split_of = {text: split for text, split in splits_of.items() if not isinstance(split, QueryFailure)}
    sentences = [sentence for split in split_of.values() for sentence in split]
    counts = {
        "reports": len(split_of),
        "sentences_before": len(sentences),
        "sentences_after": sum(len(sentence.new) for sentence in sentences),
        "removed": sum(not sentence.new for sentence in sentences),
        "divided": sum(len(sentence.new) > 1 for sentence in sentences),
        "words_before": sum(len(narrative.split()) for narrative in split_of),
        "words_after": sum(len(text.split()) for sentence in sentences for text in sentence.new),
    }
    return SplitStudies(result, splits, counts, unchanged, failures)
