"""How figures are shown: ``tables``, drawn in a terminal or as HTML, and ``bars`` in both."""
