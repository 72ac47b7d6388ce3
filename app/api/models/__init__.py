"""What the API answers and takes, as pydantic models; they become the OpenAPI document."""
