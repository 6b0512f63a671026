"""Studies of the papers: an analysis each of the cells that were measured for it."""
