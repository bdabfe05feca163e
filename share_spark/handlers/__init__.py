"""Handlers as users write them: their parameters, their return values, how their kind is inferred, their time limit.
No Spark job is started here."""
