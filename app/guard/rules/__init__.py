"""The rules, filed by the place in the spec that they find something in."""
