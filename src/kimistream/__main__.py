"""`python -m kimistream` is the command line."""

from kimistream.cli import main

main()
