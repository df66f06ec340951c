"""The seam-local proof: does an optimisation keep what its class promises, on this model?

One iteration is recorded: the inputs of each call of a root, the random state, buffers, flags and
autocast contexts it met, and the gradients that came back to its outputs. Later, at an iteration
border, the same call is made again under two settings, and the gradients are taken with the
recorded output gradients. Optimizer implementations step on copies. `.grad`, parameters, buffers,
optimizer state, random state and hooks of the script are afterwards as they were, to the bit.

**exact** Outputs, gradients and buffers have the same bits. The reference is replayed twice first:
a model that differs from itself is told so, and four times its own difference is allowed.

**rounding** The standard model of arithmetic (Higham, "Accuracy and Stability of Numerical
Algorithms", 2002, section 2.2) is fl(a op b) = (a op b)(1 + d), |d| <= u, with u = 2^-8 for
bfloat16, 2^-11 for float16 and TF32, 2^-24 for float32. What such d do to a gradient depends on
the model: 0.3 % for a bfloat16 LSTM, 20 % for a bfloat16 ResNet-18 with small batches, since units
near zero switch and batch norm divides. A worst-case bound says nothing here; so the model is
asked. The call is replayed with every d drawn at random, forward and backward (Monte Carlo
arithmetic: Parker 1997; Vignes 2004; that random d describe rounding well: Higham and Mary, "A new
approach to probabilistic rounding error analysis", 2019). In a reduced format only what autocast
runs in it is rounded, inputs of matrix products included. With three draws D, for a tensor g of n
elements out of N in all:

    error(g) = |g_c - g_r| / max(|g_r|, 0.1 |all_r| sqrt(n / N))
    bound(g) = min(0.9, max(least, factor * max(max_D error, half the median over tensors)))

and the same for all gradients as one vector (factor 2.5, cap 0.5: a turn by 30 degrees), for the
outputs, and for what the call adds to buffers. The floor by the whole norm
lets a gradient be noise that is zero but for rounding. `least` is u; in float32 the factor is 6 and
`least` 1.2e-5, a thousandth of the smallest fault that matters. There, sums round at each addition
and not once, and the draws round them so (`rounding`): a bias before a batch norm, whose gradient
is nothing but such roundings, needs that.

Bounds that wide would let a gradient pass that is 1 % too short, so two finer figures are judged
that don't drown in noise, because they are means over a whole gradient: its scale along the
reference, g_c.g_r / g_r.g_r, weighted towards the tensors with least noise, and the part of its
entries that turned to exact zeros. Rounding has no preferred sign, so over replays at moved
weights, inputs and output gradients the mean scale must be 1 within four standard errors, less what
the draws show that silent units shorten. In a reduced format there are six such replays or more, up
to twenty-four or six seconds, until the bound is below 0.65 %; three, where the scale is clearly no
hundredth off. docs/bounds.md derives this, with
what was measured.

**statistics** Where a call draws random numbers, a candidate may differ by drawing others. Numbers
that are only drawn in another format, or in another memory order (a dropout mask of images in
channels_last), are compared again with both drawn in float32, or in rows. Else eight random streams
are compared: as far apart as two streams, with one mean and one spread, is "another random stream",
and anything else an error. The real loss curve isn't looked at here.

**optimizer** Three steps with the recorded gradient from the recorded state, with the flags, groups
and strides the real optimizer has under each setting. Draws move parameters, gradients and state by
one rounding; at least one rounding of the parameter a step is allowed.

What a replay can't see: side effects of hooks and of a forward on objects outside the module, a
loss computed outside (that is float32 either way), how often the optimizer steps, what the loader
yields. What it can't judge is refused with the reason.
"""

from hasten.instrument.proof.judge import KINDS, judge
from hasten.instrument.proof.recording import Recording

__all__ = ["KINDS", "Recording", "judge"]
