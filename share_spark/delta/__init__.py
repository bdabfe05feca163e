"""Generic Delta: a table by path or name, its commit files, application transactions, a journal beside it, maintenance
of one table. Nothing here knows of share groups."""
