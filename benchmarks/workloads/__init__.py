"""The trainings that Stoker was made after: what was slow in each, one part at a time."""
