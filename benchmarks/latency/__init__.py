"""Times and memory of quantglow beside other runtimes."""
