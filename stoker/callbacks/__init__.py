"""Callbacks for other people's trainers, a module each, which imports its library and no other."""
