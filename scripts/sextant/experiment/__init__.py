"""What to run: the configuration and all sheets, read and checked against each other."""
