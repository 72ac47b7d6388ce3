"""`stoker data`: datasets and what is written for them."""
