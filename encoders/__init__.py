"""Image encoders: RAD-DINO, a DINOv2 vision transformer for chest radiographs."""

from encoders.rad_dino import Encoder
from encoders.weights import load_encoder, save_encoder

__all__ = ["Encoder", "load_encoder", "save_encoder"]
