"""quantglow side by side with other runtimes; see README.md."""
