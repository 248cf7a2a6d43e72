"""Transformers as their package gives them: small, with random weights, and inputs by name."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}

Network = tuple[torch.nn.Module, dict[str, Any]]


def vit() -> Network:
    config = hf.ViTConfig(**LAYERS, intermediate_size=64, image_size=32, patch_size=8)
    return hf.ViTModel(config).eval(), {"pixel_values": torch.randn(2, 3, 32, 32)}


def bert() -> Network:
    """With a mask: the second text is shorter."""
    config = hf.BertConfig(**LAYERS, vocab_size=100, intermediate_size=64)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    inputs = {"input_ids": torch.randint(0, 100, (2, 9)), "attention_mask": mask}
    return hf.BertModel(config).eval(), inputs


def t5_decoder() -> Network:
    """A decoder that attends to itself, causally, and to an encoder's states."""
    sizes = {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2}
    config = hf.T5Config(**sizes, num_heads=4, feed_forward_proj="gated-gelu")
    network = hf.T5Model(config).decoder.eval()
    inputs = {
        "input_ids": torch.randint(1, 100, (2, 5)),
        "encoder_hidden_states": torch.randn(2, 9, 32),
        "use_cache": False,
    }
    return network, inputs


def rt_detr() -> Network:
    """Its weights are moved: as they begin, all scores are equal, and TopK's order is free."""
    stages = {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
    backbone = hf.RTDetrResNetConfig(
        **stages, embedding_size=8, layer_type="basic", out_features=["stage2", "stage3", "stage4"]
    )
    config = hf.RTDetrConfig(
        backbone_config=backbone,
        encoder_in_channels=[16, 16, 32],
        decoder_in_channels=[16, 16, 16],
        **dict.fromkeys(("d_model", "encoder_hidden_dim"), 16),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 32),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
        **dict.fromkeys(("decoder_layers", "decoder_n_points"), 2),
        num_queries=10,
        num_labels=5,
    )
    network = hf.RTDetrForObjectDetection(config).eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(torch.randn(weight.shape) * 0.1)
    return network, {"pixel_values": torch.randn(1, 3, 64, 64)}
