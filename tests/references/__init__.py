"""The parts of the pages in docs/ that are written from elsewhere, and the program that does it."""
