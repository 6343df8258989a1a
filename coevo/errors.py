"""Errors that a user of the command line can mend."""


class InputError(ValueError):
    """Bad input to a command. The message names the thing, the value, what was expected and what
    to do; the command ends with exit code 2 and no traceback."""
