"""The same model in other runtimes and by other quantizers.  README.md has the guide."""
