"""Data sets and simulated measurements of them."""
