"""Products of two activations; ``matmul`` chooses among ``float_products``, ``byte_products`` and
``word_products``."""
