"""All points of one source, with the facts they refer to: read from a store or shipped."""
