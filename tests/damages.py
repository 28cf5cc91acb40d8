"""What can happen to the bytes of a file, for hypothesis to draw from."""

from collections.abc import Callable

from hypothesis import strategies as st

Damage = Callable[[bytes], bytes]

PLACE = st.floats(0, 1, exclude_max=True)
"""A share of the file's length, so that one strategy fits files of any size."""


class Flip:
    """One bit, or one byte that becomes another."""

    def __init__(self, place: float, mask: int) -> None:
        self.place, self.mask = place, mask

    def __call__(self, content: bytes) -> bytes:
        changed = bytearray(content)
        changed[int(self.place * len(content))] ^= self.mask
        return bytes(changed)

    def __repr__(self) -> str:
        return f"Flip({self.place}, {self.mask:#x})"


class Cut:
    """The end is gone."""

    def __init__(self, place: float) -> None:
        self.place = place

    def __call__(self, content: bytes) -> bytes:
        return content[: int(self.place * len(content))]

    def __repr__(self) -> str:
        return f"Cut({self.place})"


class Insert:
    """Bytes that do not belong there; with `over`, in place of others."""

    def __init__(self, place: float, more: bytes, over: bool) -> None:
        self.place, self.more, self.over = place, more, over

    def __call__(self, content: bytes) -> bytes:
        at = int(self.place * len(content))
        return content[:at] + self.more + content[at + self.over * len(self.more) :]

    def __repr__(self) -> str:
        return f"Insert({self.place}, {self.more!r}, {self.over})"


class All:
    """One after the other."""

    def __init__(self, parts: list[Damage]) -> None:
        self.parts = parts

    def __call__(self, content: bytes) -> bytes:
        for part in self.parts:
            content = part(content) if content else content
        return content

    def __repr__(self) -> str:
        return f"All({self.parts})"


def damages() -> st.SearchStrategy[Damage]:
    """Mostly one damage, sometimes a few."""
    flip = st.builds(Flip, PLACE, st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128]) | st.integers(1, 255))
    insert = st.builds(Insert, PLACE, st.binary(min_size=1, max_size=40), st.booleans())
    one = flip | flip | st.builds(Cut, PLACE) | insert
    return one | st.builds(All, st.lists(one, min_size=2, max_size=4))
