"""The `stoker` command: a file a topic, all of it over app.client or app.store."""
