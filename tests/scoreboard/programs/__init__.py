"""One program for each system: it handles the records until it is killed. Each is set up as its own docs advise."""
