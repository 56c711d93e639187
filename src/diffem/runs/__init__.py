"""Runs: their recipe, their folder, their files."""
