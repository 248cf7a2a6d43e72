"""Records of tuned tasks: lines of JSON in ``$QUANTGLOW_CACHE_DIR/tuning/records.jsonl``.

A record is used on the machine that measured it; on others it is a hint, measured first.  Lines
that are damaged, and choices that a task does not have, are not used.

A process that loads a model imports this: it imports nothing that compiles.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from quantglow.codegen.llvm.cache import cache_folder, unused
from quantglow.codegen.llvm.isa.costs import Choices, KernelChoice
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.machine import machine_identity
from quantglow.runtime.programs.build import Compiler
from quantglow.support import debug
from quantglow.support.arguments import positive
from quantglow.support.errors import OptionError
from quantglow.support.private_folder import PrivateFolder
from quantglow.version import __version__

FOLDER, NAME = "tuning", "records.jsonl"
VERSION = 1
MOST_NBYTES = 2**26
"""Maximum size of a file of records; a larger one is not read."""

Tune = Literal["records", "measure"]
TUNES: tuple[Tune, ...] = get_args(Tune)
RECORDS, MEASURE = TUNES
"""``records``: choices measured before; ``measure``: also measure those that are missing."""

DAMAGED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Record:
    """Result of tuning a task on a machine.

    ``choice``: None where nothing was faster than the default.  Seconds of the choice and of the
    default are those of the same rounds.
    """

    task: str
    host: str
    choice: KernelChoice | None
    seconds: tuple[float, ...] = ()
    default_seconds: tuple[float, ...] = ()
    tried: int = 0
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())
    version: str = __version__

    def line(self) -> bytes:
        """The record as a line of JSON."""
        data = {
            "v": VERSION,
            "task": self.task,
            "host": self.host,
            "choice": None if self.choice is None else self.choice.to_json(),
            "seconds": self.seconds,
            "default_seconds": self.default_seconds,
            "tried": self.tried,
            "date": self.date,
            "quantglow": self.version,
        }
        return json.dumps(data).encode() + b"\n"

    @staticmethod
    def of(line: bytes) -> Record:
        """The record of a line.  Raises one of ``DAMAGED``."""
        data: Any = json.loads(line)
        if data["v"] != VERSION:
            raise ValueError(f"version {data['v']!r}")
        seconds, default = (tuple(map(float, data[k])) for k in ("seconds", "default_seconds"))
        stored_choice = data["choice"]
        choice = None if stored_choice is None else KernelChoice.of(stored_choice)
        names = (data["task"], data["host"], data["date"], data["quantglow"])
        if not all(isinstance(name, str) for name in names):
            raise TypeError("names are no texts")
        task, host, date, version = names
        return Record(task, host, choice, seconds, default, int(data["tried"]), date, version)


def read_records() -> list[Record]:
    """All intact records of the cache, the oldest first."""
    folder = cache_folder(FOLDER)
    if folder is None or not folder.exists():
        return []
    try:
        content, _ = PrivateFolder(folder).read(NAME)
    except OSError as error:
        unused(error)
        return []
    if len(content) > MOST_NBYTES:
        debug.log(1, f"tuning: {folder / NAME} is too large to be read")
        return []
    records = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            records.append(Record.of(line))
        except DAMAGED as error:
            debug.log(1, f"tuning: line {number} of {folder / NAME} is damaged: {error}")
    return records


def keep_records(records: Sequence[Record]) -> bool:
    """Whether records were added to the cache; without one, or on a full disk, none are."""
    folder = cache_folder(FOLDER)
    if folder is None:
        return False
    try:
        PrivateFolder(folder).append(NAME, b"".join(record.line() for record in records))
    except OSError as error:
        unused(error)
        return False
    return True


def this_host() -> str:
    """The name of this machine in records; empty where the system does not say what it is: then
    the cache of the user is taken to be of one machine."""
    return machine_identity() or ""


def of_machine(records: Iterable[Record], host: str) -> dict[str, Record]:
    """The newest record of each task that was measured on a machine."""
    return {record.task: record for record in records if record.host == host}


def hints(records: Iterable[Record], host: str) -> dict[str, list[KernelChoice]]:
    """Choices that other machines than ``host`` found for each task."""
    choices: dict[str, dict[KernelChoice, None]] = {}
    for record in records:
        if record.host != host and record.choice is not None:
            choices.setdefault(record.task, {})[record.choice] = None
    return {task: list(choices) for task, choices in choices.items()}


def tune_target(target: Target, records: Iterable[Record]) -> Target:
    """A target with the choices that were measured on this machine."""
    own_records = of_machine(records, this_host())
    chosen = {
        task: record.choice for task, record in own_records.items() if record.choice is not None
    }
    return replace(target, choices=Choices(chosen))


def with_records(compiler: Compiler) -> Compiler:
    """A compiler whose target has the choices that were measured on this machine."""
    if compiler.target is None:
        return compiler
    return replace(compiler, target=tune_target(compiler.target, read_records()))


def check_tune(tune: Tune | None, backend: str) -> None:
    """Raise ``OptionError`` unless the argument ``tune`` makes sense."""
    if tune is not None and backend == "reference":
        raise OptionError(
            "tune is for compiled kernels, and backend='reference' has none. Remedy: leave one of "
            "them out."
        )


def check_minutes(max_minutes: float | None, tune: Tune | None) -> float | None:
    """The argument ``max_minutes``.  Raises ``OptionError``."""
    if max_minutes is None:
        return None
    minutes = positive("max_minutes", max_minutes)
    if tune != "measure":
        raise OptionError("max_minutes is the time of tune='measure'. Remedy: give both.")
    return minutes


def check_client(client: Any, tune: Tune | None) -> Any:
    """The argument ``client``.  Raises ``OptionError``."""
    if client is not None:
        # Only here: a process that loads a model needs no cluster.
        from quantglow.support.extras import require_client

        require_client(client)
        if tune != "measure":
            raise OptionError("client is for tune='measure'. Remedy: give both.")
    return client
