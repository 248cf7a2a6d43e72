"""Instruction sets: everything that code generation knows of a processor.

``interface`` lists the operations whose instructions differ between processors, ``dot`` the steps
of contractions, ``costs`` the scheduling costs of a core, and ``target`` ties them to LLVM's names.
``portable`` implements the interface in plain LLVM IR; ``x86`` with the instructions of x86-64.

An instruction set is one module or folder here and one entry in ``backends/llvm/targets.py``.
"""
