"""Models cut in parts, where a part cannot be imported whole.

``split`` cuts a model where shapes stop being known; ``behind`` cuts what follows where it can be
compiled; ``late_loops`` makes bodies of loops models of their own; ``label_codes`` turns
classifiers of strings into classifiers of numbers before a cut.
"""
