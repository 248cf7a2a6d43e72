"""Signs that samples are wrong: ``data_warnings``, that calibration data is unlike training data;
``input_scale``, that inputs have a wrong scale.
"""
