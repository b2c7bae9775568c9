"""The bytes of every tensor, written so that a record can hold them: experts of one size are one entry."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["pack_sizes", "unpack_sizes"]

# A model of a trillion parameters has some 300 thousand; what a file claims beyond that is not believed.
_MOST_TENSORS = 4_000_000
_RANGE = re.compile(r"\[(\d{1,9})-(\d{1,9})\]", re.ASCII)


def pack_sizes(sizes: Mapping[str, int]) -> dict[str, int] | None:
    """Return ``sizes`` with one entry for neighbours: `experts.[0-255].w1.weight` stands for 256 tensors of that size.

    The last number that is a part of its own counts. None for names that look like such an entry themselves.
    """
    runs: dict[tuple[str, str, int], list[int]] = {}
    packed: dict[str, int] = {}
    for name, nbytes in sizes.items():
        if "[" in name:
            return None
        parts = name.split(".")
        place = next((place for place in range(len(parts) - 1, -1, -1) if _is_number(parts[place])), None)
        if place is None:
            packed[name] = nbytes
        else:
            start = sum(len(part) + 1 for part in parts[:place])
            key = name[:start], name[start + len(parts[place]) :], nbytes
            runs.setdefault(key, []).append(int(parts[place]))
    for (before, after, nbytes), numbers in runs.items():
        for first, last in _ranges(sorted(numbers)):
            packed[f"{before}{first if first == last else f'[{first}-{last}]'}{after}"] = nbytes
    return packed


def _is_number(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) < 10 and (text[0] != "0" or text == "0")


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def unpack_sizes(packed: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of each tensor by its name. Raises ValueError for ranges that nobody could have packed."""
    sizes: dict[str, int] = {}
    for name, nbytes in packed.items():
        found = _RANGE.search(name)
        if found is None:
            sizes[name] = nbytes
            continue
        first, last = int(found[1]), int(found[2])
        if not first < last or len(sizes) + last - first > _MOST_TENSORS:
            raise ValueError(f"{name}: not a range of tensors")
        before, after = name[: found.start()], name[found.end() :]
        for number in range(first, last + 1):
            sizes[f"{before}{number}{after}"] = nbytes
    return sizes
