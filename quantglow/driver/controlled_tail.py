"""The part of a model behind the cut under an accuracy contract: int8 if the contract still holds.

The search of accuracy control has ended with that part in float.  Only ``validation_fn`` tells of
the whole model.
"""

from __future__ import annotations

from collections.abc import Callable

from quantglow.driver.control import Controlled, Whole
from quantglow.driver.int8_rest import UNDER_CONTRACT
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.fallback_model import PartlyCompiledModel
from quantglow.runtime.staged_tails import StagedTail

Model = CompiledModel | PartlyCompiledModel


def under_contract(
    controlled: Controlled,
    in_float: StagedTail,
    int8: Callable[[], StagedTail | None],
    whole: Callable[[StagedTail], Whole],
) -> Model:
    """The whole model, with an int8 tail where that keeps the contract.

    ``int8`` makes that tail; ``whole`` gives a function that completes a head by a tail.
    """
    head, contract = controlled.head, controlled.contract
    if not controlled.measures_whole_model:
        return whole(in_float.because(UNDER_CONTRACT))(head)
    if why := controlled.deadline.reason:
        return whole(in_float.because(f"{why} ended accuracy control before it"))(head)
    tail = int8()
    if tail is None or not tail.has_int8:
        return whole(tail or in_float)(head)
    made = whole(tail)(head)
    drop = contract.drop(controlled.baseline, contract.figure(made))
    if drop > contract.max_drop:
        return whole(in_float.because(f"in int8 the drop would be {drop:.4g}"))(head)
    note = f"accuracy control: with the part behind the cut in int8 the drop is {drop:.4g}"
    return whole(tail)(controlled.noted(note))
