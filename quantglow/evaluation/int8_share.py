"""Share of a model's multiply-accumulates that are computed in int8.

A process that runs a saved model has this figure in its report: ``evaluation.macs`` counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FIRST_SAMPLE = "for the first sample"
PROFILE_SHAPES = "at the shapes of the profile"
"""Origins of the sizes at which products are counted."""

PREFIXES = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"))


@dataclass(frozen=True)
class Int8Share:
    """Multiply-accumulates of products in one run of a whole model, and those of them in int8.

    They are counted where they run, at the sizes of the arrays that arrive there: in the compiled
    graphs (convolutions and matrix products), in each trip of a loop, in parts behind operators
    that decide shapes, and in what onnxruntime runs (``ort.products.count_products``).  Bias,
    normalizations, pools, comparisons and other operators that are no products do not count, nor
    does padding of kernels.

    int8   products whose two factors have 8 bits or fewer in a compiled graph.  Float layers,
           int16 activations, weights in groups with float activations and all that onnxruntime
           runs are not int8.
    total  all products
    basis  origin of the sizes: ``FIRST_SAMPLE``, the first sample of the check, or
           ``PROFILE_SHAPES``
    """

    int8: int
    total: int
    basis: str = FIRST_SAMPLE

    @property
    def share(self) -> float:
        """int8 over total; 0 for a model without products."""
        return self.int8 / self.total if self.total else 0.0

    def __str__(self) -> str:
        # Rounded down: 100.0 % says that nothing is missing.
        percent = (1000 * self.int8 // max(self.total, 1)) / 10
        sizes = f"(of {count_text(self.total)} {self.basis})"
        return f"int8: {percent:.1f} % of multiply-accumulates {sizes}"

    def to_json(self) -> dict[str, Any]:
        """The figures in types that ``json`` writes."""
        return {"int8": self.int8, "total": self.total, "basis": self.basis, "share": self.share}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Int8Share:
        """The object from the result of ``asdict`` or ``to_json``."""
        return Int8Share(int(data["int8"]), int(data["total"]), str(data["basis"]))


def count_text(count: int) -> str:
    """``1.23 G``."""
    for size, prefix in PREFIXES:
        if count >= size:
            return f"{count / size:.3g}{prefix}"
    return str(count)
