"""The calls of the HTTP contract: a file a topic, a method each."""
