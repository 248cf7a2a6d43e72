"""A Dask cluster of processes of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import dask
import distributed


@contextmanager
def two_workers(variables: Mapping[str, str] | None = None) -> Iterator[distributed.Client]:
    """A client of a cluster of two processes that have these environment variables.

    By default Dask looks 15 seconds after a worker has died whether a worker of its name is there,
    and closes its nanny otherwise.  That look must not come while the nanny restarts a worker that
    died later, or the cluster loses its workers for good.
    """
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}),
        distributed.LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=2,
            threads_per_worker=2,
            dashboard_address=None,
            silence_logs=50,
            env=dict(variables or {}),
        ) as cluster,
        distributed.Client(cluster) as client,  # type: ignore[no-untyped-call]
    ):
        yield client
