"""The registry of targets: every instruction set, and which of their levels run on this machine."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from quantglow.codegen.llvm.isa import portable, riscv, wasm
from quantglow.codegen.llvm.isa.aarch64 import instructions as aarch64
from quantglow.codegen.llvm.isa.cortex_m import instructions as cortex_m
from quantglow.codegen.llvm.isa.costs import Core
from quantglow.codegen.llvm.isa.target import (
    Detection,
    Host,
    Level,
    LevelChoice,
    Target,
    TargetFamily,
    never_refused,
)
from quantglow.codegen.llvm.isa.x86 import levels as x86
from quantglow.codegen.llvm.machine import host, read_core
from quantglow.support.arguments import instance, options_named
from quantglow.support.errors import BackendError, OptionError

FAMILIES: tuple[TargetFamily, ...] = (
    x86.FAMILY,
    aarch64.FAMILY,
    riscv.FAMILY,
    wasm.FAMILY,
    cortex_m.FAMILY,
    portable.FAMILY,
)
"""Instruction sets in the order in which ``native`` tries them; ``portable`` runs everywhere."""

KNOWN_CORES: tuple[Core, ...] = (Core(), x86.ICE_LAKE, aarch64.CORE)
"""The cores whose costs are listed."""

NATIVE = "native"
"""Name of the best level that this processor has, with all that is known of it."""

ALL = ":all"
"""End of the name of all levels of a processor."""

_LEVELS: dict[str, tuple[TargetFamily, Level]] = {
    level.name: (family, level) for family in FAMILIES for level in family.levels
}

LEVELS: tuple[str, ...] = tuple(_LEVELS)
"""Names of quantglow's own levels, best first."""

_CHOICES: dict[str, tuple[TargetFamily, Detection]] = {
    family.triple.partition("-")[0].replace("_", "-") + ALL: (family, family.detection)
    for family in FAMILIES
    if family.detection and any(level.refusal is never_refused for level in family.levels)
}

CHOICES: tuple[str, ...] = tuple(_CHOICES)
"""Names of processors whose level a program can choose when it runs, as ``x86-64:all``."""


@options_named
def register_target(family: TargetFamily) -> None:
    """Make the levels of an instruction set outside of the package targets, by their names.

    ``native`` stays what it is.  Registering a level again replaces it; its programs and kernels
    are compiled in each process, because no cache sees a change of its code.  Raises
    ``OptionError`` for names that quantglow's own targets have.
    """
    instance("family", family, TargetFamily, "a TargetFamily, see examples/own_level.py")
    if refused := [level.name for level in family.levels if level.name in (NATIVE, *LEVELS)]:
        raise OptionError(
            f"{', '.join(refused)}: a target of quantglow has this name. Remedy: take another."
        )
    _LEVELS.update({level.name: (family, level) for level in family.levels})
    resolve.cache_clear()


def _this_processor() -> Host:
    """This processor, with all that its family finds out about it."""
    processor = host()
    for family in FAMILIES:
        if family.matches(processor):
            return family.completed(processor)
    return processor


def runs_here(level: str) -> bool:
    """Whether code of a level can run on this processor, in this process."""
    family, details = _LEVELS[level]
    return not family.obstacle(details, _this_processor())


@cache
def resolve(name: str) -> Target:
    """The target called ``native`` or one of ``LEVELS``, whose code can run in this process.

    Raises ``BackendError`` for unknown names and for levels that do not run here.
    """
    if name == NATIVE:
        return _native()
    family, level = _level(name)
    if obstacle := family.obstacle(level, _this_processor()):
        raise BackendError(
            f"target {name!r} does not run here: {obstacle}. Remedy: target='native'"
        )
    return level_target(name)


def level_target(name: str) -> Target:
    """A level as data, to generate code that need not run here.  Raises ``BackendError``."""
    family, level = _level(name)
    return family.target(level, family.triple or host().triple)


def own_choice() -> str:
    """The name of all levels of this processor's family, ``native`` where that has no choice."""
    processor = host().triple.partition("-")[0]
    for name, (family, _) in _CHOICES.items():
        if (family.triple or "").partition("-")[0] == processor:
            return name
    return NATIVE


def level_choice(name: str) -> tuple[tuple[Target, ...], LevelChoice]:
    """The levels of one of ``CHOICES``, best first, and what decides between them at run time;
    levels that an operating system has to permit are left out.  Raises ``BackendError``.
    """
    if name not in _CHOICES:
        raise BackendError(
            f"unknown processor {name.removesuffix(ALL)!r}; choose {' or '.join(CHOICES)}"
        )
    family, detection = _CHOICES[name]
    levels = [level for level in family.levels if level.refusal is never_refused]
    targets = tuple(family.target(level, family.triple) for level in levels)
    return targets, LevelChoice(detection, tuple(level.needs for level in levels))


def _level(name: str) -> tuple[TargetFamily, Level]:
    if name not in _LEVELS:
        raise BackendError(
            f"unknown target {name!r}. Remedy: 'native', or one of {', '.join(_LEVELS)}; any "
            "Cortex-M that is not among them is 'cortex-m0plus'"
        )
    return _LEVELS[name]


def _native() -> Target:
    """The best level that runs here, made for exactly this processor, with the costs of its core as
    measured here, or else as listed."""
    this = _this_processor()
    name = next(name for name in LEVELS if runs_here(name))
    family, level = _LEVELS[name]
    target = family.tuned(level, this)
    core = read_core(name)
    return target if core is None else replace(target, core=core)
