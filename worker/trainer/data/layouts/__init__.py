"""How the samples of an array lie together, and how a batch is cut out of it."""
