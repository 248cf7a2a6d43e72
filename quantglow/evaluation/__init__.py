"""Evaluation: accuracy, speed and memory of a model in figures.  README.md has the guide."""
