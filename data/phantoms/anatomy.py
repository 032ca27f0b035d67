"""The normal chest of a phantom, defined by a few measures.

Coordinates are (u, v) in the centered square of the radiograph: u to the right, v down, both in [0, 1]. The patient
faces the viewer, so the patient's right lung is at small u. `Side` is always the patient's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Side = Literal["left", "right"]
Array = NDArray[np.float32]

LUNG_CENTER = 0.60
"""The height v at which a lung is widest; below it the chest wall is vertical."""


@dataclass(frozen=True)
class Anatomy:
    """Measures of one patient, in shares of the radiograph's centered square."""

    midline: float  # u of the spine
    lung_top: float  # v of the apices
    half_width: float  # from the midline to the outer border of a lung at its widest
    dome_right: float  # v of the top of the right half of the diaphragm
    dome_left: float
    heart_share: float  # width of the heart over the width of the chest (cardiothoracic ratio)
    heart_v: float  # v of the center of the heart
    rib_spacing: float
    rib_phase: float  # position of the first rib within that distance
    exposure: float  # gamma of the radiograph, 1 is neutral

    def sign(self, side: Side) -> int:
        """-1 for the patient's right (small u), +1 for the left."""
        return 1 if side == "left" else -1

    def u(self, side: Side, lateral: float) -> float:
        """Return u of a point at a distance from the midline."""
        return self.midline + self.sign(side) * lateral

    def dome(self, side: Side) -> float:
        """Return v of the top of the diaphragm on a side."""
        return self.dome_left if side == "left" else self.dome_right

    def outer(self, v: Array | float) -> Array:
        """Return the distance from the midline to the outer border of a lung at height `v`; 0 above the apex."""
        rise = np.clip((LUNG_CENTER - np.asarray(v, np.float32)) / (LUNG_CENTER - self.lung_top), 0, None)
        return np.asarray(self.half_width * np.sqrt(np.clip(1 - rise**2, 0, 1)), np.float32)

    def diaphragm(self, side: Side, lateral: Array) -> Array:
        """Return v of the diaphragm, a dome down to the costophrenic angle."""
        across = (lateral - 0.45 * self.half_width) / (0.55 * self.half_width)
        return np.asarray(self.dome(side) + 0.10 * np.clip(across, -1.2, 1.2) ** 2, np.float32)

    @property
    def heart_box(self) -> tuple[float, float, float, float]:
        """(u_min, v_min, u_max, v_max) of the heart: two fifths of it to the right of the midline."""
        width = self.heart_share * 2 * self.half_width
        left = self.midline - 0.36 * width
        half_height = 0.42 * width
        return left, self.heart_v - half_height, left + width, min(self.heart_v + half_height, 0.84)


def draw_anatomy(rng: np.random.Generator) -> Anatomy:
    """Draw a random normal patient."""
    dome_right = rng.uniform(0.69, 0.75)
    return Anatomy(
        midline=rng.uniform(0.485, 0.515),
        lung_top=rng.uniform(0.10, 0.15),
        half_width=rng.uniform(0.34, 0.39),
        dome_right=dome_right,
        dome_left=dome_right + rng.uniform(0.015, 0.04),
        heart_share=rng.uniform(0.40, 0.47),
        heart_v=rng.uniform(0.60, 0.63),
        rib_spacing=rng.uniform(0.078, 0.09),
        rib_phase=rng.uniform(0, 1),
        exposure=rng.uniform(0.85, 1.2),
    )
