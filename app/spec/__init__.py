"""RunSpec and its parts: frozen pydantic models that make wrong values impossible to say."""
