"""Image encoders: RAD-DINO, a DINOv2 vision transformer for chest radiographs."""

from encoders.rad_dino import Encoder

__all__ = ["Encoder"]
