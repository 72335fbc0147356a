"""Play a policy without JAX: ``python examples/export_and_play.py`` (needs
``pip install 'jaxrl_fast[onnx]'``).

SAC trains on gymnax's pendulum, compiled. The policy is exported as ONNX. It then plays Gymnasium's
Pendulum-v1 with onnxruntime. This loop uses neither JAX nor jaxrl_fast.
"""

import math
import subprocess
import sys
import tempfile
from pathlib import Path

import gymnasium
import onnxruntime

import jaxrl_fast as jf


def main(total_steps: int = 12_000, folder: Path | None = None) -> float:
    """Train, export and play one episode; return its return."""
    folder = folder or Path(tempfile.mkdtemp(prefix="pendulum-"))
    small = dict(
        policy_hidden=(64, 64),
        critic_hidden=(64, 64),
        batch_size=128,
        buffer_size=20_000,
        warmup_steps=1_000,
    )
    algo = jf.sac(learning_rate=1e-3, temperature_learning_rate=1e-3, **small)
    result = jf.learn(
        jf.make_env("pendulum", num_envs=4),
        algo,
        total_steps=total_steps,
        run_dir=folder,
        log="none",
    )
    print(f"greedy return in gymnax: {result.summary['eval_return_mean']:.0f}")
    subprocess.run(
        [sys.executable, "-m", "jaxrl_fast.export", str(folder), "formats=onnx"], check=True
    )

    session = onnxruntime.InferenceSession(folder / "policy" / "policy.onnx")
    env = gymnasium.make("Pendulum-v1")
    obs, _ = env.reset(seed=3)
    earned = 0.0
    for step in range(200):
        (action,) = session.run(None, {"obs": obs[None]})
        if step % 8 == 0:
            angle = math.atan2(obs[1], obs[0])  # 0 is upright
            place = round(20 + 20 * angle / math.pi)
            print(
                f"{step:3} |{'.' * place}{'O' if abs(angle) < 0.2 else 'o'}{'.' * (40 - place)}| {action[0, 0]:+.2f}"
            )
        obs, reward, *_ = env.step(action[0])
        earned += float(reward)
    print(f"return in Gymnasium, by ONNX: {earned:.0f}")
    return earned


if __name__ == "__main__":
    main()
