"""Saved models: ``.qgm`` files.

``saving`` writes and reads them, ``archives`` checks names, sizes and hashes of their members,
``members`` compresses these and limits their expansion, ``stored_arrays`` packs arrays without
loss.
"""
