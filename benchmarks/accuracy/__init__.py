"""int8 results beside float and beside other quantizers."""
