"""Objects that no other process can have."""

from __future__ import annotations

from typing import Any

from quantglow.errors import OptionError


class OfOneProcess:
    """Base class of objects with machine code, memory and threads of this process."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise OptionError(
            f"{type(self).__name__}: cannot be pickled or copied, because machine code and memory "
            "belong to this process. Remedy: load() or compile the model in the other process; the "
            "threads of a process share one model."
        )
