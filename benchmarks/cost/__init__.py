r"""What a step costs, ours beside azula's and deepinv's own code: `python -m benchmarks.cost [--quick] [--devices cpu cuda]`.

One network, one batch, one operator (a quarter of the pixels, another quarter for each image), one process. A step is a DDPM step from σ_t
to σ_s with the posterior method's correction. For every method: forward passes and vector–Jacobian products of the network (counted at
the network itself), time, peak memory; and how far the answers of the libraries are apart. Steps are timed in rounds, one of each per round in
turning order, and compared within a round; medians of the ratios are reported, since a busy machine slows all of them alike.

Answers of azula are compared in float64, those of deepinv, which computes in float32, in float32; both without the curvature guard, which they do not have,
and, where a library's norm runs over the whole batch (azula's DPS), at a batch of one. ΠGDM and DPS are given the same weights: azula takes any
pseudo-inverse and any ζ, deepinv any weight.
"""
