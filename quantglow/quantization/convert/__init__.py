"""The int8 graph of a plan: ``converter`` rebuilds the float graph, ``rules`` has the integer form
of each operator.
"""
