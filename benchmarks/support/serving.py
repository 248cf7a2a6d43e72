"""A child's side of a pipe: one JSON object a line, an action and its arguments."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

Actions = Mapping[str, Callable[..., dict[str, Any]]]


def serve(actions: Actions) -> None:
    """Answer actions with what they return, a line for each, until the input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the output of libraries from mixing with the replies
    for line in sys.stdin:
        ((action, arguments),) = json.loads(line).items()
        print(json.dumps(actions[action](**arguments)), file=replies, flush=True)
