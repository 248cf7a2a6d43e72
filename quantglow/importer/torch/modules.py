"""PyTorch modules and exported programs as ONNX, by ``torch.export`` and ``torch.onnx``.

``DECOMPOSITIONS`` has operators of torch for which ``torch.onnx`` has no form, as operators for
which it has one.  ``run_decompositions`` takes the table; a function that gives ``NotImplemented``
leaves its call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram, ShapesCollection
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from quantglow.importer.exporters import quiet, root_cause
from quantglow.importer.torch.samples import ModuleCall, NamedSamples, first_samples, varying_axes
from quantglow.support.arrays import array_of_tensor
from quantglow.support.errors import ConversionError

aten = torch.ops.aten

KEY_PADDING = 1
"""The ``mask_type`` of a mask of shape (batch, keys)."""

PACKAGES = "torch", "onnxscript", "onnx_ir"
"""Packages whose log lines stay out of the terminal."""

CACHE = re.compile(r"\w+Cache'> in output")
"""How ``torch.export`` names the cache that a model of transformers gives beside its outputs."""

FEWEST = 2
"""Rows of a batch with which ``torch.export`` leaves the batch free: it takes 1 for a constant."""

MODES = {torch.ops.aten.dropout.default: 2, torch.ops.aten.batch_norm.default: 5}
"""Operators that compute something else in training, and the position of the flag that says so."""


def convert(model: Any, data: Any) -> tuple[Any, Any]:
    """A module or exported program as ONNX, its samples by input name.

    Raises ``ConversionError`` where the model is in training mode or an exporter refuses it,
    ``CalibrationError`` for samples that do not fit ``forward``.
    """
    with quiet(*PACKAGES), torch.no_grad():
        if isinstance(model, ExportedProgram):
            is_array = isinstance(data, torch.Tensor)
            return write_onnx(model), array_of_tensor(data) if is_array else data
        module = _check_module(model, data)
        ahead, samples = first_samples(data)
        call = ModuleCall.of(first := ahead[0], signature(module.forward))
        axes = varying_axes(ahead, signature(module.forward))
        program = export(module, call, axes).run_decompositions(dict(DECOMPOSITIONS))
        _check_stateless(program)
        named = NamedSamples(samples, signature(module.forward), *_input_names(program, call))
        return write_onnx(program), _whole_or_all(data, first, named)


def _whole_or_all(data: Any, first: Any, named: NamedSamples) -> Any:
    """The samples by name; of data that is one array, or one for each input, that alone: its rows
    are the samples."""
    is_whole = (isinstance(first, dict) and first is data) or isinstance(data, torch.Tensor)
    if is_whole:
        return named.named(first)
    return iter(named) if isinstance(named.samples, Iterator) else named


def _check_module(module: Any, data: Any) -> torch.nn.Module:
    """The module.  Raises ``ConversionError`` in training mode and without samples."""
    assert isinstance(module, torch.nn.Module)
    if _is_training(module):
        raise ConversionError(
            f"the module {type(module).__name__} is in training mode, in which it may compute "
            "something else (Dropout, BatchNorm). Remedy: module.eval(), before an export."
        )
    if data is None:
        raise ConversionError(
            f"torch.export needs a sample of the inputs of {type(module).__name__}. Remedy: pass "
            "samples=[...], or an ExportedProgram of torch.export.export."
        )
    return module


def _is_training(module: torch.nn.Module) -> bool:
    """Whether a module is in training mode; that of an exported graph stands in its operators."""
    is_graph = isinstance(module, torch.fx.GraphModule) and "eval" in vars(module)
    if not is_graph:
        return bool(module.training)
    assert isinstance(module.graph, torch.fx.Graph)
    nodes = (node for node in module.graph.nodes if node.target in MODES)
    return any(node.args[MODES[node.target]] is True for node in nodes)


def _unmark(leaf: Any) -> Any:
    """The leaf; a tensor as another object, without the marks that ``torch.export`` leaves."""
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


@dataclass(frozen=True)
class ModuleBatch:
    """Arguments with at least ``FEWEST`` rows, and which of them have rows."""

    call: ModuleCall
    rows: Sequence[torch.Tensor]

    @staticmethod
    def of(call: ModuleCall) -> ModuleBatch | None:
        """None where no argument has rows."""
        sizes = [tensor.shape[0] for tensor in call.tensors if tensor.ndim]
        if not sizes or not sizes[0]:
            return None

        def repeated(leaf: Any) -> Any:
            is_row = isinstance(leaf, torch.Tensor) and leaf.ndim and leaf.shape[0] == sizes[0]
            return torch.cat([leaf] * FEWEST) if is_row and sizes[0] < FEWEST else _unmark(leaf)

        repeated_call, size = call.map(repeated), max(sizes[0], FEWEST)
        return ModuleBatch(
            repeated_call, [t for t in repeated_call.tensors if t.ndim and t.shape[0] == size]
        )


def export(
    module: torch.nn.Module, call: ModuleCall, axes: Mapping[int, Collection[int]]
) -> ExportedProgram:
    """The program of a module, for batches of all sizes and for all sizes of ``axes``, by the
    position of the leaf, where that is possible.

    Raises ``ConversionError``.
    """
    call = call.map(_to_module_device(module))
    return _of_free_batch(module, call, axes) or _of_one_shape(module, call.map(_unmark))


def _to_module_device(module: torch.nn.Module) -> Any:
    """A function that moves tensors to where the module's weights are."""
    weight = next(module.parameters(), None)
    device = torch.device("cpu") if weight is None else weight.device
    return lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf


