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

from pathlib import Path

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
