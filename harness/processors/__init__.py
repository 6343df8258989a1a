"""Built-in processors, one behaviour a file."""
