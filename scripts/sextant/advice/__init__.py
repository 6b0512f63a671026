"""What a person asks on the command line, and the answer: a recommendation with its reasons."""
