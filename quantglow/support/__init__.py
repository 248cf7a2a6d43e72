"""Support: errors, files, processes and arguments.  README.md has the table."""
