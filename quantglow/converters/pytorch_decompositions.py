"""Operators of torch that ``torch.onnx`` has no form for, as operators that it has.

``run_decompositions`` takes the table; a function that gives ``NotImplemented`` leaves its call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

aten = torch.ops.aten


def attention_of_rank_4(
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


KEY_PADDING = 1
"""The ``mask_type`` of a mask of shape (batch, keys)."""


def encoder_layer(
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


def mean_leaky_relu(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *_: Any
) -> Any:
    """RReLU in evaluation: the slope is the mean of both bounds."""
    return NotImplemented if training else F.leaky_relu(x, (lower + upper) / 2)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.scaled_dot_product_attention.default: attention_of_rank_4,
    aten._transformer_encoder_layer_fwd.default: encoder_layer,
    aten.rrelu.default: mean_leaky_relu,
}
