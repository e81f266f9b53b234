"""The conformance kit: what other implementers run against their own code.

Public and free of pytest. `check_transport` judges an ops table (`pair_maker` and
`far_pair_maker` give it two ends in one process, or in two); `vectors` judges a codec,
machines, the cut of parts and layout maths by the files of spec/vectors.
"""

from kvxfer.conformance.endpoint import (
    Buffer,
    DramBuffer,
    Endpoint,
    FarControl,
    MakePair,
    Pair,
    pair_maker,
)
from kvxfer.conformance.far import FarEndGone, far_pair_maker
from kvxfer.conformance.kit import check_transport, transport_cases
from kvxfer.conformance.report import CaseResult, Report, Verdict
from kvxfer.conformance.subject import check_installed

__all__ = [
    "Buffer",
    "CaseResult",
    "DramBuffer",
    "Endpoint",
    "FarControl",
    "FarEndGone",
    "MakePair",
    "Pair",
    "Report",
    "Verdict",
    "check_installed",
    "check_transport",
    "far_pair_maker",
    "pair_maker",
    "transport_cases",
]
