"""``torch.compile(model, backend="quantglow")``: FX graphs of TorchDynamo on quantglow.

Torch finds ``compiled_graph`` by the entry point group ``torch_dynamo_backends``.  A graph is
converted on its first call.  One that cannot be runs as it is, and a warning says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from warnings import warn

import numpy as np
import torch
from torch.fx import GraphModule

from quantglow.api.compile import compile
from quantglow.importer.torch.graphs import GraphSplit, Outputs, onnx_of_graph
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.fallback_model import FallbackModel
from quantglow.support.classes import cached_property
from quantglow.support.errors import ConversionError, OptionError, QuantglowError
from quantglow.support.extras import package
from quantglow.support.processes.threads import ForkSafeLock

MOST_WEIGHTS = 4
"""Maximum number of different weights for which a graph is converted: beyond, it is in training."""

OPTIONS = "num_threads", "target"
"""Keywords of ``compile`` that ``torch.compile(options={...})`` may have."""


def compiled_graph(
    graph_module: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """A function that computes what the graph computes, on quantglow.

    ``options``: ``num_threads`` and ``target`` of ``quantglow.compile``.  ``mode`` is torch's, and
    changes nothing.  Raises ``OptionError`` for other options.
    """
    package("onnxscript", "torch", "torch.compile")
    settings = dict(options or {})
    if unknown := settings.keys() - set(OPTIONS):
        raise OptionError(
            f"options has {sorted(unknown)}; the backend takes {list(OPTIONS)}. "
            "Remedy: leave the others out."
        )
    return GraphOnQuantglow(graph_module, settings, _needs_gradients(example_inputs))


def _needs_gradients(tensors: Sequence[Any]) -> bool:
    """Whether results of these tensors are to be differentiated."""
    parameters = (tensor for tensor in tensors if isinstance(tensor, torch.Tensor))
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in parameters)


class GraphOnQuantglow:
    """An FX graph that is compiled on its first call, and again where its weights change.

    Thread-safe: ``lock`` is held while ``converted``, ``conversions`` and ``eager`` change.
    """

    def __init__(self, module: GraphModule, options: dict[str, Any], differentiates: bool) -> None:
        self.module, self.options = module, options
        self.lock = ForkSafeLock()
        self.converted: tuple[list[Any], CompiledModel | FallbackModel] | None = None
        self.conversions = 0
        self.eager = False
        if differentiates:
            self._give_up(
                "gradients are enabled, and compiled graphs have none. Remedy: call the model "
                "under torch.no_grad() or torch.inference_mode()"
            )

    def __call__(self, *arguments: Any) -> Any:
        if not self.eager:
            try:
                return self._run(arguments)
            except QuantglowError as error:
                self._give_up(str(error))
        return self.module.forward(*arguments)

    def _run(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs by quantglow.  Raises ``QuantglowError``."""
        split, outputs = self.interface
        if not outputs.computed:
            return outputs.gathered([], arguments)
        results = self._compile(arguments)(*(arguments[i] for i in split.fed))
        arrays = results if isinstance(results, list) else [results]
        pairs = zip(outputs.computed, arrays, strict=True)
        return outputs.gathered([like(node, array) for node, array in pairs], arguments)

    @cached_property
    def interface(self) -> tuple[GraphSplit, Outputs]:
        """Arguments and outputs of the graph.  Raises ``ConversionError``."""
        return GraphSplit.of(self.module.graph), Outputs.of(self.module.graph)

    def _compile(self, arguments: Sequence[Any]) -> CompiledModel | FallbackModel:
        """The model for the weights among the arguments.  Raises ``QuantglowError``."""
        split, _ = self.interface
        with self.lock:
            if self.eager:
                raise ConversionError("another call gave the graph up")
            weights = [_tensor_state(arguments[i]) for i in split.frozen]
            if self.converted is None or self.converted[0] != weights:
                self.converted = weights, self._convert(arguments)
            return self.converted[1]

    def _convert(self, arguments: Sequence[Any]) -> CompiledModel | FallbackModel:
        """The graph compiled with these weights.  Raises ``QuantglowError``."""
        _check_devices(arguments)
        if self.conversions == MOST_WEIGHTS:
            raise ConversionError("weights change from call to call")
        model = compile(onnx_of_graph(self.module, arguments, *self.interface), **self.options)
        self.conversions += 1
        return model

    def _give_up(self, reason: str) -> None:
        """Run the graph as it is from now on, and say why, once."""
        with self.lock:
            if self.eager:
                return
            self.eager, self.converted = True, None
        warn(
            f"quantglow: a graph of torch.compile runs uncompiled: {reason}",
            RuntimeWarning,
            stacklevel=2,
        )


def _check_devices(arguments: Sequence[Any]) -> None:
    """Raise ``ConversionError`` for tensors that are not in the processor's memory."""
    tensors = (argument for argument in arguments if isinstance(argument, torch.Tensor))
    if elsewhere := {str(t.device) for t in tensors if t.device.type != "cpu"}:
        raise ConversionError(f"tensors are on {sorted(elsewhere)}. Remedy: move them to the CPU")


def _tensor_state(tensor: Any) -> Any:
    """A value that changes when somebody changes the tensor."""
    if not tensor.ndim:
        return tensor.item()
    version = None if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), tuple(tensor.shape), version


def like(node: Any, array: Any) -> Any:
    """An output as the graph's node has it: a tensor of its type, or an integer."""
    example = node.meta.get("example_value")
    if isinstance(example, torch.SymInt | int):
        return int(array)
    is_known = array.dtype.kind in "biuf"
    held = np.require(array if is_known else array.astype(np.float32), requirements=["C", "W"])
    tensor = torch.from_numpy(held)
    return tensor.to(example.dtype) if isinstance(example, torch.Tensor) else tensor
