"""Parts that convolutions and products share."""
