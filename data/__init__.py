"""Studies: DICOM to PNG, manifests, images as the model sees them."""

from maira.data.dicom.convert import radiograph_to_png
from maira.data.dicom.radiograph import ImageInfo
from maira.data.dicom.reader import dicom_to_png
from maira.data.images import CropMap, Gray, load_gray, prepare
from maira.data.manifest import Failure, read_manifest, write_failures, write_manifest
from maira.data.sources.dicom import example_radiograph
from maira.data.study import IMAGE_COLUMNS, Label, Side, Study

__all__ = [
    "IMAGE_COLUMNS",
    "CropMap",
    "Failure",
    "Gray",
    "ImageInfo",
    "Label",
    "Side",
    "Study",
    "dicom_to_png",
    "example_radiograph",
    "load_gray",
    "prepare",
    "radiograph_to_png",
    "read_manifest",
    "write_failures",
    "write_manifest",
]
