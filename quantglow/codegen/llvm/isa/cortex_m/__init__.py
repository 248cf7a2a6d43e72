"""Cortex-M: microcontrollers.  README.md has the guide."""
