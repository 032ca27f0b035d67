"""Annotation of grounded reports (MAIRA-2, appendix G): export tasks, read results, apply the protocol."""

from maira.data.annotation.combine import (
    Agreement,
    Combine,
    GroundedStudies,
    agreement,
    cohens_kappa,
    combine,
    ground_studies,
    iou,
)
from maira.data.annotation.protocol import (
    CATEGORIES,
    Annotation,
    PhraseAnnotation,
    PhraseLabel,
    Progression,
    Quality,
    Rejected,
    apply_rules,
)
from maira.data.annotation.results import AnnotatedSample, read_label_studio
from maira.data.annotation.tasks import ImageAddress, coco_dataset, labeling_config, phrases_of, task_of

__all__ = [
    "CATEGORIES",
    "Agreement",
    "AnnotatedSample",
    "Annotation",
    "Combine",
    "GroundedStudies",
    "ImageAddress",
    "PhraseAnnotation",
    "PhraseLabel",
    "Progression",
    "Quality",
    "Rejected",
    "agreement",
    "apply_rules",
    "coco_dataset",
    "cohens_kappa",
    "combine",
    "ground_studies",
    "iou",
    "labeling_config",
    "phrases_of",
    "read_label_studio",
    "task_of",
]
