"""Image encoders: RAD-DINO, a DINOv2 vision transformer for chest radiographs."""

from maira.encoders.rad_dino import Encoder
from maira.encoders.weights import load_encoder, save_encoder

__all__ = ["Encoder", "load_encoder", "save_encoder"]
