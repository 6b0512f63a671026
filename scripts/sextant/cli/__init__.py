"""The command line `sextant`, one file a group of commands; `app` puts them together."""
