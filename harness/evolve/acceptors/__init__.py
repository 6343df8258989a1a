"""Acceptors: from paired results to a verdict."""
