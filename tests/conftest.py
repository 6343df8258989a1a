"""Puts this directory on the path, so that tests of several packages share its helper modules."""
