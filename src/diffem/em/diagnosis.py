"""What is probably wrong with a lap, from the numbers it recorded: a function per cause, each with the advice that fits it.

A measure must be off by enough to matter and, where it is an estimate, by more than chance explains: over all laps of a
run the right model is flagged with a probability of `LAPS_LEVEL` at most.
"""

from __future__ import annotations

from typing import Any

from ..runs.recipe import Recipe
from .model_check.significance import LAPS_LEVEL, one_sided, two_sided
from .verdict import KEY, History, difference, measured

TESTS = 6  # of a lap that chance can fail
NARROW, WIDE = 0.8, 0.97  # coverage of 90 % intervals that matters
TOO_WIDE = 0.75  # variance of errors over that of draws that matters
OTHER_SCALE = 2.0  # factor between simulated and real observations that matters
BY_HEART = 0.35  # by how much the loss on draws the network never saw exceeds that on its own, relatively
WORSE_THAN_START = 0.2  # by how much the loss of a network exceeds that of the Gaussian start, relatively
FLAT = 0.02  # relative fall of the loss over the last part of a training that counts as none
STUCK = 0.01  # share of draws beyond the bound in every try that matters

Lap = dict[str, Any]


def warnings(history: History, recipe: Recipe) -> list[str]:
    """What is probably wrong with the newest lap of `history`, and what to do."""
    lap = history[-1]
    level = LAPS_LEVEL / (TESTS * recipe.laps)
    out = other_scale(lap, level)
    if lap["lap"] == 0:  # the start has a check of its own (`model_check`)
        return out
    causes = weak_network(history) + overfitting(history, level)
    out += causes + beyond_bound(history, recipe)
    if not prior_alone(lap, recipe):  # posterior draws are what the lap trained
        out += drift(history, recipe.watch.worse, level, advise=not causes)
        out += residuals(lap, level) + intervals(lap, level) + width(lap, level)
    return out + rejections(history, recipe, advise=not causes)


def notes(lap: Lap, recipe: Recipe) -> list[str]:
    """What a reader of the lap's measures should know that is no fault."""
    if not prior_alone(lap, recipe):
        return []
    before = max(k for k in range(int(lap["lap"])) if k == 0 or recipe.at(k).train.conditioned_share > 0)
    return [
        f"lap {lap['lap']} trained the prior alone (train.conditioned: 0), for its samples; its posterior draws by the conditional network are "
        f"not compared with those of other laps: draw posteriors with lap {before}"
    ]


def prior_alone(lap: Lap, recipe: Recipe) -> bool:
    """Whether a lap of a conditional network trained it without operators: draws of posteriors by the network are not what it learned."""
    number = int(lap["lap"])
    if not recipe.conditional or number == 0 or recipe.at(number).train.conditioned_share > 0:
        return False
    return recipe.at(number + 1).e_step.method == "conditional"


def drift(history: History, worse: float, level: float, advise: bool = True) -> list[str]:
    """Held-out values predicted worse than in the best lap: the difference per observation, by Student's t."""
    lap, past = history[-1], measured(history[:-1])
    if not measured([lap]) or not past:
        return []
    best = max(past, key=lambda m: float(m[KEY]))
    found = difference(best, lap)
    if found.loss <= worse or not found.beyond_chance(level):
        return []
    what = (
        "the prior drifts: train longer per lap (train.steps), or raise e_step.steps or e_step.iterations; until then "
    )
    return [
        f"held-out values are predicted worse than in lap {best['lap']}, by {found} nats per value: "
        f"{what if advise else ''}use that lap (diffem.load(run, lap={best['lap']}))"
    ]


def weak_network(history: History) -> list[str]:
    """A network that denoises the draws it was trained on worse than the Gaussian start does: it is too small, or trained too little."""
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
        return [f"{seen}, and its loss falls no further: it is too small; raise network.hidden, or train.lr"]
    why = "its loss is still falling" if fall is not None else f"{lap.get('steps', 'few')} steps are few"
    return [f"{seen}, and {why}: it is trained too little; raise {_steps_key(history)}"]


def overfitting(history: History, level: float) -> list[str]:
    """A network that denoises its own draws better than draws for held-out observations: it has learned them by heart."""
    lap = history[-1]
    own, other, error = (lap.get(key) for key in ("trained_loss", "unseen_loss", "unseen_loss_error"))
    if own is None or other is None or not error:
        return []
    if other <= (1 + BY_HEART) * own or other - own < one_sided(level) * error:
        return []
    return [
        f"the network learns its draws by heart: its loss is {own:.3g} on draws it was trained on and {other:.3g} ± {error:.1g} on "
        f"draws for held-out observations; raise e_step.draws, network.dropout or train.augment, or lower {_steps_key(history)}"
    ]


def _steps_key(history: History) -> str:
    """The key of the newest lap's steps; the network of a start that was given does not begin from nothing."""
    first = history[-1]["lap"] == 1 and history[0].get("start") != "given"
    return "train.first_steps" if first else "train.steps"


