"""The stages of ``quantize_and_compile``; each takes the frozen result of the one before."""
