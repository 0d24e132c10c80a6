"""Sizes as people write them."""

import re

_UNITS = {"": 1, **{letter: 1 << 10 * power for power, letter in enumerate("KMGT", 1)}}
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?) ?([KMGT]?)(I?B)?", re.IGNORECASE)


def parse_size(text: str) -> int | None:
    """Bytes of "20GiB", "500 MB" or a bare number; K, M, G, T with iB or nothing are powers of 1024, with B of 1000.
    None for anything else, and for nothing at all."""
    found = _SIZE.fullmatch(text.strip())
    if not found or not float(found[1]):
        return None
    unit = found[2].upper()
    decimal = unit and (found[3] or "").upper() == "B"
    return int(float(found[1]) * (1000 ** ("KMGT".index(unit) + 1) if decimal else _UNITS[unit]))
