"""Warnings about a lap, from its metrics: one function per cause, each with its advice.

A warning needs a deviation that is large enough to matter and, for an estimate, larger than chance explains. Over all
laps of a run, a correct model causes a warning with a probability of at most `LAPS_LEVEL`.
"""

from __future__ import annotations

from typing import Any

from ..core.counting import count_of
from ..runs.recipe import Recipe
from .model_check.significance import LAPS_LEVEL, one_sided, two_sided
from .verdict import PREDICTION, History, criterion_of, difference, evaluated

TESTS = 6  # statistical tests per lap
NARROW, WIDE = 0.8, 0.97  # warn outside this coverage of 90 % intervals
TOO_WIDE = 0.75  # warn below this ratio of the variance of errors to that of draws
OTHER_SCALE = 2.0  # warn beyond this ratio of simulated to real observations
OTHER_SIMULATIONS = 2.0  # warn beyond this ratio of their distance from real observations to that of two real halves
OVERFITTED = 0.35  # warn above this relative excess of the loss on unseen draws
WORSE_THAN_START = 0.2  # warn above this relative excess of the network's loss over that of the Gaussian start
FLAT = 0.02  # smallest relative decrease of the loss of a training that has not converged
TOO_LOW = 2.0  # warn beyond this ratio of the end of the interval of a noise level to the level that the run uses
STUCK = 0.01  # warn above this fraction of draws beyond the bound in every attempt

Lap = dict[str, Any]


def warnings(history: History, recipe: Recipe) -> list[str]:
    """Return warnings about the newest lap of `history`, with advice."""
    lap = history[-1]
    level = LAPS_LEVEL / (TESTS * recipe.last_lap)
    out = scale_mismatch(lap, level)
    if lap["lap"] == 0:  # `model_check` checks lap 0
        return out + low_noise(lap)
    causes = weak_network(history) + overfitting(history, level)
    out += causes + beyond_bound(history, recipe)
    if not trained_without_operators(lap, recipe):  # the network was trained for posterior draws
        out += drift(history, recipe.watch.worse, level, advise=not causes)
        out += residuals(lap, level) + intervals(lap, level) + width(lap, level) + simulations(lap)
    return out + rejections(history, recipe, advise=not causes)


def notes(lap: Lap, recipe: Recipe) -> list[str]:
    """Return notes about a lap that are not warnings."""
    if not trained_without_operators(lap, recipe):
        return []
    before = max(k for k in range(int(lap["lap"])) if k == 0 or recipe.at(k).train.conditioned_share > 0)
    return [
        f"lap {lap['lap']} trained the prior alone (train.conditioned: 0), for its samples; its posterior draws are "
        f"not compared with those of other laps: draw posteriors with lap {before}"
    ]


def trained_without_operators(lap: Lap, recipe: Recipe) -> bool:
    """Whether a lap trained a conditional network without operators: it has not been trained for posterior draws."""
    number = int(lap["lap"])
    if not recipe.conditional or number == 0 or recipe.at(number).train.conditioned_share > 0:
        return False
    return recipe.at(number + 1).e_step.method == "conditional"


def low_noise(lap: Lap) -> list[str]:
    """The noise level that the run estimated and uses is far below others that the observations allow."""
    pairs = list(zip(lap.get("noise_levels", []), lap.get("noise_high", []), strict=True))
    if not pairs:
        return []
    level, high = max(pairs, key=lambda pair: pair[1] / pair[0])
    if high <= TOO_LOW * level:
        return []
    which = "the noise level" if len(pairs) == 1 else "one noise level"
    return [
        f"the run uses {level:.2g} as {which}, but the observations allow up to {high:.2g}: they are too few to "
        "estimate it, and draws would reproduce noise as detail of x; use at least ten observations per entry of x, "
        "or measure the noise and pass sigma as a number"
    ]


