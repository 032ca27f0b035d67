"""Narrative findings to lists of single-finding sentences: studies for grounding, and for annotation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from data.manifest import Failure
from data.study import Study
from radfact.errors import Failure as Unanswered
from radfact.judges.protocol import ExplainingSplitter, SplitSentence, flatten_split
from radfact.records import Sentence

Target = Literal["grounded_findings", "phrases"]
"""Where the sentences go: a grounded report without boxes, or the phrases that annotators locate."""

STAGE = "sentences"


@dataclass(frozen=True, slots=True)
class Changes:
    """How the conversion alters the reports (what table B.3 of paper 004 is about), in counts.

    Attributes:
        reports: distinct narratives that were split.
        sentences_before: sentences of the narratives, as the splitter quotes them.
        sentences_after: single-finding sentences made of them.
        removed: sentences of which nothing is left: technique, recommendations, interpretation.
        divided: sentences that became more than one.
        words_before, words_after: words of the narratives and of the sentences.
    """

    reports: int = 0
    sentences_before: int = 0
    sentences_after: int = 0
    removed: int = 0
    divided: int = 0
    words_before: int = 0
    words_after: int = 0

    @classmethod
    def of(cls, split: Mapping[str, Sequence[SplitSentence]]) -> Changes:
        """The figures of narratives and what was made of each."""
        flat = [one for made in split.values() for one in made]
        return cls(
            reports=len(split),
            sentences_before=len(flat),
            sentences_after=sum(len(one.new) for one in flat),
            removed=sum(not one.new for one in flat),
            divided=sum(len(one.new) > 1 for one in flat),
            words_before=sum(len(narrative.split()) for narrative in split),
            words_after=sum(len(text.split()) for one in flat for text in one.new),
        )


@dataclass(frozen=True)
class SplitStudies:
    """Studies with their sentences.

    Attributes:
        studies: in input order, those left out missing.
        pairs: by `sample_id`, the narrative's sentences with what was made of each.
        changes: the figures of the conversion.
        already: how many had sentences before and stayed as they were.
        failures: what was left out, and why.
    """

    studies: list[Study]
    pairs: dict[str, list[SplitSentence]]
    changes: Changes
    already: int = 0
    failures: list[Failure] = field(default_factory=list)

    def map_rows(self) -> Iterable[dict[str, Any]]:
        """The map original -> new, one row a sentence of a narrative (paper 004, listing 2)."""
        for key, split in self.pairs.items():
            yield from ({"sample_id": key, **asdict(one)} for one in split)


def split_findings(
    studies: Sequence[Study], splitter: ExplainingSplitter, target: Target = "grounded_findings"
) -> SplitStudies:
    """Make single-finding sentences of the studies' narrative findings (paper 004, appendix B.5.1).

    A study that has such sentences already, annotated perhaps, keeps them. Several samples of one study have one
    narrative, which is split once.

    Args:
        studies: as read from a manifest.
        splitter: a model or the offline rules (`radfact.judges.load_splitter`).
        target: the field to fill.

    Raises:
        RunError: a model's server cannot be asked.
    """
    asked = [study for study in studies if getattr(study, target) is None and study.findings is not None]
    narratives = list(dict.fromkeys(study.findings for study in asked if study.findings is not None))
    answers = dict(zip(narratives, splitter.explain(narratives), strict=True))
    result: list[Study] = []
    pairs: dict[str, list[SplitSentence]] = {}
    failures: list[Failure] = []
    already = 0
    for study in studies:
        if getattr(study, target) is not None:
            already += 1
            result.append(study)
            continue
        answer = answers.get(study.findings) if study.findings is not None else None
        if answer is None:
            failures.append(Failure(sample_id=study.sample_id, stage=STAGE, reason="no findings section"))
        elif isinstance(answer, Unanswered):
            failures.append(Failure(sample_id=study.sample_id, stage=STAGE, reason=answer.reason))
        else:
            pairs[study.sample_id] = answer
            if sentences := [Sentence(text=text) for text in flatten_split(answer)]:
                result.append(study.model_copy(update={target: sentences}))
            else:
                reason = "no sentence of its findings describes a finding"
                failures.append(Failure(sample_id=study.sample_id, stage=STAGE, reason=reason))
    changes = Changes.of({key: split for key, split in answers.items() if not isinstance(split, Unanswered)})
    return SplitStudies(result, pairs, changes, already, failures)
