"""Instruction sets: everything that code generation knows of a processor."""
