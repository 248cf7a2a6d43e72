"""Pages of HTML that need no other file: ``rendering`` puts data, styles and scripts together.

``assets/`` has the styles and scripts, ``vendor/`` the layout library dagre.
"""

from quantglow.webpage.rendering import embedded, framed, page

__all__ = ["embedded", "framed", "page"]
