"""The conformance kit: what other implementers run against their own code.

Public and free of pytest. `check_transport` judges an ops table; `vectors` judges a codec,
machines, the cut of parts and layout maths by the files of spec/vectors.
"""

from kvxfer.conformance.endpoint import Buffer, DramBuffer, Endpoint, MakePair, Pair, pair_maker
from kvxfer.conformance.kit import check_transport, transport_cases
from kvxfer.conformance.report import CaseResult, Report, Verdict

__all__ = [
    "Buffer",
    "CaseResult",
    "DramBuffer",
    "Endpoint",
    "MakePair",
    "Pair",
    "Report",
    "Verdict",
    "check_transport",
    "pair_maker",
    "transport_cases",
]