def _of_free_batch(
    module: torch.nn.Module, call: ModuleCall, axes: Mapping[int, Collection[int]]
) -> ExportedProgram | None:
    """The program for batches of all sizes; None where export or the module fixes a size.

    A module may do something else with one row (``squeeze``), so one row is tried.
    """
    batch = ModuleBatch.of(call)
    if batch is None:
        return None
    shapes = ShapesCollection()
    for position, leaf in enumerate(batch.call.leaves):
        batch_axis = {0 for row in batch.rows if row is leaf}
        if free := batch_axis | {*axes.get(position, ())}:
            shapes[leaf] = dict.fromkeys(free, Dim.AUTO)
    batch_call = batch.call
    try:
        program = torch.export.export(
            module, batch_call.args, batch_call.kwargs, dynamic_shapes=shapes
        )
        return program if _agrees(program, module, call) else None
    except Exception:  # noqa: BLE001  whatever export does not allow: at one shape it may
        return None


def _agrees(program: ExportedProgram, module: torch.nn.Module, call: ModuleCall) -> bool:
    """Whether the program gives what the module gives for the user's own sample."""
    expected, actual = (f(*call.args, **call.kwargs) for f in (module, program.module()))
    pairs = zip(pytree.tree_leaves(expected), pytree.tree_leaves(actual), strict=True)
    return all(
        w.shape == f.shape and torch.allclose(w, f, rtol=1e-3, atol=1e-5, equal_nan=True)
        for w, f in pairs
        if isinstance(w, torch.Tensor)
    )


def _of_one_shape(module: torch.nn.Module, call: ModuleCall) -> ExportedProgram:
    """The program for the shapes of a call.  Raises ``ConversionError``."""
    try:
        return torch.export.export(module, call.args, call.kwargs)
    except Exception as error:
        raise ConversionError(
            f"torch.export refuses {type(module).__name__}: {root_cause(error)}. Remedy: "
            f"{_remedy_for(error)}, or export another way and pass the ONNX file."
        ) from error


def _remedy_for(error: Exception) -> str:
    """The change that makes ``torch.export`` take a module."""
    if CACHE.search(str(error)):
        return "a cache is no tensor: pass use_cache=False in the sample"
    return "rewrite the line of forward that it names"


def _check_stateless(program: ExportedProgram) -> None:
    """Raise ``ConversionError`` for a module that changes its buffers: later calls give other
    results."""
    changed = list(program.graph_signature.buffers_to_mutate.values())
    if changed:
        raise ConversionError(
            f"forward changes the buffer {changed[0]!r}, and a compiled model has no state. "
            "Remedy: make it an argument and a result of forward."
        )


