"""Points and the database, built from the files of cells."""
