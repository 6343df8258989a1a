"""Built-in processors, one behaviour a file: the general ones and those of the household world."""
