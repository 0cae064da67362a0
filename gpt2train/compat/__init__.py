"""Private parts of other libraries, one module a library, each with a test against the plain way."""
