"""Parts of kernels.

``vectors`` has the operations, ``scalars`` the code of scalar expressions with ``mathfun``,
``trigonometry``, ``rounding`` and ``quotient``; ``nest`` makes loops, ``partial`` masks last lanes,
``strided`` reads elements that lie apart, ``fold`` combines a row.
"""
