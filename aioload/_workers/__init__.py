"""The other processes: the only code that knows a process border."""
