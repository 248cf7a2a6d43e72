"""Models of other frameworks are recognised without an import, and refused without their extra."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.importer import as_onnx
from quantglow.importer.exporters import quiet
from quantglow.support.arrays import array_of_tensor, is_torch_module, is_torch_tensor
from tests.support.small_network import small_model, small_samples


def named(module: str, name: str, **members: Any) -> type:
    """A class that says it is another framework's."""
    return type(name, (), {"__module__": module, **members})


Module = named("torch.nn.modules.module", "Module")


class Network(Module):  # type: ignore[misc, valid-type]
    """A subclass, as users write them."""


def test_subclasses_are_modules() -> None:
    assert is_torch_module(Network())


def test_models_of_onnx_pass_unchanged() -> None:
    model, samples = small_model(), small_samples(2)
    actual = as_onnx(model, samples)
    assert actual[0] is model
    assert actual[1] is samples


@pytest.mark.parametrize("missing", ["torch", "onnxscript"])
def test_a_missing_package_is_named_with_its_extra(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None if name == missing else type(sys)(name))
    with pytest.raises(qg.OptionError, match=rf"package {missing}.*quantglow\[torch\]"):
        qg.compile(Network(), samples=[np.ones((1, 3), np.float32)])


def test_a_missing_skl2onnx_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skl2onnx", None)
    pipeline = named("sklearn.base", "BaseEstimator")()
    with pytest.raises(qg.OptionError, match=r"package skl2onnx.*quantglow\[sklearn\]"):
        qg.profile(pipeline, np.ones((2, 3)), progress=False)


def test_tensors_are_recognised_and_read() -> None:
    array = np.ones(3, np.float32)
    same = {"detach": lambda self: self, "cpu": lambda self: self, "numpy": lambda self: array}
    tensor = named("torch", "Tensor", dtype="torch.float32", **same)()
    assert is_torch_tensor(tensor)
    assert array_of_tensor(tensor) is array


@pytest.mark.slow
def test_importing_the_driver_imports_no_framework() -> None:
    code = (
        "import sys, quantglow as qg; qg.compile; print({'torch', 'onnxscript'} & {*sys.modules})"
    )
    results = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert results.stdout == "set()\n"


def test_exporters_are_silent_inside_and_only_there(capfd: pytest.CaptureFixture[str]) -> None:
    logger, handler = logging.getLogger("noisy.part"), logging.StreamHandler()
    logger.addHandler(handler)
    try:
        with quiet("noisy"):
            logger.warning("inside")
            print("inside")
            warnings.warn("inside", stacklevel=1)
        logger.warning("outside")
    finally:
        logger.removeHandler(handler)
    assert capfd.readouterr() == ("", "outside\n")
