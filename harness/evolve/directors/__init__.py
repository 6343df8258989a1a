"""Directors: from evidence to what is worth trying."""
