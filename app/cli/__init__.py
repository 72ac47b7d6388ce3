"""The `stoker` command: a file a topic, all of it over stoker.Client or app.store."""
