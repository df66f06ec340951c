"""Sequential verdicts on settings that are compared by pairs of interleaved blocks.

A block's datum is its total time, a pair's datum the logarithm of reference over candidate time.
Evidence is the wealth of a gambler who bets on that datum (`wealth`); a `Family` shares out the
allowed chance of any false alarm over its members, each a `Comparison` that may be looked at, and
stopped, after every pair (`comparison`); `planning` says how long blocks should be and how many
pairs an effect takes.
"""

from hasten.statistics.comparison import Comparison, Family, Interval, Verdict
from hasten.statistics.planning import block_length, block_noise, pairs_needed

__all__ = [
    "Comparison",
    "Family",
    "Interval",
    "Verdict",
    "block_length",
    "block_noise",
    "pairs_needed",
]
