"""The stages of ``quantize_and_compile``; each takes the frozen result of the one before.

``request`` holds the options.  ``imported``: the model as float graphs; ``calibrated``: its
profile, the shapes at which everything is decided, and the samples; ``prepared``: ranges and
equalization, ``speed``: layers that int8 makes slower; ``quantized``: the int8 graph; ``compiled``:
the program, checked.
"""
