"""Values that calls of ``multiprocessing`` or Dask take to another process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from quantglow.ir.graph.family import Case
from quantglow.ir.ops.expression import arg, call
from quantglow.ir.symbolic.expression import symbol
from quantglow.support import errors

CASE = Case.of({"x": (1, 2)}, {"rate": (8000,)})
EXPRESSION = call("add", arg(0), arg(1))
SIZE = symbol("N") * symbol("T")

VALUES = {"case": CASE, "function": EXPRESSION, "size": SIZE}

MADE = """
import pickle, sys
from tests.unit.test_other_processes import VALUES
hash(VALUES[{name!r}])
sys.stdout.buffer.write(pickle.dumps(VALUES[{name!r}]))
"""

ERRORS = (
    errors.CalibrationError("no samples"),
    errors.UnsupportedOpError(["node 'a'", "node 'b'"]),
    errors.UndecidedError(["node 'a'"], ("rate",)),
    errors.AccuracyDropError("too far", best=1),
    errors.StateFullError(9, 8),
    errors.OutOfRangeError("gather", 7, 4),
    errors.QueueFullError(3),
    errors.OutOfMemoryError(10**9),
)


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", VALUES)
def test_values_of_processes_with_other_hashes_are_found(name: str) -> None:
    root, environment = Path(__file__).parents[2], {"PYTHONHASHSEED": "7"}
    code = MADE.format(name=name)
    results = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, check=True
    )
    assert pickle.loads(results.stdout) in {VALUES[name]}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_keep_their_message_and_facts(error: errors.QuantglowError) -> None:
    data = pickle.loads(pickle.dumps(error))
    assert type(data) is type(error)
    assert str(data) == str(error)
    assert vars(data) == vars(error)


def test_every_error_with_arguments_of_its_own_is_among_them() -> None:
    kinds = {e for e in vars(errors).values() if isinstance(e, type) and "__init__" in vars(e)}
    assert kinds <= {type(error) for error in ERRORS}
