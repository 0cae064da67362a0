"""Names, command lines, scripts and configs of other training systems, read and never executed.

`names.toml` says what takes the place of each name. It is read only when a name or a file is met that is not ours.
"""
