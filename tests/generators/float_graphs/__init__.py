"""Random float graphs, as the importer writes them."""
