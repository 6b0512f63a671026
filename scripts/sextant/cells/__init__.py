"""The contract of a measured cell: its files, and the formula of each metric."""
