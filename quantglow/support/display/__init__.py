"""Display: ``tables`` has tables and bars for terminals and notebooks, ``webpage`` HTML pages."""
