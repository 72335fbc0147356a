"""The sampler pool: Gymnasium environments stepped on the host, in worker processes or in this one.

``worlds``, ``codec``, ``stepping`` and ``worker`` run in the workers and import nothing of JAX, so that a worker starts
in a fraction of a second; ``supervision`` and ``host`` run in the parent. `envs.from_gymnasium` is the way in.
"""
