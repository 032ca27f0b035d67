"""Render the frontal and lateral radiograph of a phantom; measures are shares, so it looks the same at every size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from maira.data.phantoms.anatomy import Anatomy, Array, Side
from maira.data.phantoms.findings import Finding, apply_to, device_path, effusion_level, generator, pneumothorax_rim

SIDES: tuple[Side, ...] = ("right", "left")
GRAIN = 224
"""Cells of radiograph grain across the square."""


@dataclass
class Canvas:
    """A radiograph to draw on: density `pixels` (height, width) over u (1, width) and v (height, 1)."""

    pixels: Array
    u: Array
    v: Array
    square: int

    def band(self, distance: Array, edge: float = 0.008) -> Array:
        """Return 1 for `distance` above 0 and 0 below, with a soft edge."""
        softened: Array = np.clip(distance * np.float32(0.5 / edge) + np.float32(0.5), 0, 1)
        return softened

    def blob(self, u: float, v: float, radius_u: float, radius_v: float | None = None) -> Array:
        """Return a Gaussian of height 1, (height, width)."""
        across = np.exp(-(((self.u - u) / radius_u) ** 2))
        down = np.exp(-(((self.v - v) / (radius_v or radius_u)) ** 2))
        hill: Array = across * down
        return hill

    def disc(self, u: float, v: float, radius_u: float, radius_v: float | None = None, edge: float = 0.15) -> Array:
        """Return a filled ellipse with a soft edge, 1 inside, (height, width)."""
        away = ((self.u - u) / radius_u) ** 2 + ((self.v - v) / (radius_v or radius_u)) ** 2
        return np.clip((1 - away) / (2 * edge) + 0.5, 0, 1)

    def noise(self, rng: np.random.Generator, cells: int) -> Array:
        """Return smooth noise with unit variance, (height, width)."""
        height, width = self.pixels.shape
        rows, columns = round(cells * height / self.square), round(cells * width / self.square)
        grid = Image.fromarray(rng.standard_normal((rows, columns), np.float32))
        return np.asarray(grid.resize((width, height), Image.Resampling.BICUBIC))

    def stroke(self, line: list[tuple[float, float]], width: float) -> Array:
        """Return a smooth line, 1 on it, (height, width)."""
        points = _smooth(line)
        height, columns = self.pixels.shape
        canvas = Image.new("L", (columns * 2, height * 2))
        scale = 2 * self.square
        origin = np.array([self.u[0, 0], self.v[0, 0]])
        path = [(float(a), float(b)) for a, b in (points - origin) * scale]
        ImageDraw.Draw(canvas).line(path, fill=255, width=max(1, round(width * scale)), joint="curve")
        return np.asarray(canvas.reduce(2), np.float32) / np.float32(255)


def _smooth(line: list[tuple[float, float]]) -> NDArray[np.float64]:
    """Return the Catmull-Rom curve through points."""
    points = np.array([line[0], *line, line[-1]])
    t = np.linspace(0, 1, 8)[:, None]
    parts = [
        0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3)
        for a, b, c, d in zip(points, points[1:], points[2:], points[3:], strict=False)
    ]
    return np.concatenate(parts)


def blank(size: int, aspect: float) -> Canvas:
    """Return an empty canvas."""
    width, height = (round(size * aspect), size) if aspect >= 1 else (size, round(size / aspect))
    u, v = (
        np.asarray((np.arange(side, dtype=np.float32) + 0.5 - (side - size) / 2) / size, np.float32)
        for side in (width, height)
    )
    return Canvas(np.zeros((height, width), np.float32), u[None, :], v[:, None], size)


def render_frontal(
    anatomy: Anatomy, findings: tuple[Finding, ...], rng: np.random.Generator, size: int, aspect: float = 1.0
) -> NDArray[np.uint8]:
    """Render the frontal radiograph as gray levels (height, width), bones bright."""
    anatomy = apply_to(anatomy, findings)
    canvas = blank(size, aspect)
    lungs = {side: _lung(canvas, anatomy, side) for side in SIDES}
    _paint_chest(canvas, anatomy, lungs, rng)
    for finding in findings:
        _paint_finding(canvas, anatomy, finding, lungs, rng)
    return _develop(canvas, anatomy, rng)


def _lung(canvas: Canvas, anatomy: Anatomy, side: Side) -> Array:
    lateral = (canvas.u - anatomy.midline) * anatomy.sign(side)
    inside = canvas.band(anatomy.outer(canvas.v) - lateral) * canvas.band(lateral - 0.055, 0.012)
    return inside * canvas.band(anatomy.diaphragm(side, lateral) - canvas.v)


def _paint_chest(canvas: Canvas, anatomy: Anatomy, lungs: dict[Side, Array], rng: np.random.Generator) -> None:
    away = np.abs(canvas.u - anatomy.midline)
    shoulder = np.clip(0.16 + 1.1 * (canvas.v + 0.02), 0, anatomy.half_width + 0.07)
    canvas.pixels += 0.08 + 0.47 * canvas.band(shoulder - away, 0.03)
    canvas.pixels += 0.12 * canvas.blob(anatomy.midline, 0.95, 0.5, 0.22)
    lung = lungs["right"] + lungs["left"]
    canvas.pixels -= lung * (0.34 + 0.02 * canvas.noise(rng, 9))

    # Ribs fall off to the side; one periodic profile draws all of them.
    phase = (canvas.v + 0.35 * away**1.5 - 0.1) / anatomy.rib_spacing + anatomy.rib_phase
    profile = np.clip(np.cos(2 * np.pi * phase) * 1.6 - 0.5, 0, 1)
    wall, spine_edge = canvas.band(anatomy.outer(canvas.v) + 0.012 - away), canvas.band(away - 0.05, 0.02)
    canvas.pixels += 0.07 * profile * wall * spine_edge
    for sign in (-1, 1):
        clavicle = [(anatomy.midline + sign * u, v) for u, v in ((0.03, 0.19), (0.16, 0.14), (0.36, 0.12))]
        canvas.pixels += 0.09 * canvas.stroke(clavicle, 0.022)

    spine = np.exp(-(((canvas.u - anatomy.midline) / 0.045) ** 2))
    canvas.pixels += spine * (0.13 + 0.03 * np.cos(2 * np.pi * canvas.v / 0.065))
    left, top, right, bottom = anatomy.heart_box
    heart = canvas.disc((left + right) / 2, (top + bottom) / 2, (right - left) / 2, (bottom - top) / 2, 0.08)
    canvas.pixels += (0.27 * lung + 0.05) * heart
    arch = canvas.disc(anatomy.midline + 0.045, 0.30, 0.05, 0.055, 0.2)
    canvas.pixels += 0.15 * arch * lung + 0.02 * arch
    for side in SIDES:
        hilum = canvas.blob(anatomy.u(side, 0.095), 0.43, 0.045, 0.07)
        vessels = 0.035 * canvas.noise(rng, 34) * canvas.blob(anatomy.u(side, 0.1), 0.45, 0.2, 0.26)
        canvas.pixels += lungs[side] * (0.13 * hilum + vessels)


def _paint_finding(
    canvas: Canvas, anatomy: Anatomy, finding: Finding, lungs: dict[Side, Array], rng: np.random.Generator
) -> None:
    lung = lungs["right"] + lungs["left"]
    kind = finding.kind
    if kind in ("consolidation", "mass", "nodule"):
        u, r = anatomy.u(finding.sides[0], finding.lateral), finding.radius
        if kind == "consolidation":
            fluffy = np.clip(1 + 0.4 * canvas.noise(rng, 22), 0, 1.6)
            hill, core = np.sqrt(canvas.blob(u, finding.v, r * 0.62)), canvas.disc(u, finding.v, r * 1.1, edge=0.5)
            canvas.pixels += 0.25 * lung * hill * core * fluffy
        else:
            canvas.pixels += (0.22 if kind == "nodule" else 0.24) * canvas.disc(u, finding.v, r)
    elif kind == "atelectasis":
        for side in finding.sides:
            for shift in (-0.075, -0.04):
                v = anatomy.dome(side) + shift
                line = [(anatomy.u(side, away), y) for away, y in ((0.145, v), (0.22, v - 0.01), (0.295, v + 0.02))]
                canvas.pixels += 0.2 * canvas.stroke(line, 0.013)
    elif kind == "edema":
        strength = 0.14 + 0.20 * finding.extent
        for side in SIDES:
            wings = canvas.blob(anatomy.u(side, 0.17), 0.47, 0.14, 0.18)
            canvas.pixels += lungs[side] * wings * strength * (1 + 0.3 * canvas.noise(rng, 40))
    elif kind in ("effusion", "pneumothorax"):
        for side in finding.sides:
            lateral = (canvas.u - anatomy.midline) * anatomy.sign(side)
            if kind == "effusion":
                _fill_with_fluid(canvas, anatomy, finding, side, lateral)
            else:
                _paint_pneumothorax(canvas, anatomy, finding, lungs[side], lateral)
    elif kind == "rib_fracture":
        u = anatomy.u(finding.sides[0], finding.lateral)
        canvas.pixels += 0.2 * canvas.disc(u, finding.v, 0.034, 0.022, 0.3)
        canvas.pixels -= 0.3 * canvas.stroke([(u - 0.014, finding.v - 0.03), (u + 0.014, finding.v + 0.03)], 0.009)
    elif kind == "pacemaker":
        left, top, right, bottom = generator(finding, anatomy)
        case = canvas.band(canvas.u - left) * canvas.band(right - canvas.u)
        case = case * canvas.band(canvas.v - top) * canvas.band(bottom - canvas.v)
        canvas.pixels += 0.5 * case + 0.3 * canvas.stroke(device_path(finding, anatomy), 0.006)
    elif kind != "cardiomegaly":
        tube = canvas.stroke(device_path(finding, anatomy), 0.011)
        canvas.pixels += (0.34 if kind == "endotracheal_tube" else 0.27) * tube


def _fill_with_fluid(canvas: Canvas, anatomy: Anatomy, finding: Finding, side: Side, lateral: Array) -> None:
    meniscus = effusion_level(finding, anatomy, side) - 0.06 * np.clip(lateral / anatomy.half_width, 0, 1) ** 3
    column = canvas.band(anatomy.outer(canvas.v) - lateral) * canvas.band(lateral - 0.055, 0.012)
    fluid = column * canvas.band(canvas.v - meniscus, 0.015) * canvas.band(anatomy.dome(side) + 0.13 - canvas.v, 0.02)
    canvas.pixels += fluid * (np.maximum(canvas.pixels, 0.63) - canvas.pixels) * 0.9


def _paint_pneumothorax(canvas: Canvas, anatomy: Anatomy, finding: Finding, lung: Array, lateral: Array) -> None:
    width, end = pneumothorax_rim(finding)
    border = anatomy.outer(canvas.v - 0.04) - width
    above = canvas.band(end - canvas.v, 0.03)
    canvas.pixels -= 0.13 * canvas.band(lateral - border) * lung * above
    pleura = np.clip(1 - np.abs(lateral - border) / 0.006, 0, 1)
    canvas.pixels += 0.2 * pleura * lung * above


def render_lateral(
    anatomy: Anatomy, findings: tuple[Finding, ...], rng: np.random.Generator, size: int
) -> NDArray[np.uint8]:
    """Render the lateral radiograph as gray levels (size, size); the patient faces left."""
    anatomy = apply_to(anatomy, findings)
    canvas = blank(size, 1.0)
    canvas.pixels += 0.1 + 0.45 * canvas.disc(0.5, 0.55, 0.44, 0.68, 0.08)
    dome = anatomy.dome_right + 0.02
    slope = dome + 0.12 * np.clip((canvas.u - 0.45) / 0.35, -1, 1.2) ** 2
    lung = canvas.disc(0.53, 0.52, 0.33, 0.42, 0.06) * canvas.band(slope - canvas.v)
    canvas.pixels -= lung * (0.3 + 0.025 * canvas.noise(rng, 9))
    spine = 0.12 * canvas.band(canvas.u - 0.74, 0.03) * canvas.band(0.86 - canvas.u, 0.02)
    canvas.pixels += spine * (1 + 0.2 * np.cos(2 * np.pi * canvas.v / 0.07))
    reach = anatomy.heart_share
    canvas.pixels += 0.24 * lung * canvas.disc(0.36, 0.62, 0.30 * reach / 0.45, 0.17 * reach / 0.45, 0.1)
    for finding in findings:
        if finding.kind == "effusion":
            level = effusion_level(finding, anatomy, finding.sides[0]) + 0.03
            fluid = 0.28 * lung * canvas.band(canvas.v - level + 0.1 * (canvas.u - 0.5), 0.02)
            canvas.pixels += fluid * canvas.band(canvas.u - 0.45, 0.05)
        elif finding.kind in ("consolidation", "mass", "nodule"):
            depth = 0.45 + 0.25 * float(np.clip(finding.lateral / anatomy.half_width, 0, 1))
            canvas.pixels += 0.18 * canvas.disc(depth, finding.v, finding.radius, edge=0.3)
        elif finding.kind == "edema":
            canvas.pixels += lung * canvas.blob(0.5, 0.47, 0.16) * (0.08 + 0.1 * finding.extent)
    return _develop(canvas, anatomy, rng)


def _develop(canvas: Canvas, anatomy: Anatomy, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Add grain, apply the exposure and convert to 8 bit."""
    canvas.pixels += 0.012 * canvas.noise(rng, GRAIN) + 0.01 * canvas.noise(rng, 60)
    low, high = 0.02, 0.98
    shown = np.clip((canvas.pixels - low) / (high - low), 0, 1) ** anatomy.exposure
    return np.asarray(shown * 255 + 0.5, np.uint8)
