"""Bundles on Cortex-M boards under QEMU."""
