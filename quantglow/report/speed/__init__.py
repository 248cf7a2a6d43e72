"""Time of layers, kernels and calls: ``speed`` measures layers that int8 makes slower;
``call_report`` has the time of every kernel call, beside its limit; ``call_latencies`` the seconds
of each call of a function; ``busy`` a note on a machine that others use.
"""
