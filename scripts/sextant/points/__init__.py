"""Measured points: the contract of a cell, the store, characterizations."""