def _input_names(
    program: ExportedProgram, call: ModuleCall
) -> tuple[tuple[str | None, ...], tuple[Any, ...]]:
    """Names of the program's inputs, None for constants; and the leaves of the call."""
    specs = [s for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
    names = (None if isinstance(s.arg, ConstantArgument) else s.arg.name for s in specs)
    return tuple(names), tuple(call.leaves)


def write_onnx(program: ExportedProgram) -> Any:
    """The ``onnx.ModelProto`` of a program.  Raises ``ConversionError``."""
    try:
        names = _output_names(program)
        result = torch.onnx.export(program, dynamo=True, verbose=False, output_names=names)
    except Exception as error:
        raise ConversionError(
            f"torch.onnx.export refuses the exported program: {root_cause(error)}. Remedy: rewrite "
            "what it names in the module, or write the ONNX file another way and pass that."
        ) from error
    assert result is not None
    return result.model_proto


def _output_names(program: ExportedProgram) -> list[str] | None:
    """The keys of a dict of outputs, where these are free to be names; None for other outputs."""
    spec = program.call_spec.out_spec
    if spec is None or not issubclass(spec.type or object, dict):
        return None
    names = [str(key) for key in spec.context]
    node_names = {node.name for node in program.graph.nodes}
    is_flat = spec.num_leaves == len(names) and not node_names & set(names)
    return names if is_flat else None


def _attention_of_rank_4(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *options: Any,
    **keywords: Any,
) -> Any:
    """Attention of tensors with one batch axis and one of heads: others are joined, or added."""
    tensors = query, key, value
    rank = max(tensor.ndim for tensor in tensors)
    if rank == query.ndim == 4:
        return NotImplemented
    batch = torch.broadcast_shapes(*(tensor.shape[:-3] for tensor in tensors))

    def joined(tensor: Tensor) -> Tensor:
        if rank < 4:
            return tensor[(None,) * (4 - tensor.ndim)]
        return tensor.expand(*batch, *tensor.shape[-3:]).flatten(0, -4)

    if attn_mask is not None and attn_mask.ndim > 2:
        attn_mask = joined(attn_mask)
    result = F.scaled_dot_product_attention(
        joined(query), joined(key), joined(value), attn_mask, *options, **keywords
    )
    return result.reshape(result.shape[4 - rank :] if rank < 4 else (*batch, *result.shape[1:]))


def _encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    gamma_1: Tensor,
    beta_1: Tensor,
    gamma_2: Tensor,
    beta_2: Tensor,
    weight_1: Tensor,
    bias_1: Tensor,
    weight_2: Tensor,
    bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """``nn.TransformerEncoderLayer`` in evaluation: one operator where gradients are off."""
    allowed = None
    if mask is not None:
        is_padding = mask_type == KEY_PADDING
        allowed = ~(mask[:, None, None, :] if is_padding else mask).to(torch.bool)

    def attend(x: Tensor) -> Tensor:
        heads = F.linear(x, qkv_weight, qkv_bias).unflatten(-1, (3, num_heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        result = F.scaled_dot_product_attention(query, key, value, allowed)
        return F.linear(result.transpose(1, 2).flatten(2), proj_weight, proj_bias)

    def feed_forward(x: Tensor) -> Tensor:
        hidden = F.linear(x, weight_1, bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), weight_2, bias_2)

    def norm_1(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), gamma_1, beta_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), gamma_2, beta_2, eps)

    if norm_first:
        src = src + attend(norm_1(src))
        return src + feed_forward(norm_2(src))
    src = norm_1(src + attend(src))
    return norm_2(src + feed_forward(src))


def _mean_leaky_relu(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *_: Any
) -> Any:
    """RReLU in evaluation: the slope is the mean of both bounds."""
    return NotImplemented if training else F.leaky_relu(x, (lower + upper) / 2)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.scaled_dot_product_attention.default: _attention_of_rank_4,
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    aten.rrelu.default: _mean_leaky_relu,
}
