"""Trajectories -> weights."""
