"""Handlers, as users write them: what a function is given, what it may return, how its kind is inferred, how long it
may take. No Spark job here."""
