"""``quantize``: a float graph becomes an int8 graph."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from quantglow.api.import_model import open_float_graph
from quantglow.api.pipeline.distributed_rounding import ClusterRuns
from quantglow.api.pipeline.groupwise import graph_with_packed_weights
from quantglow.api.pipeline.request import computing
from quantglow.importer import as_onnx
from quantglow.ir.graph.graph import Graph
from quantglow.profiling import Profile
from quantglow.quantization import quantizer
from quantglow.quantization.options import (
    QuantizationConfig,
)
from quantglow.quantization.rounding.layerwise import Begin
from quantglow.quantization.rounding.sample_runs import SampleRuns
from quantglow.support.arguments import (
    brief,
    instance,
    options_named,
)
from quantglow.support.errors import OptionError
from quantglow.support.extras import require_client
from quantglow.support.processes.interrupts import keeping_best


@options_named
def quantize(
    graph: Graph,
    profile: Profile | str | os.PathLike[str] | None,
    config: QuantizationConfig | None = None,
    data: Any = None,
    client: Any = None,
) -> Graph:
    """The int8 graph of a float graph, with ranges from its profile.

    ``data``: calibration samples, for accuracy recovery.  Weights in groups
    (``QuantizationConfig.weights``) need no profile.

    ``client``: a ``dask.distributed.Client``, whose workers run the samples of accuracy recovery,
    eight in a shard; ranges and scales are chosen in this process.  The graph is the same for any
    number of workers and whichever die, where they are of one kind.  Raises ``BackendError`` where
    the workers are not, or give no result.
    """
    graph, data = as_onnx(graph, data)
    chosen = resolve_config(config)
    workers = None if client is None else require_client(client)
    if workers is not None and (data is None or chosen.weights is not None or not chosen.recovery):
        raise OptionError(
            "client runs the samples of accuracy recovery, and there is none without data, without "
            "techniques (recovery), or with weights in groups. Remedy: pass data, or leave client "
            "out."
        )
    if chosen.weights is not None:
        with keeping_best():
            return graph_with_packed_weights(open_float_graph(graph), data, chosen)
    if not isinstance(profile, Profile | str | os.PathLike):
        raise OptionError(
            f"profile must be a Profile or the path of one, got {brief(profile)}. "
            "Remedy: record one with quantglow.profile"
        )
    recorded = profile if isinstance(profile, Profile) else Profile.load(profile)
    begin: Begin = SampleRuns
    if workers is not None:
        begin = partial(ClusterRuns, workers, chosen.profile_with)
    with keeping_best(), computing(chosen.profile_with):
        return quantizer.quantize(open_float_graph(graph), recorded, chosen, data=data, begin=begin)


def resolve_config(config: QuantizationConfig | None) -> QuantizationConfig:
    """The options, or those that are the default.  Raises ``OptionError``."""
    if config is None:
        return QuantizationConfig()
    checked: QuantizationConfig = instance(
        "config", config, QuantizationConfig, "a QuantizationConfig"
    )
    return checked
