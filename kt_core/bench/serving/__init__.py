"""A server's speed as its clients see it: requests of known lengths, timed from outside. No torch, no extension."""

from kt_core.bench.serving.figures import Figures, summary
from kt_core.bench.serving.limit import Conditions, Limit, likely_limit
from kt_core.bench.serving.requests import Sample, Server
from kt_core.bench.serving.workload import MOST_TOKENS, Case, cases, parse_lengths

__all__ = [
    "MOST_TOKENS",
    "Case",
    "Conditions",
    "Figures",
    "Limit",
    "Sample",
    "Server",
    "cases",
    "likely_limit",
    "parse_lengths",
    "summary",
]
