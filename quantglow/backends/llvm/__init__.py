"""Machine code for x86-64, through LLVM.

From a program to code:

- ``levels``: the feature levels; ``target``: one of them as data; ``host``: this processor.
- ``kernels``: a generator of IR text for each primitive, written with ``builder``; ``kernel``: what
  a generator returns.
- ``library``: texts to addresses.  ``identity`` names calls, so that ``cache`` need not be asked by
  text, and ``private_folder`` is where it lies; ``compiler`` is LLVM itself, ``link`` loads its
  objects without it.

What runs:

- ``executable``: a compiled program; ``pieces``: one that runs for each piece of a batch;
  ``buffers`` and ``pages``: their memory.
- ``table_runner``: the run-time system, which walks a table of kernel calls; ``threads`` runs it
  with workers, ``placement`` keeps these off the caller's processor; ``amx``: leave to use tiles.
- ``call_times`` and ``peak``: where the time goes, and what the processor can do at most.
"""
