"""Weights of a model: where they are stored, and models in which they have few bits.

README.md has the guide.
"""
