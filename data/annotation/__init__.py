"""Annotation of grounded reports (paper 004, appendix G): tasks out, annotations back, rules in between."""

from data.annotation.coco import coco_dataset
from data.annotation.combine import Agreement, Combine, agreement, cohens_kappa, combine, iou
from data.annotation.grounding import GroundedStudies, ground_studies
from data.annotation.label_studio import ImageAddress, labelling_config, phrases_of, task_of
from data.annotation.protocol import (
    CATEGORIES,
    Annotation,
    PhraseAnnotation,
    PhraseLabel,
    Progression,
    Quality,
    Rejected,
    apply_rules,
)
from data.annotation.results import AnnotatedSample, read_label_studio

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
    "labelling_config",
    "phrases_of",
    "read_label_studio",
    "task_of",
]
