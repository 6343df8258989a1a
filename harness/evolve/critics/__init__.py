"""Critics: the last opinion on candidates before anything is rolled out."""
