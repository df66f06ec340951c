"""The seam-local proof: does an optimisation keep what its class promises, on this model?"""

from hasten.instrument.proof.judge import KINDS, judge
from hasten.instrument.proof.recording import Recording

__all__ = ["KINDS", "Recording", "judge"]
