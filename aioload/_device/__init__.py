"""The way to an accelerator: a small device interface, what goes over it, and the thread that copies."""
