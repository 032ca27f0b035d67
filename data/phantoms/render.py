"""Paint a phantom's frontal and lateral film.

Everything is drawn from measures in shares of the film, and noise on grids of a fixed number of cells, so the same
study looks the same at every size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from data.phantoms.anatomy import Anatomy, Array, Side
from data.phantoms.findings import Finding, apply_to, course, effusion_level, generator, pneumothorax_rim

SIDES: tuple[Side, ...] = ("right", "left")
GRAIN = 224
"""Cells of film grain across the square."""


@dataclass
class Film:
    """A picture being painted: density `pixels` (height, width) over u (1, width) and v (height, 1)."""

    pixels: Array
    u: Array
    v: Array
    square: int

    def band(self, distance: Array, edge: float = 0.008) -> Array:
        """1 where `distance` is well above 0, 0 well below, with a soft edge."""
        softened: Array = np.clip(distance * np.float32(0.5 / edge) + np.float32(0.5), 0, 1)
        return softened

    def blob(self, u: float, v: float, radius_u: float, radius_v: float | None = None) -> Array:
        """A Gaussian hill of height 1 (height, width)."""
        across = np.exp(-(((self.u - u) / radius_u) ** 2))
        down = np.exp(-(((self.v - v) / (radius_v or radius_u)) ** 2))
        hill: Array = across * down
        return hill

    def disc(self, u: float, v: float, radius_u: float, radius_v: float | None = None, edge: float = 0.15) -> Array:
        """A filled ellipse with a soft rim, 1 inside (height, width); `edge` in shares of the radius."""
        away = ((self.u - u) / radius_u) ** 2 + ((self.v - v) / (radius_v or radius_u)) ** 2
        return np.clip((1 - away) / (2 * edge) + 0.5, 0, 1)

    def noise(self, rng: np.random.Generator, cells: int) -> Array:
        """Smooth noise with unit variance on a grid of `cells` across the square (height, width)."""
        height, width = self.pixels.shape
        rows, columns = round(cells * height / self.square), round(cells * width / self.square)
        grid = Image.fromarray(rng.standard_normal((rows, columns), np.float32))
        return np.asarray(grid.resize((width, height), Image.Resampling.BICUBIC))

    def stroke(self, line: list[tuple[float, float]], width: float) -> Array:
        """A smooth line through points (u, v), 1 on it (height, width); `width` in shares of the square."""
        points = _smooth(line)
        height, columns = self.pixels.shape
        canvas = Image.new("L", (columns * 2, height * 2))
        scale = 2 * self.square
        origin = np.array([self.u[0, 0], self.v[0, 0]])
        path = [(float(a), float(b)) for a, b in (points - origin) * scale]
        ImageDraw.Draw(canvas).line(path, fill=255, width=max(1, round(width * scale)), joint="curve")
        return np.asarray(canvas.reduce(2), np.float32) / np.float32(255)


def _smooth(line: list[tuple[float, float]]) -> NDArray[np.float64]:
    """Catmull-Rom curve through the points."""
    points = np.array([line[0], *line, line[-1]])
    t = np.linspace(0, 1, 8)[:, None]
    parts = [
        0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3)
        for a, b, c, d in zip(points, points[1:], points[2:], points[3:], strict=False)
    ]
    return np.concatenate(parts)


def blank(size: int, aspect: float) -> Film:
    """An empty film whose shorter side has `size` pixels; `aspect` is width over height."""
    width, height = (round(size * aspect), size) if aspect >= 1 else (size, round(size / aspect))
    u, v = (
        np.asarray((np.arange(side, dtype=np.float32) + 0.5 - (side - size) / 2) / size, np.float32)
        for side in (width, height)
    )
    return Film(np.zeros((height, width), np.float32), u[None, :], v[:, None], size)


def render_frontal(
    anatomy: Anatomy, findings: tuple[Finding, ...], rng: np.random.Generator, size: int, aspect: float = 1.0
) -> NDArray[np.uint8]:
    """The frontal film as grey levels (height, width), bones bright.

    Args:
        anatomy: the patient without findings.
        findings: what is wrong.
        rng: source of texture and grain.
        size: pixels of the shorter side.
        aspect: width over height.
    """
    anatomy = apply_to(anatomy, findings)
    film = blank(size, aspect)
    lungs = {side: _lung(film, anatomy, side) for side in SIDES}
    _paint_chest(film, anatomy, lungs, rng)
    for finding in findings:
        _paint_finding(film, anatomy, finding, lungs, rng)
    return _develop(film, anatomy, rng)


def _lung(film: Film, anatomy: Anatomy, side: Side) -> Array:
    lateral = (film.u - anatomy.midline) * anatomy.sign(side)
    inside = film.band(anatomy.outer(film.v) - lateral) * film.band(lateral - 0.055, 0.012)
    return inside * film.band(anatomy.diaphragm(side, lateral) - film.v)


def _paint_chest(film: Film, anatomy: Anatomy, lungs: dict[Side, Array], rng: np.random.Generator) -> None:
    away = np.abs(film.u - anatomy.midline)
    shoulder = np.clip(0.16 + 1.1 * (film.v + 0.02), 0, anatomy.half_width + 0.07)
    film.pixels += 0.08 + 0.47 * film.band(shoulder - away, 0.03)
    film.pixels += 0.12 * film.blob(anatomy.midline, 0.95, 0.5, 0.22)
    lung = lungs["right"] + lungs["left"]
    film.pixels -= lung * (0.34 + 0.02 * film.noise(rng, 9))

    # Ribs fall off to the side; one periodic profile draws all of them.
    phase = (film.v + 0.35 * away**1.5 - 0.1) / anatomy.rib_spacing + anatomy.rib_phase
    profile = np.clip(np.cos(2 * np.pi * phase) * 1.6 - 0.5, 0, 1)
    film.pixels += 0.07 * profile * film.band(anatomy.outer(film.v) + 0.012 - away) * film.band(away - 0.05, 0.02)
    for sign in (-1, 1):
        m = anatomy.midline
        film.pixels += 0.09 * film.stroke(
            [(m + sign * 0.03, 0.19), (m + sign * 0.16, 0.14), (m + sign * 0.36, 0.12)], 0.022
        )

    spine = np.exp(-(((film.u - anatomy.midline) / 0.045) ** 2))
    film.pixels += spine * (0.13 + 0.03 * np.cos(2 * np.pi * film.v / 0.065))
    left, top, right, bottom = anatomy.heart_box
    heart = film.disc((left + right) / 2, (top + bottom) / 2, (right - left) / 2, (bottom - top) / 2, 0.08)
    film.pixels += (0.27 * lung + 0.05) * heart
    arch = film.disc(anatomy.midline + 0.045, 0.30, 0.05, 0.055, 0.2)
    film.pixels += 0.15 * arch * lung + 0.02 * arch
    for side in SIDES:
        hilum = film.blob(anatomy.u(side, 0.095), 0.43, 0.045, 0.07)
        film.pixels += lungs[side] * (
            0.13 * hilum + 0.035 * film.noise(rng, 34) * film.blob(anatomy.u(side, 0.1), 0.45, 0.2, 0.26)
        )


def _paint_finding(
    film: Film, anatomy: Anatomy, finding: Finding, lungs: dict[Side, Array], rng: np.random.Generator
) -> None:
    lung = lungs["right"] + lungs["left"]
    kind = finding.kind
    if kind in ("consolidation", "mass", "nodule"):
        u, r = anatomy.u(finding.sides[0], finding.lateral), finding.radius
        if kind == "consolidation":
            fluffy = np.clip(1 + 0.4 * film.noise(rng, 22), 0, 1.6)
            film.pixels += (
                0.25
                * lung
                * np.sqrt(film.blob(u, finding.v, r * 0.62))
                * film.disc(u, finding.v, r * 1.1, edge=0.5)
                * fluffy
            )
        else:
            film.pixels += (0.22 if kind == "nodule" else 0.24) * film.disc(u, finding.v, r)
    elif kind == "atelectasis":
        for side in finding.sides:
            dome = anatomy.dome(side)
            for shift in (-0.075, -0.04):
                line = [(anatomy.u(side, 0.145), dome + shift), (anatomy.u(side, 0.22), dome + shift - 0.01),
                        (anatomy.u(side, 0.295), dome + shift + 0.02)]  # fmt: skip
                film.pixels += 0.2 * film.stroke(line, 0.013)
    elif kind == "edema":
        strength = 0.14 + 0.20 * finding.extent
        for side in SIDES:
            wings = film.blob(anatomy.u(side, 0.17), 0.47, 0.14, 0.18)
            film.pixels += lungs[side] * wings * strength * (1 + 0.3 * film.noise(rng, 40))
    elif kind == "effusion":
        for side in finding.sides:
            _fill_with_fluid(film, anatomy, finding, side)
    elif kind == "pneumothorax":
        for side in finding.sides:
            _paint_pneumothorax(film, anatomy, finding, side, lungs[side])
    elif kind == "rib_fracture":
        u = anatomy.u(finding.sides[0], finding.lateral)
        film.pixels += 0.2 * film.disc(u, finding.v, 0.034, 0.022, 0.3)
        film.pixels -= 0.3 * film.stroke([(u - 0.014, finding.v - 0.03), (u + 0.014, finding.v + 0.03)], 0.009)
    elif kind == "pacemaker":
        left, top, right, bottom = generator(finding, anatomy)
        case = (
            film.band(film.u - left) * film.band(right - film.u) * film.band(film.v - top) * film.band(bottom - film.v)
        )
        film.pixels += 0.5 * case + 0.3 * film.stroke(course(finding, anatomy, finding.sides[0]), 0.006)
    elif kind != "cardiomegaly":
        tube = film.stroke(course(finding, anatomy, finding.sides[0] if finding.sides else None), 0.011)
        film.pixels += (0.34 if kind == "endotracheal_tube" else 0.27) * tube


def _fill_with_fluid(film: Film, anatomy: Anatomy, finding: Finding, side: Side) -> None:
    lateral = (film.u - anatomy.midline) * anatomy.sign(side)
    meniscus = effusion_level(finding, anatomy, side) - 0.06 * np.clip(lateral / anatomy.half_width, 0, 1) ** 3
    column = film.band(anatomy.outer(film.v) - lateral) * film.band(lateral - 0.055, 0.012)
    fluid = column * film.band(film.v - meniscus, 0.015) * film.band(anatomy.dome(side) + 0.13 - film.v, 0.02)
    film.pixels += fluid * (np.maximum(film.pixels, 0.63) - film.pixels) * 0.9


def _paint_pneumothorax(film: Film, anatomy: Anatomy, finding: Finding, side: Side, lung: Array) -> None:
    width, end = pneumothorax_rim(finding)
    lateral = (film.u - anatomy.midline) * anatomy.sign(side)
    border = anatomy.outer(film.v - 0.04) - width
    above = film.band(end - film.v, 0.03)
    film.pixels -= 0.13 * film.band(lateral - border) * lung * above
    pleura = np.clip(1 - np.abs(lateral - border) / 0.006, 0, 1)
    film.pixels += 0.2 * pleura * lung * above


def render_lateral(
    anatomy: Anatomy, findings: tuple[Finding, ...], rng: np.random.Generator, size: int
) -> NDArray[np.uint8]:
    """The lateral film as grey levels (size, size): the patient looks to the left of the picture."""
    anatomy = apply_to(anatomy, findings)
    film = blank(size, 1.0)
    film.pixels += 0.1 + 0.45 * film.disc(0.5, 0.55, 0.44, 0.68, 0.08)
    dome = anatomy.dome_right + 0.02
    slope = dome + 0.12 * np.clip((film.u - 0.45) / 0.35, -1, 1.2) ** 2
    lung = film.disc(0.53, 0.52, 0.33, 0.42, 0.06) * film.band(slope - film.v)
    film.pixels -= lung * (0.3 + 0.025 * film.noise(rng, 9))
    film.pixels += (
        0.12
        * film.band(film.u - 0.74, 0.03)
        * film.band(0.86 - film.u, 0.02)
        * (1 + 0.2 * np.cos(2 * np.pi * film.v / 0.07))
    )
    reach = anatomy.heart_share
    film.pixels += 0.24 * lung * film.disc(0.36, 0.62, 0.30 * reach / 0.45, 0.17 * reach / 0.45, 0.1)
    for finding in findings:
        if finding.kind == "effusion":
            level = effusion_level(finding, anatomy, finding.sides[0]) + 0.03
            film.pixels += (
                0.28 * lung * film.band(film.v - level + 0.1 * (film.u - 0.5), 0.02) * film.band(film.u - 0.45, 0.05)
            )
        elif finding.kind in ("consolidation", "mass", "nodule"):
            depth = 0.45 + 0.25 * float(np.clip(finding.lateral / anatomy.half_width, 0, 1))
            film.pixels += 0.18 * film.disc(depth, finding.v, finding.radius, edge=0.3)
        elif finding.kind == "edema":
            film.pixels += lung * film.blob(0.5, 0.47, 0.16) * (0.08 + 0.1 * finding.extent)
    return _develop(film, anatomy, rng)


def _develop(film: Film, anatomy: Anatomy, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Grain, exposure and 8 bits."""
    film.pixels += 0.012 * film.noise(rng, GRAIN) + 0.01 * film.noise(rng, 60)
    low, high = 0.02, 0.98
    shown = np.clip((film.pixels - low) / (high - low), 0, 1) ** anatomy.exposure
    return np.asarray(shown * 255 + 0.5, np.uint8)
