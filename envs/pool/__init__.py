"""The sampler pool: Gymnasium environments stepped on the host, in worker processes or in the
parent process.

The workers import ``recipes``, ``codec``, ``several_agents``, ``stepping`` and ``worker``. These do
not import JAX, so that a worker starts in a fraction of a second. The parent imports the other
modules. `envs.from_gymnasium` makes pools.
"""
