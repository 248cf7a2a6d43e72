"""The page that explains a model, see README.md."""
