"""Synthetic writers: 28 × 28 images of digits and letters, each writer with a hand of their own; nobody real is in it.

A writer follows the centre lines of typefaces with a pen. What is the writer's own – which face for which character,
slant, size, proportions, pen, and how lines bend – stays; each item adds a little of its own. Items of one writer are
therefore alike, as in FEMNIST, whose geometry (3,500 writers, 145 items each) is the default.

Ink is bright on a dark ground (255 on 0), as in MNIST; capitals and digits are about 20 pixels high, in the middle. One
writer's items depend on the seed and the writer's number alone, not on how many writers there are. Other versions of
the library that draws typefaces may differ in single pixels.

How much styles vary was chosen with MNIST in view, its test part included: it is unpaid.
"""

from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np
from numpy.typing import NDArray

from wholegrain import _check
from wholegrain._random import Purpose, generator
from wholegrain.data.centrelines import SIDE, distances
from wholegrain.data.dataset import Dataset
from wholegrain.data.handwritten_strokes import HANDS
from wholegrain.data.subjects import SubjectData
from wholegrain.errors import SpecError

CHARACTERS = digits + ascii_uppercase + ascii_lowercase
"""Class c is the c-th of these, as in FEMNIST."""
PIXELS = 28
SCALE = np.float32(SIDE / PIXELS)

Floats = NDArray[np.float32]


def glyphs(*, writers: int = 3500, items: int = 145, classes: int = 62, hands: int = 1, seed: int = 0) -> Dataset:
    """`items` characters by each of `writers`, all classes about equally often; `classes` = 10 gives digits alone.

    `hands` says in how many ways digits are also written by hand, from 1 to 4; with more than one, most of them are.
    Inputs are uint8 [writers · items, 784]. Nothing says which silo holds an item: a partitioner decides.
    """
    _check.count("writers", writers)
    _check.count("items", items)
    if not 2 <= _check.count("classes", classes) <= len(CHARACTERS):
        raise SpecError(f"classes must lie between 2 and {len(CHARACTERS)}, not {classes}.")
    if not 1 <= _check.count("hands", hands) <= len(HANDS):
        raise SpecError(f"hands must lie between 1 and {len(HANDS)}, not {hands}.")
    lines = distances(CHARACTERS[:classes], hands)
    images = np.empty((writers, items, PIXELS * PIXELS), np.uint8)
    targets = np.empty((writers, items), np.int64)
    for writer in range(writers):
        draws = generator(seed, Purpose.SYNTHETIC, "glyphs", writer)
        hand = Hand.draw(draws, lines.shape[0], lines.shape[1], hands)
        targets[writer] = _deck(draws, classes, items)
        images[writer] = hand.write(targets[writer], lines, draws)
    data = SubjectData(images.reshape(-1, PIXELS * PIXELS), targets.ravel(), np.repeat(np.arange(writers), items))
    return Dataset(name="glyphs", data=data, classes=classes, items_per_subject=items)


def _deck(draws: np.random.Generator, classes: int, items: int) -> NDArray[np.int64]:
    """Class numbers in random order, each as often as any other, or once more."""
    order = draws.permutation(classes)
    return draws.permutation(order[np.arange(items) % classes])


def _waves() -> Floats:
    """[function, pixel]: a constant, the two coordinates, and slow waves over the image in both directions."""
    middle = (PIXELS - 1) / 2
    rows, columns = np.divmod(np.arange(PIXELS * PIXELS), PIXELS)
    y, x = rows - middle, columns - middle
    waves = [
        np.cos(np.pi * down * (y / PIXELS + 0.5)) * np.cos(np.pi * along * (x / PIXELS + 0.5))
        for down, along in _ORDERS
    ]
    return np.stack([np.ones_like(x), y, x, *waves]).astype(np.float32)


_ORDERS = ((0, 2), (2, 0), (1, 1), (1, 2), (2, 1), (0, 3), (3, 0), (2, 2))
_WAVES = _waves()
# A wave twice as fast bends a line twice as sharply; slower ones may be larger.
_GENTLE = np.array([1 / np.hypot(*order) for order in _ORDERS])


