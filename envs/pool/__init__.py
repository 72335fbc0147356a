"""The sampler pool: Gymnasium environments stepped on the host, in worker processes or in this one.

``recipes``, ``codec``, ``stepping``, ``signals`` and ``worker`` run in the workers and do not import JAX, so that a
worker starts in a fraction of a second; the other modules run in the parent. `envs.from_gymnasium` is the way in.
"""
