"""Samples of a PyTorch module: from what the user gives to arrays by input name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from quantglow.profiling.samples.feeds import samples_in
from quantglow.profiling.samples.files import Unnamed, are_labels, without_labels
from quantglow.support.arguments import brief
from quantglow.support.arrays import Array, array_of_tensor
from quantglow.support.errors import CalibrationError

MAX_AHEAD, MAX_AHEAD_NBYTES = 64, 1 << 28
"""Maximum number of samples of a loader whose shapes are compared before the export, and of the
bytes that they take meanwhile."""


@dataclass(frozen=True)
class ModuleCall:
    """Arguments of ``forward``, in its order."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @staticmethod
    def of(sample: Any, signature: Signature) -> ModuleCall:
        """The call that a sample stands for: a dict has keywords, a tuple or list positional
        arguments, anything else is the only argument; labels are left out.  Raises
        ``CalibrationError``.
        """
        args, kwargs = _call_arguments(_strip_labels(sample, signature))
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise CalibrationError(
                f"a sample does not fit forward{signature}: {error}. Remedy: give a dict by the "
                "names of forward's arguments, or a tuple in their order, without labels."
            ) from None
        return ModuleCall(bound.args, dict(bound.kwargs)).map(_as_tensor)

    def map(self, change: Any) -> ModuleCall:
        """The call with every leaf of its arguments changed."""
        args, kwargs = pytree.tree_map(change, (self.args, self.kwargs))
        return ModuleCall(args, kwargs)

    @property
    def leaves(self) -> list[Any]:
        """Tensors and constants in the order of the exported program's inputs."""
        return list(pytree.tree_leaves((self.args, self.kwargs)))

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]


def _strip_labels(sample: Any, signature: Signature) -> Any:
    """A sample without labels: an entry of a dict that ``forward`` does not name, integers behind
    its arguments, or those of a file or folder."""
    if isinstance(sample, Unnamed):
        return sample.values
    if isinstance(sample, Mapping):
        kinds = {parameter.kind for parameter in signature.parameters.values()}
        takes_all = Parameter.VAR_KEYWORD in kinds
        return sample if takes_all else without_labels(sample, [*signature.parameters])[0]
    is_longer = isinstance(sample, tuple | list) and not _fits(signature, sample)
    return sample[:-1] if is_longer and sample and are_labels(sample[-1]) else sample


def _fits(signature: Signature, arguments: Sequence[Any]) -> bool:
    """Whether positional arguments are those of a call."""
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def varying_axes(samples: Iterable[Any], signature: Signature) -> dict[int, set[int]]:
    """Axes whose sizes differ among samples, by the position of the leaf of a call."""
    varying: dict[int, set[int]] = {}
    first: list[tuple[int, ...]] | None = None
    for sample in samples:
        shapes = [np.shape(leaf) for leaf in _sample_leaves(sample, signature)]
        first = shapes if first is None else first
        for position, (one, other) in enumerate(zip(first, shapes, strict=False)):
            pairs = enumerate(zip(one, other, strict=False))
            axes = {axis for axis, (size, another) in pairs if size != another}
            varying[position] = varying.get(position, set()) | axes
    return varying


def _sample_leaves(sample: Any, signature: Signature) -> list[Any]:
    """The leaves of a sample's call, not converted; none of a sample that fits no call."""
    args, kwargs = _call_arguments(_strip_labels(sample, signature))
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return []
    return list(pytree.tree_leaves((bound.args, dict(bound.kwargs))))


def _call_arguments(sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a sample."""
    if isinstance(sample, Mapping):
        return (), dict(sample)
    return tuple(sample) if isinstance(sample, tuple | list) else (sample,), {}


def _as_tensor(leaf: Any) -> Any:
    """A tensor of an array, also of one of bfloat16, which NumPy has not; or the leaf."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    if leaf.dtype.name != "bfloat16":
        return torch.from_numpy(np.array(leaf))
    return torch.from_numpy(np.array(leaf).view(np.int16)).view(torch.bfloat16)


@dataclass
class Resumed:
    """Samples of an iterable whose ``first`` ones were read: the iteration that first goes beyond
    these goes on with the iterator ``later``, and iterations after it start anew."""

    samples: Iterable[Any]
    first: Sequence[Any]
    later: Iterator[Any] | None

    def __iter__(self) -> Iterator[Any]:
        first, later = self.first, self.later
        if later is None:
            yield from self.samples
            return
        yield from first
        resumes = self.later is later
        self.first, self.later = (), None
        yield from later if resumes else islice(self.samples, len(first), None)


def first_samples(data: Any) -> tuple[Sequence[Any], Any]:
    """All samples of a list, else the first ones up to a limit of number and memory; and data that
    still contains them.  Raises ``CalibrationError``.
    """
    samples = samples_in(array_of_tensor(data) if isinstance(data, torch.Tensor) else data, ())
    first: Sequence[Any] = samples if isinstance(samples, list | tuple) else ()
    if first is not samples:
        later = iter(samples)
        first = list(_within_memory(islice(later, MAX_AHEAD)))
        samples = chain(first, later) if later is samples else Resumed(samples, first, later)
    if not first:
        raise CalibrationError("there are no samples. Remedy: give at least one.")
    return first, samples


def _within_memory(samples: Iterable[Any]) -> Iterator[Any]:
    """Samples until their tensors take ``MAX_AHEAD_NBYTES``, at least one."""
    nbytes = 0
    for sample in samples:
        yield sample
        leaves = pytree.tree_leaves(sample)
        nbytes += sum(int(getattr(leaf, "nbytes", 0)) for leaf in leaves)
        if nbytes >= MAX_AHEAD_NBYTES:
            return


@dataclass(frozen=True)
class NamedSamples:
    """Samples as dicts of arrays by the names of the exported program's inputs.

    ``names`` has None for a leaf that is a constant of the program, which is in ``constants``.
    """

    samples: Iterable[Any]
    signature: Signature
    names: tuple[str | None, ...]
    constants: tuple[Any, ...]

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return map(self.named, self.samples)

    def named(self, sample: Any) -> dict[str, Array]:
        """Arrays of a sample by input name.  Raises ``CalibrationError``."""
        leaves = ModuleCall.of(sample, self.signature).leaves
        if len(leaves) != len(self.names):
            raise CalibrationError(
                f"a sample has {len(leaves)} tensors and constants, the first one has "
                f"{len(self.names)}. Remedy: give all samples the same arguments."
            )
        for leaf, name, constant in zip(leaves, self.names, self.constants, strict=True):
            self._check(leaf, name, constant)
        pairs = zip(self.names, leaves, strict=True)
        return {name: array_of_tensor(leaf) for name, leaf in pairs if name is not None}

    @staticmethod
    def _check(leaf: Any, name: str | None, constant: Any) -> None:
        if name is None and leaf != constant:
            raise CalibrationError(
                f"a sample has the constant {brief(leaf)} where the first one has "
                f"{brief(constant)}; the exported model is for the first. Remedy: give all samples "
                "the same constants, or pass tensors."
            )
        if name is not None and not isinstance(leaf, torch.Tensor):
            raise CalibrationError(
                f"a sample has {brief(leaf)} for {name!r}, the first one a tensor. "
                "Remedy: give all samples the same arguments."
            )
