"""RunSpec and its parts: frozen pydantic models that make wrong values impossible to say."""

from app.spec.issue import Issue, PatchOp
from app.spec.run import RunSpec

__all__ = ["Issue", "PatchOp", "RunSpec"]
