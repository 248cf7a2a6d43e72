"""``torch.compile(model, backend="quantglow")``: FX graphs of TorchDynamo on quantglow.

Torch finds ``compiled_graph`` by the entry point group ``torch_dynamo_backends``.  A graph is
converted on its first call.  One that cannot be runs as it is, and a warning says why.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from warnings import warn

import numpy as np
import torch
from torch.fx import GraphModule

from quantglow.converters.extras import package
from quantglow.converters.pytorch_graphs import Outputs, Split, onnx_of_graph
from quantglow.driver.compilation import compile
from quantglow.errors import ConversionError, OptionError, QuantglowError
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.fallback_model import FallbackModel

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
    given = dict(options or {})
    if unknown := given.keys() - set(OPTIONS):
        raise OptionError(
            f"options has {sorted(unknown)}; the backend takes {list(OPTIONS)}. "
            "Remedy: leave the others out."
        )
    return GraphOnQuantglow(graph_module, given, needs_gradients(example_inputs))


def needs_gradients(tensors: Sequence[Any]) -> bool:
    """Whether results of these tensors are to be differentiated."""
    given = (tensor for tensor in tensors if isinstance(tensor, torch.Tensor))
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)


class GraphOnQuantglow:
    """An FX graph that is compiled on its first call, and again where its weights change."""

    def __init__(self, module: GraphModule, options: dict[str, Any], differentiates: bool) -> None:
        self.module, self.options = module, options
        self.lock = threading.Lock()
        self.outputs: Outputs | None = None
        self.split: Split | None = None
        self.made: tuple[list[Any], CompiledModel | FallbackModel] | None = None
        self.conversions = 0
        self.eager = False
        if differentiates:
            self._give_up(
                "gradients are enabled, and compiled graphs have none. Remedy: call the model "
                "under torch.no_grad() or torch.inference_mode()"
            )

    def __call__(self, *arguments: Any) -> Any:
        compiled = None if self.eager else self._compiled(arguments)
        if compiled is None or self.split is None or self.outputs is None:
            return self.module.forward(*arguments)
        if not self.outputs.computed:
            return self.outputs.gathered([], arguments)
        names = [info.name for info in compiled.get_inputs()]
        fed = dict(zip(names, (arguments[i] for i in self.split.fed), strict=True))
        results = compiled.run(None, fed)
        pairs = zip(self.outputs.computed, results, strict=True)
        return self.outputs.gathered([like(node, array) for node, array in pairs], arguments)

    def _compiled(self, arguments: Sequence[Any]) -> CompiledModel | FallbackModel | None:
        """The model for the weights among the arguments; None where the graph runs as it is."""
        with self.lock:
            try:
                self.split = self.split or Split.of(self.module.graph)
                self.outputs = self.outputs or Outputs.of(self.module.graph)
                weights = [state_of(arguments[i]) for i in self.split.frozen]
                if self.made is None or self.made[0] != weights:
                    self.made = weights, self._converted(arguments, self.split, self.outputs)
                return self.made[1]
            except QuantglowError as error:
                self._give_up(str(error))
                return None

    def _converted(
        self, arguments: Sequence[Any], split: Split, outputs: Outputs
    ) -> CompiledModel | FallbackModel:
        """The graph compiled with these weights.  Raises ``QuantglowError``."""
        check_devices(arguments)
        self.conversions += 1
        if self.conversions > MOST_WEIGHTS:
            raise ConversionError("weights change from call to call")
        return compile(onnx_of_graph(self.module, arguments, split, outputs), **self.options)

    def _give_up(self, reason: str) -> None:
        """Run the graph as it is from now on, and say why, once."""
        self.eager, self.made = True, None
        warn(
            f"quantglow: a graph of torch.compile runs uncompiled: {reason}",
            RuntimeWarning,
            stacklevel=2,
        )


def check_devices(arguments: Sequence[Any]) -> None:
    """Raise ``ConversionError`` for tensors that are not in the processor's memory."""
    tensors = (argument for argument in arguments if isinstance(argument, torch.Tensor))
    if elsewhere := {str(t.device) for t in tensors if t.device.type != "cpu"}:
        raise ConversionError(f"tensors are on {sorted(elsewhere)}. Remedy: move them to the CPU")


def state_of(tensor: Any) -> Any:
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
    tensor = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    return tensor.to(example.dtype) if isinstance(example, torch.Tensor) else tensor
