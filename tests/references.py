"""Slow and simple NumPy references, in float64, with loops where the definition is a loop."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import numpy as np


def gae(reward, terminated, truncated, value, next_value, discount, gae_lambda) -> np.ndarray:
    """Compute the advantage of step t: the λ-weighted sum of the TD errors from t to the end of its
    episode.
    """
    steps = len(reward)
    delta = [
        reward[t] + (0.0 if terminated[t] else discount * next_value[t]) - value[t]
        for t in range(steps)
    ]
    advantage = np.zeros(steps)
    for t in range(steps):
        for k in range(t, steps):
            advantage[t] += (discount * gae_lambda) ** (k - t) * delta[k]
            if terminated[k] or truncated[k]:
                break
    return advantage


def lambda_return(reward, terminated, truncated, next_value, discount, return_lambda) -> np.ndarray:
    """Compute the λ-return of step t: the weighted mean of all n-step returns from t that stay
    within its episode.
    """
    steps = len(reward)
    mean = np.zeros(steps)
    for t in range(steps):
        weight, total = 1.0, 0.0
        for k in range(t, steps):
            total += discount ** (k - t) * reward[k]
            n_step_return = total + (
                0.0 if terminated[k] else discount ** (k - t + 1) * next_value[k]
            )
            last = terminated[k] or truncated[k] or k == steps - 1
            mean[t] += weight * (1.0 if last else 1.0 - return_lambda) * n_step_return
            weight *= return_lambda
            if last:
                break
    return mean


def v_trace(
    reward,
    terminated,
    truncated,
    value,
    next_value,
    ratio,
    discount,
    trace_lambda,
    clip_rho,
    clip_c,
):
    """Compute targets and advantages: equation 1 of arXiv 1802.01561 as a sum, and section 4.2."""
    steps = len(reward)
    rho, c = np.minimum(ratio, clip_rho), trace_lambda * np.minimum(ratio, clip_c)
    gamma = [0.0 if terminated[t] else discount for t in range(steps)]
    delta = [rho[t] * (reward[t] + gamma[t] * next_value[t] - value[t]) for t in range(steps)]
    correction, advantage = np.zeros(steps), np.zeros(steps)
    for t in range(steps):
        for k in range(t, steps):
            correction[t] += discount ** (k - t) * np.prod(c[t:k]) * delta[k]
            if terminated[k] or truncated[k]:
                break
    for t in range(steps):
        ends = terminated[t] or truncated[t] or t == steps - 1
        target = next_value[t] + (0.0 if ends else correction[t + 1])
        advantage[t] = rho[t] * (reward[t] + gamma[t] * target - value[t])
    return value + correction, advantage


def n_step(reward, terminated, truncated, discount) -> tuple[float, float, int]:
    """Return the sum of discounted rewards until the window or the episode ends, the bootstrap
    discount, and the index of the last step.
    """
    total = 0.0
    for k in range(len(reward)):
        total += discount**k * reward[k]
        if terminated[k] or truncated[k]:
            break
    return total, 0.0 if terminated[k] else discount ** (k + 1), k


def tanh_normal_log_prob(mean, scale, raw) -> np.ndarray:
    """Compute the log-density of ``tanh(raw)`` by the change of variables and the plain slope,
    summed over the last axis.
    """
    mean, scale, raw = (np.asarray(x, np.float64) for x in (mean, scale, raw))
    normal = -0.5 * ((raw - mean) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)
    return np.sum(normal - np.log(1.0 - np.tanh(raw) ** 2), axis=-1)


def softplus(x) -> np.ndarray:
    return np.log1p(np.exp(x))


def log_softmax(logits) -> np.ndarray:
    return logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))


def mlp(params: dict, x: np.ndarray, masks: tuple = (), dropout: float = 0.0) -> np.ndarray:
    """Compute the multi-layer perceptron of `networks.Mlp` with tanh, from its flax parameters.

    ``masks`` are the outputs of hidden layers that dropout leaves, by layer.
    """
    layers = params["params"]
    size = len([name for name in layers if name.startswith("Dense")])
    for i in range(size):
        layer = layers[f"Dense_{i}"]
        x = x @ layer["kernel"] + layer["bias"]
        if i < size - 1:
            x = np.where(masks[i], x / (1.0 - dropout), 0.0) if masks else x
            if f"LayerNorm_{i}" in layers:
                norm = layers[f"LayerNorm_{i}"]
                x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
                x = x * norm["scale"] + norm["bias"]
            x = np.tanh(x)
    return x


def dropout_masks(run: Callable[[], Any], members: int) -> list[tuple[np.ndarray, ...]]:
    """Return which outputs dropout leaves in ``run``, by member of an ensemble and layer."""
    masks: list[np.ndarray] = []

    def record(call, args, given, context):
        out = call(*args, **given)
        if isinstance(context.module, nn.Dropout):
            masks.append(np.asarray(out) != 0.0)
        return out

    with nn.intercept_methods(record):
        run()
    layers = len(masks) // members
    return [tuple(masks[i * layers : (i + 1) * layers]) for i in range(members)]


def gradient(
    loss: Callable[[list[np.ndarray]], float], leaves: list[np.ndarray]
) -> list[np.ndarray]:
    """Compute central finite differences of ``loss(leaves)``, one number at a time."""
    grads = [np.zeros_like(leaf) for leaf in leaves]
    for leaf, grad in zip(leaves, grads, strict=True):
        for at in np.ndindex(leaf.shape):
            before = leaf[at]
            leaf[at] = before + 1e-6
            above = loss(leaves)
            leaf[at] = before - 1e-6
            grad[at] = (above - loss(leaves)) / 2e-6
            leaf[at] = before
    return grads


class Adam:
    """Compute arXiv 1412.6980, algorithm 1, after a clip of the global gradient norm."""

    def __init__(self, learning_rate: float, max_grad_norm: float) -> None:
        self.learning_rate, self.max_grad_norm, self.t = learning_rate, max_grad_norm, 0
        self.m: list[Any] = []
        self.v: list[Any] = []

    def step(self, leaves: list[np.ndarray], grads: list[np.ndarray]) -> list[np.ndarray]:
        norm = np.sqrt(sum(np.sum(g**2) for g in grads))
        grads = [g * min(1.0, self.max_grad_norm / norm) for g in grads]
        self.t += 1
        self.m = self.m or [np.zeros_like(g) for g in grads]
        self.v = self.v or [np.zeros_like(g) for g in grads]
        self.m = [0.9 * m + 0.1 * g for m, g in zip(self.m, grads, strict=True)]
        self.v = [0.999 * v + 0.001 * g**2 for v, g in zip(self.v, grads, strict=True)]
        new = []
        for leaf, m, v in zip(leaves, self.m, self.v, strict=True):
            m_hat, v_hat = m / (1 - 0.9**self.t), v / (1 - 0.999**self.t)
            new.append(leaf - self.learning_rate * m_hat / (np.sqrt(v_hat) + 1e-8))
        return new