@dataclass(frozen=True, eq=False)
class Hand:
    """What is a writer's own.

    The place of a pixel in the picture of a character is a sum over `_WAVES`; `place` holds its coefficients for each
    class, [class, 2, function]. `pen` is the radius of a stroke and `edge` how fast its ink fades, in pixels.
    """

    faces: NDArray[np.int64]  # [class]
    place: NDArray[np.float64]
    pen: float
    edge: float

    @staticmethod
    def draw(draws: np.random.Generator, faces: int, classes: int, hands: int = 1) -> "Hand":
        """A hand at random."""
        place = np.zeros((classes, 2, len(_WAVES)))
        place[:, :, 1:3] = _frame(draws) + _near(draws, 0.04, (classes, 2, 2))
        bends = _near(draws, 1.1, (1, 2, len(_ORDERS))) + _near(draws, 1.4, (classes, 2, len(_ORDERS)))
        place[:, :, 3:] = bends * _GENTLE
        return Hand(_faces(draws, faces, classes, hands), place, draws.uniform(0.7, 1.8), draws.uniform(0.7, 1.3))

    def write(self, targets: NDArray[np.int64], lines: Floats, draws: np.random.Generator) -> NDArray[np.uint8]:
        """[item, pixel] images of these classes."""
        places = self.place[targets]
        places[:, :, 0] += _near(draws, 0.7, places.shape[:2])
        places[:, :, 1:3] += _near(draws, 0.04, (len(targets), 2, 2))
        places[:, :, 3:] += _near(draws, 0.8, (len(targets), 2, len(_ORDERS))) * _GENTLE
        pens = (self.pen * np.exp(_near(draws, 0.08, (len(targets), 1)))).astype(np.float32)
        pictures = self.faces[targets] * lines.shape[1] + targets
        away = _read(lines, pictures, places.astype(np.float32) @ _WAVES) / SCALE
        ink = np.clip((pens - away) * np.float32(255 / self.edge) + np.float32(127.5), 0, 255)
        images: NDArray[np.uint8] = ink.astype(np.uint8)
        return images


def _read(lines: Floats, pictures: NDArray[np.int64], places: Floats) -> Floats:
    """[item, pixel] what the item's picture holds at [item, 2, pixel] places, by bilinear interpolation."""
    places = np.clip(places * SCALE + (SIDE - 1) / 2, 0, SIDE - 1.01, dtype=np.float32)
    corner = places.astype(np.int32)
    down, along = np.moveaxis(places - corner, 1, 0)
    first = (pictures[:, None] * SIDE + corner[:, 0]) * SIDE + corner[:, 1]
    held = lines.ravel()
    above, below = held[first], held[first + SIDE]  # copies, so that they may be changed
    above += along * (held[first + 1] - above)
    below += along * (held[first + SIDE + 1] - below)
    read: Floats = above + down * (below - above)
    return read


def _near(draws: np.random.Generator, spread: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Normal around 0, and never beyond two spreads, where characters would become blots."""
    return spread * np.clip(draws.normal(size=shape), -2, 2)


def _faces(draws: np.random.Generator, faces: int, classes: int, hands: int) -> NDArray[np.int64]:
    """A face for each class: mostly the writer's favourite, and what is written by hand mostly so.

    With more than one hand, a 1 always is: no hand gives it the foot that typefaces do.
    """
    favourite, other = draws.integers(faces), draws.integers(faces, size=classes)
    chosen = np.where(draws.random(classes) < 0.5, favourite, other)
    written = set().union(*HANDS[:hands])
    by_hand = np.isin(np.arange(classes), [CHARACTERS.index(character) for character in written])
    luck = draws.random(classes)
    if hands == 1:
        return np.where(by_hand & (luck < 0.6), faces - 1, chosen)
    luck[1] = 0
    return np.where(by_hand & (luck < 0.85), faces - hands + draws.integers(hands, size=classes), chosen)


def _frame(draws: np.random.Generator) -> NDArray[np.float64]:
    """[2, 2] from a pixel's offset (down, along) to the place's: size, proportions, slant and turn."""
    size, aspect = draws.uniform(0.9, 1.12), np.exp(0.15 + _near(draws, 0.2, ()))
    slant, turn = 0.1 + _near(draws, 0.2, ()), _near(draws, 0.06, ())
    stretch = np.diag([aspect**0.5, aspect**-0.5]) / size
    lean = np.array([[1.0, 0.0], [slant, 1.0]])
    rotate = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    frame: NDArray[np.float64] = stretch @ lean @ rotate
    return frame
