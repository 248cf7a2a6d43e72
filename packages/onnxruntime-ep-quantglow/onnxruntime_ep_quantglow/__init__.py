"""quantglow as an execution provider of onnxruntime.

::

    import onnxruntime
    import onnxruntime_ep_quantglow

    onnxruntime_ep_quantglow.register()
    session = onnxruntime.InferenceSession(
        "model.onnx", providers=["QuantglowExecutionProvider", "CPUExecutionProvider"]
    )

onnxruntime 1.24 needs ``SessionOptions.add_provider_for_devices`` instead of a name in
``providers``.
"""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Any

CPU = "CPUExecutionProvider"

EP_NAME = "QuantglowExecutionProvider"
"""The name of the provider."""


def get_library_path() -> str:
    """The path of the library that onnxruntime loads."""
    return str(Path(__file__).with_name("libquantglow_ep.so"))


def get_ep_names() -> list[str]:
    """The names of the providers in the library."""
    return [EP_NAME]


def register() -> None:
    """Register the provider with the onnxruntime of this process, once.

    Raises onnxruntime's ``Fail`` where that is older than 1.24, with the reason.
    """
    import onnxruntime

    from quantglow import ep

    ep.install(get_library_path())
    if EP_NAME not in {device.ep_name for device in onnxruntime.get_ep_devices()}:
        onnxruntime.register_execution_provider_library(EP_NAME, get_library_path())


def use(num_threads: int | None = None, **more: str) -> None:
    """Let sessions of this process that ask for the CPU's provider alone have this one first.

    For packages that fix ``providers=["CPUExecutionProvider"]``; call it before they make their
    sessions.  ``num_threads``: maximum for a call, which has the threads of its session; by default
    a session's ``intra_op_num_threads`` if it has that, else all cores.  ``more``: other options of
    the provider, as ``while_compiling="onnxruntime"``.
    """
    import onnxruntime

    register()
    made = onnxruntime.InferenceSession.__init__
    if hasattr(made, "__wrapped__"):
        return

    @wraps(made)
    def make(
        session: Any,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Any = None,
        provider_options: Any = None,
        **others: Any,
    ) -> None:
        names = {each if isinstance(each, str) else each[0] for each in providers or []}
        has_devices = sess_options is not None and sess_options.has_providers()
        if names <= {CPU} and not provider_options and not has_devices:
            stated = 0 if sess_options is None else sess_options.intra_op_num_threads
            threads = num_threads or stated
            options = more | ({"num_threads": str(threads)} if threads else {})
            providers = [(EP_NAME, options), *(providers or [CPU])]
        made(session, path_or_bytes, sess_options, providers, provider_options, **others)

    onnxruntime.InferenceSession.__init__ = make
