"""Decoders whose cache grows in place.

``state`` is what a user holds, ``caches`` its memory, ``state_programs`` the programs of calls that
add rows to it.
"""
