"""How the steps of a flow run: as task runs, here or on a cluster, tried again, in their turn, and ended with care."""