def other_scale(lap: Lap, level: float) -> list[str]:
    """Prior samples that are larger or smaller than what was measured."""
    ratio, z = lap.get("observation_scale"), lap.get("observation_scale_z")
    if ratio is None or z is None or 1 / OTHER_SCALE < ratio < OTHER_SCALE or abs(z) < two_sided(level):
        return []
    what = (
        "the prior it starts from was learned in other units: scale the observations (Observations.scaled), or set start: gaussian"
        if lap.get("start") == "given"
        else "samples of the prior are not on the scale of the data; train longer (train.first_steps, train.steps), raise e_step.steps, "
        "or reject draws that are too large with e_step.bound"
    )
    return [f"observations simulated from prior samples are {ratio:.2g} times as large as the real ones: {what}"]


def beyond_bound(history: History, recipe: Recipe) -> list[str]:
    """Draws that lie beyond the bound in every try: the bound cuts data off.

    A bad network can draw so, too. The first lap draws from the Gaussian start, exactly, and shows which it is.
    """
    lap = history[-1]
    stuck, outside, bound = float(lap.get("stuck", 0)), float(lap.get("outside", 0)), lap.get("bound")
    first: Lap = next((m for m in history if m["lap"] == 1), lap)
    if stuck <= STUCK or stuck <= 0.5 * outside or bound is None or float(first.get("stuck", stuck)) <= STUCK:
        return []
    now = recipe.at(int(lap["lap"])).e_step.bound
    what = (
        "data in the tails are cut off; set e_step.bound, in units of the data's scale, above what they reach"
        if now is None
        else f"e_step.bound: {now:g} is too small for these data; raise it, or leave it out"
    )
    return [
        f"{outside:.1%} of the draws explain their observation and lie beyond ±{bound:.3g}, where draws are rejected, and {stuck:.1%} "
        f"in every try: {what}"
    ]


# why most draws were rejected, and what to change beside the training
REJECTED = {
    "not_finite": ("are not finite", "lower train.lr or train.clip"),
    "misfit": ("do not explain their observation", "raise e_step.iterations or e_step.steps"),
    "outside": ("are far larger than the data", "raise e_step.steps or e_step.redraws"),
    "implausible": ("are implausible to the prior itself", "raise e_step.plausible"),
}


def rejections(history: History, recipe: Recipe, advise: bool = True) -> list[str]:
    """More rejected draws than `watch.rejected`, by what most of them were rejected for."""
    lap = history[-1]
    rejected = lap.get("rejected", 0.0)
    # the first lap draws from the Gaussian start, whose tails leave the plausible range by nature
    if lap["lap"] < 2 or rejected <= recipe.watch.rejected or beyond_bound(history, recipe):
        return []
    train = "raise train.first_steps or train.steps"
    if "misfit" not in lap:  # a lap of a version that did not count causes
        return [f"{rejected:.1%} of the draws were rejected: {train}, or e_step.redraws"]
    shares = {name: lap.get(name, 0.0) for name in ("not_finite", "misfit", "outside")}
    shares["implausible"] = rejected - sum(shares.values())
    cause = max(shares, key=lambda name: shares[name])
    why, keys = REJECTED[cause]
    advice = f"{train}, or {keys}" if advise and cause != "implausible" else keys
    return [f"{rejected:.1%} of the draws were rejected, most of them because they {why}: {advice}"]


def residuals(lap: Lap, level: float) -> list[str]:
    """Draws that leave residuals of another size than the noise."""
    chi2, expected, z = lap.get("heldout_chi2"), lap.get("expected_chi2", 1.0), lap.get("heldout_chi2_z")
    if chi2 is None or z is None or 0.5 * expected < chi2 < 2 * expected or abs(z) < two_sided(level):
        return []
    what = (
        "draws miss their observations; raise e_step.steps or e_step.iterations, "
        "and check the noise level and the operators"
        if chi2 > expected
        else "draws follow the noise of their observations, or the noise was stated too large"
    )
    return [f"χ² of held-out observations is {chi2:.2f} and should be about {expected:.2g}: {what}"]


def intervals(lap: Lap, level: float) -> list[str]:
    """Predictions of hidden values that are too sure of themselves, or not sure enough."""
    inside, error = lap.get("hidden_coverage90"), lap.get("hidden_coverage90_error")
    if inside is None or not error or NARROW <= inside <= WIDE or abs(inside - 0.9) < two_sided(level) * error:
        return []
    what = (
        "posterior draws vary too little; train longer, raise e_step.steps, or check the noise level and the operators"
        if inside < 0.9
        else "posterior draws vary too much, or the noise was stated too large"
    )
    return [f"90 % intervals contain {inside:.0%} ± {error:.0%} of hidden held-out values: {what}"]


def width(lap: Lap, level: float) -> list[str]:
    """Draws that are wider than they are wrong; those that are narrower show in the coverage."""
    ratio, z = lap.get("hidden_spread"), lap.get("hidden_spread_z")
    if ratio is None or z is None or ratio > TOO_WIDE or z > -one_sided(level):
        return []
    return [
        f"posterior draws of hidden held-out values have {1 / max(ratio, 1e-3):.2g} times the variance of their errors: draws vary "
        "too much; train longer per lap (train.steps, train.first_steps), or lower train.measured"
    ]
