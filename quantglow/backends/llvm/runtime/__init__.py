"""Compiled programs at run time.

An ``executable`` owns ``buffers`` (in ``huge_pages`` where they are large) and a table of kernel
calls, which ``table_runner``'s generated code walks; ``threads`` is the pool of workers that help,
placed by ``thread_affinity``; ``batch_split`` runs a batch piece by piece.  ``profiler`` times each
call; ``peak`` measures this processor's limits.
"""
