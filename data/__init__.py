"""Studies: DICOM to PNG, manifests, images as the model sees them."""

from data.manifest import Failure, read_manifest, write_failures, write_manifest
from data.study import IMAGE_COLUMNS, Label, Side, Study

__all__ = [
    "IMAGE_COLUMNS",
    "Failure",
    "Label",
    "Side",
    "Study",
    "read_manifest",
    "write_failures",
    "write_manifest",
]
