"""Steps before and after a model (``quantglow.steps``) as nodes of the model.

``chain`` has the nodes of one input or output; ``before`` and ``after`` write steps as standard
operators; ``attach`` joins them to a model.
"""

from quantglow.frontend.steps.attach import with_steps

__all__ = ["with_steps"]
