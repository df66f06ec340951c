"""Evidence against a log ratio, as the wealth of bets that are fair when it is the true one.

Let d be the log ratio of a pair's two block times and t the supposed true one. Two opponents take
the bets; three quarters of the money go to the first and the rest to the second, and what both
are worth together is the evidence (an average of e-processes is one):

*The coin.* Order inside a pair is random, so if t is true the sign of d - t is a fair coin given
its size and all that went before, whatever the machine's noise does: drift, bursts, heavy tails,
autocorrelation. Betting the share p(d) : p(2t - d) on the two faces multiplies wealth by
2 p(d) / (p(d) + p(2t - d)), where p is any prediction of d made before the pair. This is exact for
every kind of noise (Ramdas, Ruf, Larsson and Koolen 2020, arXiv:2009.03167, where such processes
are shown to be the only admissible ones). But a coin at most doubles money, so that one of twelve
candidates cannot be told in fewer than about 14 pairs, however large its effect.

*The noise.* To decide large effects in five or six pairs something must be known of sizes:
that noise is unimodal, roughly Student's t with 2 degrees of freedom or lighter, of any scale.
Then p's likelihood over the best likelihood of all scales round t is an e-process (universal
inference: Wasserman, Ramdas and Balakrishnan 2020, doi:10.1073/pnas.1922664117). Noise that jumps
between two values (a scheduler's time slices, workers that deliver in bursts) looks like an effect
when the coin falls one way five times. So this p never supposes noise smaller than was seen between
blocks of one and the same setting: then an effect counts here only as far as it stands out from
those. Where no such noise is known this opponent is not played.

p is a Bayes mixture over Student densities. Because tails are heavy, a single absurd block moves
neither p nor the stakes much; because a trace of the prior is mixed in again after every pair, p
follows when the machine changes. Neither touches validity, which holds for every p.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# Smallest scale of noise that bets suppose (log ratio). Time slices and clocks are never better.
FINEST = 0.005
# The same for the second opponent, which must not take chance agreement for a quiet machine.
CAUTIOUS = 0.01
# Share of the money that goes to the coin: small effects are its affair, and it is exact.
COIN_SHARE = 0.75
# Share of the prior that is mixed in again after each pair.
FORGETTING = 1e-3
# Supposed effects in units of the supposed scale. The coin cannot gain from sharp predictions of
# large effects; the second opponent can, so there neighbours are never more than two apart.
COIN_EFFECTS = np.array([0.0, 0.3, 0.6, 1.0, 1.6, 2.4, 3.5, 5.0])
NOISE_EFFECTS = np.array(
    [0.0, 0.4, 0.8, 1.3, 2.0, 3.0, 4.2, 5.5, 7.0, 8.5, *np.arange(10.0, 31, 2)]
)
# Scales of noise over which the second opponent's null takes its best: 0.0005 to 4.4.
SCALES = 0.0005 * np.power(1.4, np.arange(28, dtype=np.float64))


def student(x: Array, scale: Array) -> Array:
    """Density of Student's t with 2 degrees of freedom, centred at 0; broadcasts."""
    spread = 1.0 + 0.5 * np.square(x / scale)
    density: Array = 0.35355339059327373 / (scale * spread * np.sqrt(spread))
    return density


class Prediction:
    """Bayes mixture that predicts the next log ratio, for many comparisons at once.

    Args:
        smallest: smallest supposed scale of the noise, shape (comparisons,).
        doublings: how many scales there are, each twice the one before.
        effects: supposed effects in units of the scale, from 0 up; also their negatives are.
    """

    def __init__(self, smallest: Array, doublings: int, effects: Array) -> None:
        effects = np.concatenate([-effects[:0:-1], effects])
        scales = smallest[:, None] * 2.0 ** np.arange(doublings)
        self._centres = (scales[:, :, None] * effects).reshape(len(smallest), -1)
        self._scales = np.repeat(scales, len(effects), axis=1)
        self._prior = 1.0 / self._centres.shape[1]
        self._weights = np.full(self._centres.shape, self._prior)

    def density(self, x: Array) -> Array:
        """Predicted density at points of shape (comparisons, points)."""
        each = student(x[:, :, None] - self._centres[:, None, :], self._scales[:, None, :])
        density: Array = np.einsum("cpa,ca->cp", each, self._weights)
        return density

    def learn(self, x: Array) -> None:
        """Bayes' rule for the log ratios seen, shape (comparisons,)."""
        self._weights *= student(x[:, None] - self._centres, self._scales)
        self._weights /= self._weights.sum(axis=1, keepdims=True)
        self._weights *= 1.0 - FORGETTING
        self._weights += FORGETTING * self._prior


class Wealth:
    """Log wealth against every supposed true log ratio, for many comparisons at once.

    Args:
        supposed: log ratios to bet against, shape (ratios,).
        noise: what pairs of blocks of one and the same setting differ by (see
            `planning.block_noise`), shape (comparisons,); `None` plays the coin alone.
        comparisons: how many run in parallel; all see pair after pair together.

    Attributes:
        current: log wealth now, shape (comparisons, ratios); 0 at the start.
        highest: its running maximum. By Ville's inequality it exceeds log(1 / alpha) with a chance
            of at most alpha where the supposed ratio is the true one, over all pairs together.
    """

    def __init__(self, supposed: Array, noise: Array | None = None, comparisons: int = 1) -> None:
        self._supposed = supposed
        shape = (comparisons, len(supposed))
        self._coin = np.zeros(shape)
        self._prediction = Prediction(np.full(comparisons, FINEST), 8, COIN_EFFECTS)
        self._cautious: Prediction | None = None
        if noise is not None:
            self._cautious = Prediction(np.maximum(noise, CAUTIOUS), 6, NOISE_EFFECTS)
            self._likelihood = np.zeros((comparisons, 1))
            self._null = np.zeros((*shape, len(SCALES)))
        self.current = np.zeros(shape)
        self.highest = np.zeros(shape)

    def bet(self, x: Array) -> None:
        """Settles one more pair for each comparison: log ratios of shape (comparisons,)."""
        self._coin += self._coin_gain(x)
        self.current = self._coin
        if self._cautious is not None:
            noise = self._noise_wealth(self._cautious, x)
            self.current = np.logaddexp(
                self._coin + np.log(COIN_SHARE), noise + np.log(1.0 - COIN_SHARE)
            )
        self.highest = np.maximum(self.highest, self.current)

    def _coin_gain(self, x: Array) -> Array:
        points = np.concatenate([x[:, None], 2.0 * self._supposed - x[:, None]], axis=1)
        density = self._prediction.density(points)
        self._prediction.learn(x)
        seen, mirrored = density[:, :1], density[:, 1:]
        gain: Array = np.log(2.0 * seen / (seen + mirrored))
        return gain

    def _noise_wealth(self, cautious: Prediction, x: Array) -> Array:
        self._likelihood += np.log(cautious.density(x[:, None]))
        cautious.learn(x)
        away = x[:, None] - self._supposed
        self._null += np.log(student(away[:, :, None], SCALES))
        wealth: Array = self._likelihood - self._null.max(axis=2)
        return wealth
