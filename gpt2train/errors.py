"""The two errors a person sees; both are one line that names the thing, the place and the remedy."""


class UserError(Exception):
    """A mistake of the user: a wrong setting, a missing file. The command ends with exit code 2."""


class RunError(Exception):
    """A failure while running: a full disk, a rank that died. The command ends with exit code 1."""
