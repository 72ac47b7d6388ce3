"""Panels: rows of many entities, date by date, as samples of all entities of a date."""
