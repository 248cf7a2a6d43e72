"""Runtimes of MLServer: quantglow's, and onnxruntime's to compare with.

Arrays come as JSON, or as base64 of their bytes (``content_type`` "base64"), in the type that the
model declares.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import mlserver
import numpy as np
from mlserver import MLModel
from mlserver.codecs import Base64Codec, NumpyCodec
from mlserver.codecs.numpy import to_dtype
from mlserver.errors import MLServerError
from mlserver.types import (
    Datatype,
    InferenceRequest,
    InferenceResponse,
    MetadataTensor,
    Parameters,
    RequestInput,
)
from mlserver.utils import get_model_uri

BUSY, BAD_REQUEST = 503, 400

Feeds = Mapping[str, np.ndarray]

BITS = [8, 16, 32, 64]
DTYPES = {"tensor(float)": "FP32", "tensor(double)": "FP64", "tensor(float16)": "FP16"}
DTYPES |= {"tensor(bool)": "BOOL", "tensor(string)": "BYTES"}
DTYPES |= {f"tensor({kind}{n})": f"{kind.upper()}{n}" for kind in ("int", "uint") for n in BITS}
"""The protocol's names of ONNX's types."""


def tensors(infos: Iterable[Any]) -> list[MetadataTensor]:
    """Inputs or outputs of a session, as the metadata of a model lists them; -1: a free size."""
    return [
        MetadataTensor(
            name=info.name,
            datatype=DTYPES[info.type],
            shape=[size if isinstance(size, int) else -1 for size in info.shape],
        )
        for info in infos
    ]


def digest_of(path: str | Path) -> str:
    """The model that answers, as each answer names it."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


class BusyError(Exception):
    """More calls wait than the settings allow, or the model is being replaced."""


class Queue(Protocol):
    """Runs the calls of many requests."""

    inputs: list[MetadataTensor]
    outputs: list[MetadataTensor]

    def submit(self, feeds: Feeds) -> Future[list[np.ndarray]]:
        """A future of the outputs.  Raises ``BusyError``."""

    def close(self) -> None:
        """End after the calls that came."""


class Runtime(MLModel):
    """Answers requests out of a queue; ``settings.parameters.extra`` has the queue's options."""

    def opened(self, path: str, options: Mapping[str, Any]) -> Queue:
        """The model in a file, ready for requests."""
        raise NotImplementedError

    async def load(self) -> bool:
        path = await get_model_uri(self.settings)
        extra = (self.settings.parameters and self.settings.parameters.extra) or {}
        self.queue = await asyncio.to_thread(self.opened, path, extra)
        self.inputs, self.outputs = self.queue.inputs, self.queue.outputs
        self.declared = {each.name: each for each in self.queue.inputs}
        self.digest = await asyncio.to_thread(digest_of, path)
        mlserver.register("refused", "Requests that found the queue full")
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        feeds = {each.name: self.array(each) for each in payload.inputs}
        try:
            outputs = await asyncio.wrap_future(self.queue.submit(feeds))
        except BusyError as error:
            mlserver.log(refused=1)
            raise MLServerError(str(error), BUSY) from None
        except Exception as error:  # noqa: BLE001  the runtimes' own errors, about this request
            raise MLServerError(str(error), BAD_REQUEST) from None
        pairs = zip([each.name for each in self.queue.outputs], outputs, strict=True)
        return InferenceResponse(
            id=payload.id,
            model_name=self.name,
            model_version=self.version,
            parameters=Parameters(model=self.digest),
            outputs=[NumpyCodec.encode_output(name, array) for name, array in pairs],
        )

    async def unload(self) -> bool:
        await asyncio.to_thread(self.queue.close)
        return True

    def array(self, given: RequestInput) -> np.ndarray:
        """The array of an input.  Raises ``MLServerError`` for another name or type."""
        declared = self.declared.get(given.name)
        if declared is None:
            known = ", ".join(self.declared)
            raise MLServerError(f"there is no input {given.name!r}, only {known}", BAD_REQUEST)
        parameters = given.parameters
        is_base64 = parameters and parameters.content_type == Base64Codec.ContentType
        expected, datatype = Datatype(declared.datatype), Datatype(given.datatype)
        if datatype not in ((expected, Datatype.BYTES) if is_base64 else (expected,)):
            raise MLServerError(
                f"input {given.name!r} is {datatype.value}, and the model takes {expected.value}",
                BAD_REQUEST,
            )
        try:
            if not is_base64:
                return np.asarray(NumpyCodec.decode_input(given))
            (data,) = Base64Codec.decode_input(given)
            return np.frombuffer(data, to_dtype(declared)).reshape(given.shape)
        except ValueError as error:
            raise MLServerError(f"input {given.name!r}: {error}", BAD_REQUEST) from None


class QuantglowQueue:
    """Joins calls to batches where that is faster, see ``qg.InferQueue``."""

    def __init__(self, path: str, num_threads: int, warm_up: list[Any], **options: Any) -> None:
        import quantglow as qg

        model = qg.load(path, num_threads=num_threads)
        self.inputs, self.outputs = tensors(model.get_inputs()), tensors(model.get_outputs())
        kinds = {info.name: info.dtype for info in model.get_inputs()}
        model.warm_up(warm_up)
        self.queue = qg.InferQueue(model, **options)
        self.queue.warm_up(warm_up, specialised=True)
        for shapes in warm_up:
            self.queue.run(None, {i: np.zeros(shapes[i], kind) for i, kind in kinds.items()})

    def submit(self, feeds: Feeds) -> Future[list[np.ndarray]]:
        from quantglow.support.errors import QueueError

        try:
            return self.queue.submit(feeds)
        except QueueError as error:  # full, or closed because another version takes over
            raise BusyError(str(error)) from None

    def close(self) -> None:
        self.queue.close()


class QuantglowRuntime(Runtime):
    """Serves a ``.qgm``."""

    def opened(self, path: str, options: Mapping[str, Any]) -> Queue:
        return QuantglowQueue(path, **options)


class OnnxRuntimeQueue:
    """A session, and a pool of threads that call it."""

    def __init__(
        self, path: str, num_threads: int, streams: int, max_waiting: int, **_: Any
    ) -> None:
        import onnxruntime as ort

        settings = ort.SessionOptions()
        settings.intra_op_num_threads = max(1, num_threads // streams)
        self.session = ort.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
        self.inputs = tensors(self.session.get_inputs())
        self.outputs = tensors(self.session.get_outputs())
        self.pool, self.lock = ThreadPoolExecutor(streams), Lock()
        self.most, self.calls = max_waiting + streams, 0

    def submit(self, feeds: Feeds) -> Future[list[np.ndarray]]:
        with self.lock:
            if self.calls >= self.most:
                raise BusyError(f"{self.calls} calls wait")
            self.calls += 1
        future = self.pool.submit(self.session.run, None, dict(feeds))
        future.add_done_callback(self._done)
        return future

    def _done(self, _: object) -> None:
        with self.lock:
            self.calls -= 1

    def close(self) -> None:
        self.pool.shutdown()


class OnnxRuntimeRuntime(Runtime):
    """Serves an ONNX file."""

    def opened(self, path: str, options: Mapping[str, Any]) -> Queue:
        return OnnxRuntimeQueue(path, **options)
