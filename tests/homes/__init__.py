"""Homes that earlier versions of Stoker left behind, and that every later one has to open."""
