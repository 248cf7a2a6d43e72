"""The manifest of a bundle: what it was made of and what it needs, as JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from quantglow.bundle.contents import Contents
from quantglow.memory.arena_order import ALIGNMENT
from quantglow.version import __version__

FORMAT = 1


def manifest(bundle: Contents, files: Mapping[str, bytes]) -> dict[str, Any]:
    """The contents of ``NAME.json``; ``files`` are those of the bundle beside it."""
    target, made = bundle.target, bundle.made
    return {
        "format": FORMAT,
        "name": bundle.name,
        "quantglow": __version__,
        "source_hash": bundle.model.source_hash,
        "target": {
            "name": target.name,
            "triple": target.triple,
            "cpu": target.cpu,
            "features": target.features,
        },
        "arena": {"nbytes": made.arena_nbytes, "align": ALIGNMENT},
        "stack_nbytes": made.stack.most_nbytes,
        "stack": asdict(made.stack),
        "code_nbytes": bundle.flash.code_nbytes,
        "flash_counted": bundle.flash.method,
        "weights": {"nbytes": made.weights.nbytes, "placement": str(made.weights.placement)},
        "inputs": [tensor.to_json() for tensor in bundle.inputs],
        "outputs": [tensor.to_json() for tensor in bundle.outputs],
        "needs": asdict(bundle.needs),
        "kernels": list(made.kernels),
        "files": {
            file: {"nbytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for file, data in files.items()
        },
    }
