"""Trainers of others: what each needs besides `loader.sync()` for an exact state; one module a trainer.

None of them shards, wraps or moves anything: a loader has its share of the records, and its device. Each
module imports its trainer's package, so import the one you use: `from aioload.integrations.lightning import
Feed`.
"""
