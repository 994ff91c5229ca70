"""What the stored bytes mean: the own format, its index, and its writer.

Nothing is imported here: a worker needs the format of a record alone, and should start at once.
"""
