"""Models cut in parts, where a part cannot be imported whole.

``split`` cuts a model where shapes stop being known, and turns classifiers of strings into
classifiers of numbers before that; ``tail`` cuts the part behind the cut where it can be compiled;
``deferred_loops`` makes bodies of loops models of their own.
"""
