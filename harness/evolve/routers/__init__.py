"""Routers: which task goes to which variant."""
