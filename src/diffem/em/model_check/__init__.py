"""A check of the stated model y = Ax + e with the Gaussian start.

The Gaussian start predicts the mean and covariance of every observation exactly, so common mistakes can be detected
before anything is trained: a wrong noise level (`noise.py`), operators of other observations (`pairing.py`), masks that
are shifted or permuted (`masks.py`) and inconsistent units (`scale.py`). Only means and covariances are used: x need
not be Gaussian. If the observations do not decide a question, the check adds a note instead of a warning.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ...core.counting import count_of
from ...core.randomness import Stream
from ...observations import Observations
from ...observations.features import is_simulated
from ...priors import GaussianPrior, Prior
from ...runs.recipe import Recipe
from .masks import MaskEvidence, mask_evidence
from .noise import NoiseEvidence, noise_evidence
from .pairing import PairingEvidence, UnseenObservations, pairing_evidence
from .scale import deviation, narrow_columns, rounding_step, smallest_std
from .significance import CHECK_LEVEL, one_sided, two_sided

CHECKED = 1024  # largest number of observations that are checked
TESTS = 5  # twice the noise, half the noise, pairing, masks, noise larger than the data
REPEATED_SHARE = 0.01  # fraction of one value above which continuous noise is impossible
ALL_NOISE = 0.9  # mean squared deviation from the mean, in units of the noise; correct models have at least 1


@dataclass
class ModelCheck:
    """The metrics, warnings and notes of the check."""

    metrics: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@torch.no_grad()
def check_model(
    prior: Prior, train: Observations, held_out: Observations | None, recipe: Recipe, device: torch.device | str = "cpu"
) -> ModelCheck:
    """Check the stated model with the prior of lap 0.

    Args:
        prior: The prior of lap 0; the check needs a Gaussian one.
        train: The observations that it was fitted to, of which at most `CHECKED` are read.
        held_out: The held-out observations, for the check of the pairing with low-rank Gaussians; None for none.
    """
    check = ModelCheck()
    if not isinstance(prior, GaussianPrior):
        if not recipe.e_step.clean and not is_simulated(train):
            check.notes.append(
                "the noise level and the operators were not checked: the check needs a Gaussian start, and this run "
                "starts from another prior"
            )
        return check
    vectors = len(prior.event_shape) == 1
    if recipe.e_step.clean and not vectors:
        return check  # clean samples have no operators and no noise
    pick = Stream(recipe.seed, "model check").permutation(len(train))[:CHECKED].sort().values
    subset = train[pick].to(device)
    if is_simulated(subset):
        return check  # no noise level is stated
    if vectors:
        _check_columns(prior, subset, recipe.sigma_min, check)
    if recipe.e_step.clean:
        return check
    some = subset.informative()
    if some is None:
        return check  # there are no measured values
    _check_scale(some if held_out is None else held_out, some, prior, check)
    unseen = [] if held_out is None else [UnseenObservations(prior, held_out, prior)]
    noise = noise_evidence(some, recipe.gaussian, recipe.seed)
    if isinstance(noise, NoiseEvidence):
        unseen = noise.unseen
    _check_masks(mask_evidence(some), check, some.measured is not None)
    if unseen:
        _check_pairing(pairing_evidence(unseen, recipe.seed), check, some.measured is not None)
    else:
        check.notes.append(
            "whether operators and observations belong together was not checked: no observations are held out "
            "(watch.held_out is 0)"
        )
    if prior.noise is None:  # otherwise the level was estimated, and not stated
        _check_noise(noise, check)
    return check


def _check_columns(prior: GaussianPrior, obs: Observations, sigma_min: float, check: ModelCheck) -> None:
    narrow = narrow_columns(prior, obs, sigma_min)
    if narrow:
        names = ", ".join(str(k) for k in narrow[:8]) + (", …" if len(narrow) > 8 else "")
        check.warnings.append(
            f"the values of {len(narrow)} of {count_of(prior.mean.numel(), 'column')} (counted from 0: {names}) vary "
            f"by less than {sigma_min:g} times the scale of the data, the lowest noise level the network is trained "
            "at, and cannot be learned: standardise the columns and their sigma, or lower sigma_min"
        )


def _check_scale(unseen: Observations, some: Observations, prior: GaussianPrior, check: ModelCheck) -> None:
    found = deviation(unseen, prior)
    check.metrics["signal_chi2"] = float(found)
    if found < ALL_NOISE and 1 - found > one_sided(CHECK_LEVEL / TESTS) * found.standard_error:
        check.warnings.append(
            "the stated noise is larger than the variation of the observations: they deviate from their mean by "
            f"{float(found) ** 0.5:.2g} standard deviations of the noise, and noise alone would give 1; "
            "check the units of sigma or cov"
        )
    step, noise = rounding_step(some), float(smallest_std(some).min())
    if step is not None and noise < step / 12**0.5:
        check.warnings.append(
            f"the observations are rounded to multiples of {step:.3g}, which adds noise of {step / 12**0.5:.2g}, but "
            f"the stated noise level is {noise:.2g}: check the units of sigma, or state at least the rounding noise"
        )


def _check_noise(noise: NoiseEvidence | str, check: ModelCheck) -> None:
    if isinstance(noise, str):
        check.notes.append(f"the noise level was not checked: {noise}")
        return
    limit = one_sided(CHECK_LEVEL / TESTS)
    preferred, undecided = [], []
    for factor, name, level in ((0.5, "half", "half"), (2.0, "double", "twice")):
        gain = noise.gains[factor]
        check.metrics |= {f"noise_{name}_gain": float(gain.unseen), f"noise_{name}_error": gain.unseen.standard_error}
        if gain.fits_better and gain.unseen.z() > limit:
            preferred.append(
                f"the stated noise level is probably too {'small' if factor > 1 else 'large'}: with "
                f"{level} that level, a Gaussian predicts unseen observations better by {float(gain.unseen):.2g} ± "
                f"{gain.unseen.standard_error:.1g} nats each; correct sigma or cov of the observations"
            )
        elif not (gain.fits_worse and gain.unseen.z() < -limit) or (factor < 1 and noise.absorbed):
            undecided.append(level)
    if len(preferred) > 1:  # less and more noise cannot both be right: the fit has not converged
        preferred, undecided = [], ["half", "twice"]
    if check.warnings:  # wrong operators look like noise, too
        return
    check.warnings += preferred
    if undecided and not preferred:
        check.notes.append(
            f"the observations cannot distinguish the stated noise level from {' or '.join(undecided)} that level "
            "(values that are measured only once, as with masks, do not separate noise from detail of x): measure the "
            "noise where there is no signal"
        )


def _check_pairing(pairing: PairingEvidence | None, check: ModelCheck, masked: bool) -> None:
    if pairing is None:
        return
    limit = one_sided(CHECK_LEVEL / TESTS)
    check.metrics |= {"pairing": float(pairing.rank), "pairing_expected": float(pairing.expected)}
    detectable = pairing.expected.z(0.5)  # small if the test has no power
    if detectable > 2 * limit and pairing.difference.z() > limit and pairing.rank.z(0.5) < limit:
        check.warnings.append(
            "operators and observations do not belong together: under the Gaussian start, two observations fit their "
            f"own operators better than each other's in {float(pairing.rank):.0%} of comparisons; it should be "
            f"{float(pairing.expected):.0%}, and chance gives 50 %. Check the order of y and A, and of the values "
            "within y"
        )
    elif detectable < 2 * limit and not masked:
        check.notes.append(
            "it cannot be checked whether operators and observations belong together: under the Gaussian start, an "
            "observation would fit the operators of other observations as well as its own"
        )


def _check_masks(masks: MaskEvidence, check: ModelCheck, masked: bool) -> None:
    check.metrics["mask_zeros"] = masks.zeros
    strongest = max(masks.neighbours, key=lambda place: abs(masks.neighbours[place]), default=None)
    limit = two_sided(CHECK_LEVEL / TESTS / max(1, len(masks.neighbours)))
    if strongest is not None and abs(masks.neighbours[strongest]) > limit:
        axis, step = strongest
        check.warnings.append(
            f"the size of a measured value depends on whether the entry next to it is measured (axis {axis}, "
            f"{step:+d}): the masks are probably shifted by one entry against the observations, or they were chosen "
            "depending on x"
        )
    elif masks.filled is not None and masks.share > REPEATED_SHARE:
        cause = (
            "masks and observations do not belong together"
            if masked
            else "values that were not measured must be NaN, or excluded by the mask of the operator"
        )
        check.warnings.append(
            f"{masks.share:.0%} of the values at a typical measured entry are exactly {masks.filled + 0.0:.6g}, which "
            f"continuous noise does not produce: {cause}; or values were rounded or clipped"
        )
