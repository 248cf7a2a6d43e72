"""Intermediate representations, and the types that they share.

``types`` has tensor types with their quantization parameters; ``graph`` the high-level graph,
``ops`` its operators; ``program`` the low-level program; ``symbolic`` sizes that depend on free
dimensions.
"""