def drift(history: History, worse: float, level: float, advise: bool = True) -> list[str]:
    """Held-out values are predicted significantly worse than in the best lap (Student's t test over observations)."""
    lap, past = history[-1], evaluated(history[:-1])
    if not evaluated([lap]) or not past:
        return []
    criterion = criterion_of(lap)
    best = max(past, key=criterion)
    found = difference(best, lap)
    if found.loss <= (worse if criterion is PREDICTION else 0) or not found.beyond_chance(level):
        return []
    advice = (
        "the prior drifts: train longer per lap (train.steps), or raise e_step.steps or e_step.iterations; until then "
    )
    return [
        f"held-out values are predicted worse than in lap {best['lap']}, by {found} {criterion.unit}: "
        f"{advice if advise else ''}use that lap (diffem.load(run, lap={best['lap']}))"
    ]


def weak_network(history: History) -> list[str]:
    """The network denoises its training draws worse than the Gaussian start: it is too small, or undertrained."""
    lap = history[-1]
    loss, start = lap.get("trained_loss"), [m["gaussian_loss"] for m in history if m.get("gaussian_loss") is not None]
    if loss is None or not start or loss <= (1 + WORSE_THAN_START) * min(start):
        return []
    seen = (
        f"the network denoises the draws it was trained on worse than the Gaussian start does (loss {loss:.3g}, "
        f"start {min(start):.3g})"
    )
    fall = lap.get("loss_fall")
    if fall is not None and fall < FLAT:
        return [f"{seen}, and its loss no longer falls: the network is too small; raise network.hidden, or train.lr"]
    if fall is not None:
        why = "its loss is still falling"
    else:
        why = f"it took only {count_of(lap['steps'], 'step')}" if "steps" in lap else "it took only a few steps"
    return [f"{seen}, and {why}: the network is trained too little; raise {_steps_key(history)}"]


def overfitting(history: History, level: float) -> list[str]:
    """The network denoises its training draws better than draws for held-out observations: it overfits."""
    lap = history[-1]
    own, other, error = (lap.get(key) for key in ("trained_loss", "unseen_loss", "unseen_loss_error"))
    if own is None or other is None or not error:
        return []
    if other <= (1 + OVERFITTED) * own or other - own < one_sided(level) * error:
        return []
    return [
        f"the network overfits its training draws: its loss is {own:.3g} on draws it was trained on and {other:.3g} ± "
        f"{error:.1g} on draws for held-out observations; raise e_step.draws, network.dropout or train.augment, or "
        f"lower {_steps_key(history)}"
    ]


def _steps_key(history: History) -> str:
    """Return the recipe key of the newest lap's steps. The network of a given start is trained already."""
    first = history[-1]["lap"] == 1 and history[0].get("start") != "given"
    return "train.first_steps" if first else "train.steps"


def scale_mismatch(lap: Lap, level: float) -> list[str]:
    """Prior samples are larger or smaller than the observations."""
    ratio, z = lap.get("observation_scale"), lap.get("observation_scale_z")
    if ratio is None or z is None or 1 / OTHER_SCALE < ratio < OTHER_SCALE or abs(z) < two_sided(level):
        return []
    if lap.get("start") == "given":
        advice = (
            "the prior that the run starts from was learned in other units: scale the observations "
            "(Observations.scaled), or set start: gaussian"
        )
    elif lap["lap"] == 0:
        advice = (
            "the Gaussian start is not on the scale of the data: raise gaussian.rounds and gaussian.observations, and "
            "check the operators and the noise level"
        )
    else:
        advice = (
            "samples of the prior are not on the scale of the data; train longer (train.first_steps, train.steps), "
            "raise e_step.steps, or reject draws that are too large with e_step.bound"
        )
    return [f"observations simulated from prior samples are {ratio:.2g} times as large as the real ones: {advice}"]


def beyond_bound(history: History, recipe: Recipe) -> list[str]:
    """Draws exceed the bound in every attempt: the bound excludes data.

    A bad network can also be the cause, but not in the first lap, whose draws from the Gaussian start are exact.
    """
    lap = history[-1]
    stuck, outside, bound = float(lap.get("stuck", 0)), float(lap.get("outside", 0)), lap.get("bound")
    first: Lap = next((m for m in history if m["lap"] == 1), lap)
    if stuck <= STUCK or stuck <= 0.5 * outside or bound is None or float(first.get("stuck", stuck)) <= STUCK:
        return []
    now = recipe.at(int(lap["lap"])).e_step.bound
    advice = (
        "the bound excludes the tails of the data; set e_step.bound, in units of the data's scale, above the largest "
        "plausible |x|"
        if now is None
        else f"e_step.bound: {now:g} is too small for these data; raise it, or leave it out"
    )
    return [
        f"{outside:.1%} of the draws explain their observation but lie beyond ±{bound:.3g}, where draws are rejected; "
        f"{stuck:.1%} do so in every attempt: {advice}"
    ]


