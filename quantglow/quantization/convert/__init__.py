"""The int8 graph of a plan: ``converter`` walks the float graph, ``rules`` has each operator's
integer form."""
