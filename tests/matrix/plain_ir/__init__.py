"""Kernels of other processors on any machine: the meaning of their instructions in plain LLVM IR.

``translation.py`` replaces intrinsics by functions of a module of their instruction set.
"""
