"""Parts: how the tokens that a consumer wants are cut on the producer's grid (section 6.4)."""

from __future__ import annotations

import itertools
from typing import Any

from vectorgen.words import Plain

EIGHT = list("abcdefgh")
PARTS_MAX = 1024


def group(number: int = 0, layers: list[str] | None = None, shared: str | None = None) -> Plain:
    """`layers`: the producer's list of this group; `shared`: those that the two ranks share."""
    whole = EIGHT if layers is None else layers
    return {
        "group": number,
        "producer_layers": whole,
        "shared_layers": whole if shared is None else list(shared),
    }


def case(
    name: str,
    note: str,
    rules: str,
    tokens: tuple[int, int],
    grid: tuple[int, int],
    parts: list[list[int]],
    *,
    features: str = "STREAMING LAYER_RANGES",
    groups: list[Plain] | None = None,
    rank: int = 0,
) -> Plain:
    """`grid`: part_tokens and part_layers of the producer's DESCRIBE."""
    return {
        "id": name,
        "note": note,
        "flags": [],
        "rules": [f"K-{rule}" for rule in rules.split()],
        "verdict": "accept",
        "producer_rank": rank,
        "tokens": list(tokens),
        "part_tokens": grid[0],
        "part_layers": grid[1],
        "features": features.split(),
        "groups": [group()] if groups is None else groups,
        "parts": parts,
    }


def spans(*borders: int, rank: int = 0, number: int = 0) -> list[list[int]]:
    """Parts from each border to the next."""
    return [[rank, number, a, b] for a, b in itertools.pairwise(borders)]


def cases() -> list[Plain]:
    wide: dict[str, Any] = {"tokens": (0, 20_480), "grid": (10, 0)}
    many = [group(n) for n in range(3)]
    return [
        case("no-grid", "One part for each group.", "6.4.1", (5, 50), (0, 0), spans(5, 50)),
        case(
            "two-groups",
            "In each of them.",
            "6.4.1",
            (5, 50),
            (0, 0),
            spans(5, 50) + spans(5, 50, number=3),
            groups=[group(0), group(3)],
        ),
        case(
            "rank-of-the-producer",
            "It is the first item.",
            "6.4.1",
            (0, 4),
            (0, 0),
            spans(0, 4, rank=7),
            rank=7,
        ),
        case(
            "cut-at-multiples",
            "Counted from token 0, not from the first wanted.",
            "6.4.9",
            (5, 50),
            (16, 0),
            spans(5, 16, 32, 48, 50),
        ),
        case("begins-on-the-grid", "No empty part.", "6.4.9", (16, 40), (16, 0), spans(16, 32, 40)),
        case("ends-on-the-grid", "No empty part.", "6.4.9", (3, 32), (16, 0), spans(3, 16, 32)),
        case("one-cell", "Less than a cell is a part.", "6.4.9", (17, 18), (16, 0), spans(17, 18)),
        case("grid-wider-than-the-prompt", "One part.", "6.4.9", (0, 50), (4096, 0), spans(0, 50)),
        case(
            "grid-of-one-token",
            "A part for each token.",
            "6.4.9",
            (3, 6),
            (1, 0),
            spans(3, 4, 5, 6),
        ),
        case(
            "streaming-is-not-common",
            "No cut.",
            "4.5.3 6.4.9",
            (5, 50),
            (16, 0),
            spans(5, 50),
            features="LAYER_RANGES",
        ),
        case(
            "layers-of-the-last-cell",
            "The cells before it stay whole.",
            "6.4.10",
            (0, 20),
            (16, 3),
            [[0, 0, 0, 16], [0, 0, 16, 20, 0, 3], [0, 0, 16, 20, 3, 6], [0, 0, 16, 20, 6, 8]],
        ),
        case(
            "layers-without-a-grid-of-tokens",
            "All of it is the last range.",
            "6.4.10",
            (0, 20),
            (0, 4),
            [[0, 0, 0, 20, 0, 4], [0, 0, 0, 20, 4, 8]],
        ),
        case(
            "layers-are-not-common",
            "No cut by layers.",
            "4.5.3 6.4.10",
            (0, 20),
            (16, 3),
            spans(0, 16, 20),
            features="STREAMING",
        ),
        case(
            "layers-only-are-common",
            "No cut by tokens.",
            "4.5.3 6.4.10",
            (0, 20),
            (16, 4),
            [[0, 0, 0, 20, 0, 4], [0, 0, 0, 20, 4, 8]],
            features="LAYER_RANGES",
        ),
        case(
            "no-feature-is-common",
            "No cut at all.",
            "4.5.2 4.5.3",
            (0, 20),
            (16, 3),
            spans(0, 20),
            features="",
        ),
        case(
            "layers-that-are-not-shared",
            "A piece without a shared layer is left out.",
            "6.4.10",
            (0, 4),
            (0, 4),
            [[0, 0, 0, 4, 4, 8]],
            groups=[group(shared="efgh")],
        ),
        case(
            "layers-shared-in-part",
            "A piece with one shared layer stays.",
            "6.4.10",
            (0, 4),
            (0, 3),
            [[0, 0, 0, 4, 3, 6], [0, 0, 0, 4, 6, 8]],
            groups=[group(shared="fg")],
        ),
        case(
            "layers-in-the-producers-order",
            "Positions in its list, not in the alphabet.",
            "6.4.10",
            (0, 4),
            (0, 2),
            [[0, 0, 0, 4, 0, 2]],
            groups=[group(layers=list("hgfe"), shared="gh")],
        ),
        case(
            "more-layers-to-a-piece-than-there-are",
            "One piece with all of them.",
            "6.4.10",
            (0, 4),
            (0, 100),
            [[0, 0, 0, 4, 0, 8]],
        ),
        case(
            "as-many-as-may-be",
            "1024 parts are not too many.",
            "6.4.11",
            (0, 10_240),
            (10, 0),
            spans(*range(0, 10_241, 10)),
        ),
        case(
            "one-too-many",
            "The grid is doubled.",
            "6.4.11",
            (0, 10_241),
            (10, 0),
            spans(*range(0, 10_241, 20), 10_241),
        ),
        case(
            "twice-too-many",
            "2048 cells become 1024.",
            "6.4.11",
            wide["tokens"],
            wide["grid"],
            spans(*range(0, 20_481, 20)),
        ),
        case(
            "too-many-by-a-token",
            "Doubled once it is 1025, so once more.",
            "6.4.11",
            (5, 20_485),
            (10, 0),
            spans(5, *range(40, 20_485, 40), 20_485),
        ),
        case(
            "too-many-in-all-groups",
            "The bound is for all groups of the edge together.",
            "6.4.11",
            (0, 5_120),
            (10, 0),
            [p for n in range(3) for p in spans(*range(0, 5_120, 20), 5_120, number=n)],
            groups=many,
        ),
        case(
            "too-many-by-layers",
            "Then no cut by layers, and the grid itself will do.",
            "6.4.11",
            (0, 10_240),
            (10, 4),
            spans(*range(0, 10_241, 10)),
        ),
    ]
