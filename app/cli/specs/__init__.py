"""Spec files: reading them, fixing them, and writing them back as their author wrote them."""
