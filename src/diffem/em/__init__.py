"""Expectation–maximisation: E draws from posteriors, M trains the denoiser, the loop repeats."""
