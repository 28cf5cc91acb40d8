"""Typefaces reduced to the path of a pen: for every character, how far each place is from its centre line.

A pen of radius r that follows the line inks exactly the places within r of it, so any stroke width can be had from one
picture. The typefaces come with matplotlib; nothing here depends on data.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import make_interp_spline
from scipy.ndimage import center_of_mass, distance_transform_edt, label

from wholegrain.data.handwritten_strokes import HANDS, Stroke
from wholegrain.errors import DataError

Bitmaps = NDArray[np.bool_]

# Named one by one, so that a face which a later matplotlib adds does not change what a seed gives. Left out: faces
# without letters or digits, slanted copies of upright ones (a writer's slant does that) and zeros with a dot inside.
FACES = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSerif-Italic",
    "STIXGeneral", "STIXGeneralItalic", "STIXGeneralBolIta",
    "cmr10", "cmb10", "cmss10", "cmti10", "cmtt10",
)  # fmt: skip
SIDE = 56
"""Places along one side of a picture."""
CAPITAL = 40
"""Height of a capital letter, in places."""

FINE = 2  # pixels per place while thinning
MARGIN = 5 * FINE  # for half the widest pen: ink at the border would be smeared over all that lies beyond it
LARGEST = SIDE * FINE - 2 * MARGIN


@cache
def distances(characters: str, hands: int = 1) -> NDArray[np.float32]:
    """[face, character, SIDE, SIDE]: distance to the centre line, in places.

    After the FACES come so many of the HANDS: each is the first face, with the characters of that hand in its place.
    """
    lines = np.stack([thin_strokes(_face(name, characters)) for name in FACES])
    by_hand = np.repeat(lines[:1], hands, axis=0)
    for face, hand in zip(by_hand, HANDS, strict=False):
        for number, character in enumerate(characters):
            if character in hand:
                face[number] = _strokes(hand[character])
    pictures = _distances(np.concatenate([lines, by_hand]))
    pictures.setflags(write=False)
    return pictures


def _distances(lines: Bitmaps) -> NDArray[np.float32]:
    pictures = np.empty((*lines.shape[:2], SIDE, SIDE), np.float32)
    for place in np.ndindex(lines.shape[:2]):
        pictures[place] = distance_transform_edt(~_centre(lines[place]))[::FINE, ::FINE] / FINE
    return pictures


def _centre(line: Bitmaps) -> Bitmaps:
    """The line moved so that its middle is the picture's, as far as the picture has room."""
    on = np.argwhere(line)
    wanted = np.rint((len(line) - 1) / 2 - on.mean(axis=0))
    shift = np.clip(wanted, MARGIN - on.min(axis=0), len(line) - 1 - MARGIN - on.max(axis=0)).astype(int)
    return np.roll(line, (shift[0], shift[1]), axis=(0, 1))


def thin_strokes(drawn: Bitmaps) -> Bitmaps:
    """[picture, row, column] strokes worn away from both sides until one pixel is left [Zhang and Suen, 1984].

    >>> thin_strokes(np.pad(np.ones((1, 3, 7), bool), ((0, 0), (1, 1), (1, 1)))).sum(axis=1)
    array([[0, 0, 1, 1, 1, 1, 0, 0, 0]])
    """
    lines = drawn.copy()
    worn = True
    while worn:
        worn = False
        for corner in (0, 1):
            border = _border(lines, corner)
            worn |= bool(border.any())
            lines &= ~border
    return lines | _lost_blots(drawn, lines)


def _lost_blots(drawn: Bitmaps, lines: Bitmaps) -> Bitmaps:
    """The middle of every blot that was worn away altogether, such as the dot of an i."""
    middles = np.zeros_like(lines)
    blots, count = label(drawn, structure=_WITHIN_PICTURE)
    kept = np.unique(blots[lines])
    for place in center_of_mass(drawn, blots, np.setdiff1d(np.arange(1, count + 1), kept)):
        middles[tuple(np.rint(place).astype(int))] = True
    return middles


def _border(lines: Bitmaps, corner: int) -> Bitmaps:
    """Pixels on two sides of a stroke (south-east, then north-west) that no line needs to hold together."""
    ring = [np.roll(lines, shift, axis=(1, 2)) for shift in _RING]
    north, east, south, west = ring[0], ring[2], ring[4], ring[6]
    count = np.sum(ring, axis=0, dtype=np.uint8)
    rises = np.sum([~a & b for a, b in zip(ring, ring[1:] + ring[:1], strict=True)], axis=0, dtype=np.uint8)
    near = north & west if corner else south & east
    far = (east | south) if corner else (north | west)
    border: Bitmaps = lines & (count >= 2) & (count <= 6) & (rises == 1) & ~(near & far)
    return border


# Pixels touch each other by sides and corners, and never those of another picture.
_WITHIN_PICTURE = np.stack([np.zeros((3, 3), bool), np.ones((3, 3), bool), np.zeros((3, 3), bool)])

# Shifts that bring the neighbours, clockwise from the north, to a pixel's own place.
_RING = ((1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1))


def _face(name: str, characters: Sequence[str]) -> Bitmaps:
    """[character, row, column] filled shapes; capitals are CAPITAL places high, each is centred by its own extent."""
    path = _fonts() / f"{name}.ttf"
    if not path.is_file():
        raise DataError(f"The typeface '{path.name}' is not where matplotlib keeps its own; install matplotlib anew.")
    from PIL import ImageFont

    trial = 200.0
    size = trial * CAPITAL * FINE / _extent(ImageFont.truetype(path, trial), "I")
    return np.stack([_shape(path, size, character) for character in characters])


def _fonts() -> Path:
    try:
        import matplotlib
        import PIL  # noqa: F401 (comes with matplotlib, and draws its typefaces)
    except ImportError as error:
        raise DataError(
            "The data set 'glyphs' draws typefaces of matplotlib: pip install 'wholegrain[data]'."
        ) from error
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


def _shape(path: Path, size: float, character: str) -> Bitmaps:
    from PIL import Image, ImageDraw, ImageFont

    face = ImageFont.truetype(path, size)
    face = ImageFont.truetype(path, size * min(1.0, LARGEST / _extent(face, character)))
    left, top, right, bottom = face.getbbox(character)
    canvas = Image.new("L", (SIDE * FINE, SIDE * FINE))
    corner = (SIDE * FINE / 2 - (left + right) / 2, SIDE * FINE / 2 - (top + bottom) / 2)
    ImageDraw.Draw(canvas).text(corner, character, font=face, fill=255)
    shape: Bitmaps = np.asarray(canvas) > 127
    return shape


def _strokes(strokes: Sequence[Stroke]) -> Bitmaps:
    """Thin smooth lines through the points of each stroke."""
    from PIL import Image, ImageDraw

    canvas = Image.new("L", (SIDE * FINE, SIDE * FINE))
    for stroke in strokes:
        smooth = make_interp_spline(np.arange(len(stroke)), stroke, k=min(3, len(stroke) - 1))
        points = FINE * (SIDE / 2 + CAPITAL * smooth(np.linspace(0, len(stroke) - 1, 60)))
        ImageDraw.Draw(canvas).line([(along, down) for along, down in points], fill=255)
    lines: Bitmaps = np.asarray(canvas) > 0
    return lines


def _extent(face: Any, character: str) -> float:
    """Height or width of a character, whichever is more."""
    left, top, right, bottom = face.getbbox(character)
    return float(max(right - left, bottom - top))
