"""Accuracy control: ``control`` searches for the fewest ``precision_steps`` out of int8 until the
user's contract holds."""
