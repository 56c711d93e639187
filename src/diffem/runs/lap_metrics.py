"""The metrics of a lap: every number in `metrics.json`, with its heading, format and meaning.

The terminal table, the report, the app, the loggers and the validation of files read this list. A new metric is one
line here. Files of earlier versions have fewer entries, and files of later versions may have more: unknown entries stay
in the file and are shown nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Metric:
    """A number that a lap records.

    Attributes:
        key: Its key in `metrics.json`.
        meaning: What it is, in one sentence.
        heading: Its heading in the report; empty if the report does not show it.
        form: Its format in the report.
        error: The key of its standard error, if there is one.
        error_form: The format of the standard error in tables; empty if they do not show it.
        ideal: The value that it should have, if there is one.
        curve: Whether the report plots it over the laps.
        of_draws: Whether it describes the E-step's draws, which a run on clean samples does not have.
        logged: Whether loggers record it. The totals of earlier runs are not logged.
    """

    key: str
    meaning: str
    heading: str = ""
    form: str = "{:.4g}"
    error: str | None = None
    error_form: str = ""
    ideal: float | None = None
    curve: bool = False
    of_draws: bool = False
    logged: bool = True

    def text(self, lap: Mapping[str, Any], form: str | None = None, plus_minus: str = " ± ") -> str:
        """Format the value of a lap; a dash if it has none.

        Args:
            lap: The metrics of the lap.
            form: Another format than that of the report.
            plus_minus: The text between the value and its standard error.
        """
        lap = with_parameters(lap)
        value = lap.get(self.key)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return "–"
        error = None if self.error is None or not self.error_form else lap.get(self.error)
        return (form or self.form).format(value) + (plus_minus + self.error_form.format(error) if error else "")


METRICS = (
    Metric("lap", "number of the lap", logged=False),
    # shown in the report, in this order
    Metric(
        "chi2",
        "squared residual of the training draws per measured value; about 1 if the draws fit their observations. For a "
        "channel: squared distance of y from measurements simulated from draws, relative to that of two simulations",
        "χ²",
        "{:.3f}",
        of_draws=True,
    ),
    Metric(
        "heldout_chi2",
        "the same for held-out observations: the median, divided by its expected value under the model",
        "held-out χ²",
        "{:.3f}",
        curve=True,
    ),
    Metric(
        "predictive_log_likelihood",
        "log-likelihood per hidden value of held-out observations; higher is better",
        "predictive",
        "{:.3f}",
        error="predictive_error",
        error_form="{:.3f}",
        curve=True,
    ),
    Metric(
        "simulation_score",
        "for a channel: negative energy score of observations simulated from prior samples, in units of the spread of "
        "the features, for held-out observations; higher is better",
        "score",
        "{:.3f}",
        error="simulation_error",
        error_form="{:.3f}",
        curve=True,
    ),
    Metric(
        "simulated_distance",
        "for a channel: sliced Wasserstein distance between measurements simulated from held-out draws and real "
        "measurements of other observations; should equal the column halves",
        "draws' y distance",
        "{:.4g}",
        curve=True,
    ),
    Metric(
        "halves_distance",
        "the same between two halves of the real measurements, which differ by chance only",
        "halves",
        "{:.4g}",
    ),
    Metric(
        "observation_distance",
        "sliced Wasserstein distance between real and simulated observations; lower is better",
        "y distance",
        "{:.4g}",
        curve=True,
    ),
    Metric(
        "rejected",
        "draws that failed the screening at the first attempt",
        "rejected",
        "{:.2%}",
        curve=True,
        of_draws=True,
    ),
    Metric(
        "hidden_coverage90",
        "hidden values inside their 90 % predictive intervals; should be 90 %",
        "covered",
        "{:.1%}",
        error="hidden_coverage90_error",
        ideal=0.9,
        curve=True,
    ),
    Metric(
        "hidden_spread",
        "variance of the errors on hidden values divided by that of the draws; should be 1, less if draws are too wide",
        "errors / spread",
        "{:.2f}",
        ideal=1.0,
        curve=True,
    ),
    Metric(
        "noise_sigma",
        "standard deviation of the noise, if it is estimated; with several levels their geometric mean",
        "noise level",
        curve=True,
    ),
    Metric("kept", "rejected draws that the draw of the previous lap replaced", "kept", "{:.2%}", of_draws=True),
    Metric(
        "guards",
        "solves that the curvature guard stopped or that diverged, per evaluation of the denoiser",
        "guards",
        "{:.2%}",
        of_draws=True,
    ),
    Metric("loss", "denoising loss at the end of the M-step", "loss", "{:.4f}"),
    Metric("trained_loss", "denoising loss after the M-step on some of the training draws", "own loss", "{:.4f}"),
    Metric(
        "unseen_loss",
        "the same on draws for held-out observations; much larger if the network overfits its training draws",
        "unseen loss",
        "{:.4f}",
    ),
    Metric(
        "gaussian_loss",
        "denoising loss of the Gaussian start on the draws of the lap; a large enough network does not exceed it",
        "start loss",
        "{:.4f}",
    ),
    Metric("start_seconds", "time of the Gaussian start", "start [s]", "{:.1f}"),
    Metric("e_seconds", "time of the E-step: posterior draws", "E [s]", "{:.1f}"),
    Metric("m_seconds", "time of the M-step: training", "M [s]", "{:.1f}"),
    Metric("watch_seconds", "time of the held-out evaluation", "watch [s]", "{:.1f}"),
    # lap 0
    Metric("observations", "number of training observations"),
    Metric("rounds", "EM rounds of the Gaussian start"),
    Metric("log_likelihood", "log-likelihood of the Gaussian start per observation"),
    Metric("start_held_out", "log-likelihood of held-out observations under the Gaussian start"),
    Metric("signal_chi2", "mean squared deviation of the measured values from Aμ, in units of the noise"),
    Metric("noise_half_gain", "gain in log-likelihood per unseen observation with half the stated noise level"),
    Metric("noise_half_error", "standard error of that gain"),
    Metric("noise_double_gain", "gain in log-likelihood per unseen observation with twice the stated noise level"),
    Metric("noise_double_error", "standard error of that gain"),
    Metric("pairing", "how often two observations fit their own operators better than each other's, from 0 to 1"),
    Metric("pairing_expected", "expected value of pairing if operators and observations belong together"),
    Metric("mask_zeros", "fraction of the measured values that are exactly zero, median over the entries of y"),
    Metric("laps_before", "laps of the run that this run started from", logged=False),
    Metric("minutes_before", "minutes of the runs before this run", logged=False),
    Metric("images_before", "training examples of the runs before this run", logged=False),
    # E-step
    Metric("draws", "number of new draws"),
    Metric("e_batch", "batch size of the E-step"),
    Metric("bound", "largest accepted |x|"),
    Metric("redrawn", "rejected draws that a later attempt replaced"),
    Metric("replaced", "rejected draws that a posterior mean replaced"),
    Metric("not_finite", "draws with NaN or infinite values"),
    Metric("misfit", "finite draws whose residual is too large"),
    Metric("outside", "draws that fit their observation and exceed the bound"),
    Metric("stuck", "draws that exceed the bound in every attempt"),
    # M-step
    Metric("steps", "optimizer steps"),
    Metric("rollbacks", "times that the training diverged and was reset"),
    Metric("measured", "weight of the loss on measured values"),
    Metric("conditioned", "fraction of the examples that are conditioned on an operator"),
    Metric("loss_fall", "relative decrease of the loss over the last quarter of the training"),
    Metric("unseen_loss_error", "standard error of the difference between unseen and own loss"),
    # held-out evaluation
    Metric("expected_chi2", "expected held-out χ² of correct draws"),
    Metric("heldout_chi2_z", "deviation of the held-out χ² from its expected value, in standard deviations"),
    Metric("predictive_error", "standard error of the predictive log-likelihood"),
    Metric("simulation_error", "standard error of the energy score"),
    Metric("hidden_coverage90_error", "standard error of the coverage"),
    Metric("hidden_spread_z", "deviation of errors / spread from 1, in standard deviations"),
    Metric("observation_scale", "root mean square of simulated observations divided by that of real ones"),
    Metric("observation_scale_z", "deviation of the logarithm of observation_scale from 0, in standard deviations"),
    # totals
    Metric("seconds", "time of the lap"),
    Metric("minutes", "minutes at the end of the lap, including earlier runs"),
    Metric("images", "training examples at the end of the lap, including earlier runs"),
)
METRIC = {metric.key: metric for metric in METRICS}


PARAMETER = "parameter "  # prefix of the keys of operator parameters, whose names are the user's


def with_parameters(lap: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of a lap with its operator parameters and their standard errors as numbers, `parameter NAME`."""
    values, errors = (lap.get(key) for key in ("operator_parameters", "operator_errors"))
    flat = {f"{PARAMETER}{name}": value for name, value in values.items()} if isinstance(values, Mapping) else {}
    flat |= {f"{PARAMETER}{name} error": e for name, e in errors.items()} if isinstance(errors, Mapping) else {}
    return {**lap, **{key: value for key, value in flat.items() if isinstance(value, int | float)}}


def parameter_metrics(laps: Iterable[Mapping[str, Any]]) -> list[Metric]:
    """A metric per operator parameter that some lap has."""
    keys = {key: None for lap in laps for key in with_parameters(lap) if key.startswith(PARAMETER)}
    return [
        Metric(
            key,
            f"the parameter {name} of the operator, estimated with the prior",
            f"{name} of A",
            error=f"{key} error",
            error_form="{:.2g}",
            curve=True,
        )
        for key in keys
        if not key.endswith(" error")
        for name in [key.removeprefix(PARAMETER)]
    ]


def wrong_number(lap: Mapping[str, Any]) -> str | None:
    """Return the key of a metric that is not a number, in the metrics of an untrusted file; None if all are numbers."""
    wrong = (key for key in METRIC if not isinstance(lap.get(key), int | float | None))
    return next(wrong, None)