# main cause of rejections → its description, and recipe keys to change besides those of the training
REJECTED = {
    "not_finite": ("are not finite", "lower train.lr or train.clip"),
    "misfit": ("do not explain their observation", "raise e_step.iterations or e_step.steps"),
    "outside": ("are far larger than the data", "raise e_step.steps or e_step.redraws"),
    "implausible": ("are implausible under the prior", "raise e_step.plausible"),
}


def rejections(history: History, recipe: Recipe, advise: bool = True) -> list[str]:
    """More draws were rejected than `watch.rejected`; the advice depends on the main cause."""
    lap = history[-1]
    rejected = lap.get("rejected", 0.0)
    # the tails of the Gaussian start, which the first lap draws from, exceed the bound
    if lap["lap"] < 2 or rejected <= recipe.watch.rejected or beyond_bound(history, recipe):
        return []
    train = "raise train.first_steps or train.steps"
    shares = {name: lap.get(name, 0.0) for name in ("not_finite", "misfit", "outside")}
    shares["implausible"] = rejected - sum(shares.values())
    cause = max(shares, key=lambda name: shares[name])
    why, keys = REJECTED[cause]
    advice = f"{train}, or {keys}" if advise and cause != "implausible" else keys
    return [f"{rejected:.1%} of the draws were rejected, most of them because they {why}: {advice}"]


def residuals(lap: Lap, level: float) -> list[str]:
    """The residuals of draws are larger or smaller than the noise."""
    chi2, expected, z = lap.get("heldout_chi2"), lap.get("expected_chi2", 1.0), lap.get("heldout_chi2_z")
    if chi2 is None or z is None or 0.5 * expected < chi2 < 2 * expected or abs(z) < two_sided(level):
        return []
    advice = (
        "draws miss their observations; raise e_step.steps or e_step.iterations, "
        "and check the noise level and the operators"
        if chi2 > expected
        else "draws fit the noise of their observations, or the stated noise level is too large"
    )
    return [f"χ² of held-out observations is {chi2:.2f} and should be about {expected:.2g}: {advice}"]


def simulations(lap: Lap) -> list[str]:
    """Measurements simulated from draws differ from the real ones by more than two halves of the real ones."""
    distance, chance = lap.get("simulated_distance"), lap.get("halves_distance")
    if distance is None or chance is None or distance <= OTHER_SIMULATIONS * chance:
        return []
    return [
        f"measurements simulated from posterior draws differ from the real ones by {distance:.3g}, but two halves of "
        f"the real ones differ by only {chance:.3g}: the draws do not have the distribution of x; train longer "
        "(train.first_steps, train.steps), raise e_step.steps, and check the function simulate"
    ]


def intervals(lap: Lap, level: float) -> list[str]:
    """Predictive intervals of hidden values are too narrow or too wide."""
    inside, error = lap.get("hidden_coverage90"), lap.get("hidden_coverage90_error")
    if inside is None or not error or NARROW <= inside <= WIDE or abs(inside - 0.9) < two_sided(level) * error:
        return []
    advice = (
        "posterior draws vary too little; train longer, raise e_step.steps, or check the noise level and the operators"
        if inside < 0.9
        else "posterior draws vary too much, or the stated noise level is too large"
    )
    return [f"90 % intervals contain {inside:.0%} ± {error:.0%} of hidden held-out values: {advice}"]


def width(lap: Lap, level: float) -> list[str]:
    """Draws vary more than their errors. Draws that vary less are detected by the coverage (`intervals`)."""
    ratio, z = lap.get("hidden_spread"), lap.get("hidden_spread_z")
    if ratio is None or z is None or ratio > TOO_WIDE or z > -one_sided(level):
        return []
    return [
        f"posterior draws of hidden held-out values have {1 / max(ratio, 1e-3):.2g} times the variance of their "
        "errors: draws vary too much; train longer per lap (train.steps, train.first_steps), or lower train.measured"
    ]
