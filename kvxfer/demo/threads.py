"""How many threads the matrix library may use.

Owns one decision and imports no numpy: one thread per engine. Prefill and
decode engine each have a thread of their own, the matrices are small, and on
two cores a second matrix thread makes the small products slower; with one thread
the order of additions does not depend on how many cores a machine has.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def use_one_matrix_thread(environ: MutableMapping[str, str] | None = None) -> None:
    """Ask for one matrix thread where the user has not asked for another number.

    Acts only in a process that has not loaded numpy yet; child processes inherit it.
    """
    target = os.environ if environ is None else environ
    for name in VARIABLES:
        target.setdefault(name, "1")
