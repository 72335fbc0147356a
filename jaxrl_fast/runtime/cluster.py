"""The processes of one run, on one host or many: how they connect, and how they end together.

`jaxrl_fast.runtime.hosts` contains their operations during the run.
"""

import os
import pkgutil
import re
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple, NoReturn

import jax

from jaxrl_fast.runtime.hosts import PLACEMENT

HEARTBEAT_TIMEOUT_S = 20
"""Seconds without a heartbeat after which JAX treats a process as dead, and ends the others."""
LAST_MEETING_S = 7 * 24 * 3600
"""Seconds for which the others wait for process 0, which may still be drawing; if it dies, they
end, too.
"""
SHORT_MEETING_S = 5
"""Seconds for which a failed process waits for the others, which may have failed for the same
reason.
"""
POLL_S = 0.5
CLUSTERS = {
    "OMPI_COMM_WORLD_SIZE": "jax._src.clusters.OmpiCluster",
    "SLURM_JOB_ID": "jax._src.clusters.SlurmCluster",
    # any other pod, such as a notebook, is a single process
    "JOB_COMPLETION_INDEX": "jax._src.clusters.K8sCluster",
}
"""A variable that each kind of cluster sets, and JAX's class for that kind."""
CONNECTED = "jax._src.distributed.global_state"
MEETING = "jax._src.lib._jax.DistributedRuntimeClient.wait_at_barrier"
LOST = re.compile(r"gloo|nccl|coordination service", re.IGNORECASE)
"""Pattern of JAX's errors after another process has died."""


class Processes(NamedTuple):
    """This process and the coordinator.

    Attributes:
        coordinator: Address on which process 0 listens, ``host:port``.
        num_processes: Number of processes.
        process_id: Number of this process, from 0.
        local_devices: Numbers of the visible devices that this process drives; None for all.
    """

    coordinator: str
    num_processes: int
    process_id: int
    local_devices: tuple[int, ...] | None = None


def named_processes(
    coordinator: str | None, num_processes: int | None, process_id: int | None
) -> Processes | None:
    """Return the processes that a user names on the command line.

    Args:
        coordinator: Address of process 0, ``host:port``.
        num_processes: Number of processes, at least 2.
        process_id: Number of this process, from 0.

    Returns:
        The processes; None if all arguments are None.

    Raises:
        ValueError: A key is missing, or the values contradict each other.
    """
    keys = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
    missing = [f"distributed.{name}=..." for name, value in keys.items() if value is None]
    if len(missing) == len(keys):
        return None
    if coordinator is None or num_processes is None or process_id is None:
        raise ValueError(
            f"the processes of a run are named by three keys: write {' and '.join(missing)} too"
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError(
            f"distributed.coordinator={coordinator}: write the host of process 0 and a free port there, such as "
            "node01:4321"
        )
    if num_processes == 1:
        raise ValueError(
            "distributed.num_processes=1: a single process needs no distributed.* keys, leave them out"
        )
    if process_id >= num_processes:
        raise ValueError(
            f"distributed.process_id={process_id}: {num_processes} processes are numbered from 0 to {num_processes - 1}"
        )
    return Processes(coordinator, num_processes, process_id)


def find() -> Processes | None:
    """Detect the processes that SLURM (``srun``), Open MPI 4 (``mpirun``) or Kubernetes (an indexed
    job) started.

    It detects them as `jax.distributed.initialize` does. A process alone on its node drives all
    devices there; of several processes on a node, each drives one.

    Returns:
        The processes; None if there is only one.

    Raises:
        ValueError: The cluster's variables do not define how the processes connect.
    """
    try:
        kinds = [_private(name) for variable, name in CLUSTERS.items() if variable in os.environ]
        cluster = next((kind for kind in kinds if kind.is_env_present()), None)
        if cluster is None or cluster.get_process_count() == 1:
            return None
        port = os.environ.get("JAX_COORDINATOR_PORT")
        address = cluster.get_coordinator_address(timeout_secs=300, override_coordinator_port=port)
        local = _local_devices(cluster.get_local_process_id())
        return Processes(address, cluster.get_process_count(), cluster.get_process_id(), local)
    except (
        Exception
    ) as error:  # from external environment variables and, in Kubernetes, from its servers
        raise ValueError(
            f"several processes were started, but their connection is not defined ({' '.join(str(error).split())}): "
            "write distributed.coordinator, num_processes and process_id, or distributed=off"
        ) from error


def start(processes: Processes) -> None:
    """Connect this process with the others, before anything uses a device.

    Args:
        processes: This process and the coordinator.

    Raises:
        ValueError: Process 0 cannot listen at its address, or another process cannot resolve its
            host.
    """
    _private(CONNECTED), _private(MEETING)
    _check_address(processes)
    last_word.say(
        f"process {processes.process_id} was not reached by the others at {processes.coordinator}: start all "
        f"{processes.num_processes} of them, each where it can reach that address"
    )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # The preemption service intercepts SIGTERM.
    jax.config.update("jax_enable_preemption_service", False)
    # In a thread, so that Ctrl-C works during the wait for the others.
    pool = ThreadPoolExecutor(1, thread_name_prefix="connect")
    connected = pool.submit(
        jax.distributed.initialize,
        processes.coordinator,
        processes.num_processes,
        processes.process_id,
        local_device_ids=processes.local_devices,
        cluster_detection_method="deactivate",
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_S,
    )
    pool.shutdown(wait=False)
    while not wait([connected], timeout=POLL_S).done:
        pass
    connected.result()
    joined.set()
    last_word.say(
        f"process {processes.process_id} of {processes.num_processes} ended before the run: another process died or "
        "cannot be reached, or this one was killed. Start all of them again, with resume=<run folder> to continue"
    )


def is_lost(error: BaseException) -> bool:
    """Return whether an error of JAX reports that another process has died.

    Args:
        error: Error.

    Returns:
        True if it does, in a run of several processes.
    """
    return jax.distributed.is_initialized() and LOST.search(str(error)) is not None


def finish() -> None:
    """End a successful run: wait until all processes are here, so that none is treated as dead."""
    if joined.is_set():
        _meet("end", LAST_MEETING_S)
        jax.distributed.shutdown()
        joined.clear()
        last_word.say("")


def leave(status: int) -> NoReturn:
    """End a failed run, and exit.

    Another process may hang, so this one waits at most `SHORT_MEETING_S`: others may be about to
    fail for the same reason, each with a separate message.

    Args:
        status: Exit code.
    """
    last_word.say("")
    if status > 1 and joined.is_set() and _meet("error", SHORT_MEETING_S):
        # All are here: shut down in order, because process 0 looks dead if it leaves first.
        parting = threading.Thread(target=jax.distributed.shutdown, daemon=True)
        parting.start()
        parting.join(SHORT_MEETING_S)
    os._exit(status)


def describe_devices() -> str:
    """Describe the devices that this process drives.

    Returns:
        A line for the log.
    """
    local = jax.local_devices()
    return (
        f"process {jax.process_index()} of {jax.process_count()} on {socket.gethostname()} drives {len(local)} "
        f"device{'s' if len(local) != 1 else ''} ({local[0].device_kind} {', '.join(str(device.id) for device in local)})"
    )


def unused_devices(used: int) -> str | None:
    """Return a warning if a run leaves visible accelerators unused.

    Args:
        used: Devices of the run in all processes.

    Returns:
        The warning, or None.
    """
    local = jax.local_devices()
    resting = len(local) - used // jax.process_count()
    hidden = (visible_devices() or 0) - len(local) * tasks_on_node()
    if local[0].platform == "cpu" or (resting <= 0 and hidden <= 0):
        return None
    advice = (
        f"write placement={PLACEMENT} devices={len(jax.devices())}"
        if resting > 0
        else "start one process a node"
    )
    return f"warning: {max(resting, hidden)} visible {local[0].platform} devices are left unused: {advice} to use them"


def tasks_on_node() -> int:
    """Return how many processes SLURM or Open MPI started on this node.

    Returns:
        Number of processes; 1 without SLURM and Open MPI.
    """
    slurm = re.match(r"\d+", os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    return int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") or (slurm.group() if slurm else 1))


def visible_devices() -> int | None:
    """Return how many GPUs ``CUDA_VISIBLE_DEVICES`` makes visible to this process.

    Returns:
        Number of GPUs; None if the variable is not set.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len(visible.split(",")) if visible else None


class LastWord:
    """A message on stderr if this process ends outside of Python's control.

    When another process is lost, JAX prints a page and calls abort() from one of its threads. A
    shell that outlives this process then prints the message.
    """

    def __init__(self) -> None:
        self.text = ""
        self._shell: subprocess.Popen[str] | None = None

    def say(self, text: str) -> None:
        """Set the message; an empty one is not printed."""
        self.text = text
        if self._shell is None:
            script = 'while IFS= read -r line; do last=$line; done; [ -z "$last" ] || printf "%s\\n" "$last" >&2'
            self._shell = subprocess.Popen(
                ["sh", "-c", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
        if self._shell.stdin is not None:
            self._shell.stdin.write(f"jaxrl_fast: error: {text}\n" if text else "\n")
            self._shell.stdin.flush()


last_word = LastWord()
joined = threading.Event()
"""Set while this process is connected to the others."""


def _meet(name: str, timeout_s: int) -> bool:
    """Wait until all processes have called this, or for ``timeout_s``; return whether they have."""
    try:
        _private(CONNECTED).client.wait_at_barrier(f"jaxrl_fast_{name}", timeout_s * 1000)
    except Exception:  # a process did not arrive; nothing can be done here
        return False
    return True


def _private(name: str) -> Any:
    """Return a private object of JAX by its dotted name.

    Raises:
        ValueError: This version of JAX does not have it.
    """
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        raise ValueError(
            f"JAX {jax.__version__} has no {name}, which a run of several processes needs: install another version"
        ) from None


def _check_address(processes: Processes) -> None:
    host, _, port = processes.coordinator.rpartition(":")
    where = f"distributed.coordinator={processes.coordinator}"
    try:
        socket.getaddrinfo(host.strip("[]"), int(port))
    except OSError:
        raise ValueError(
            f"{where}: this machine cannot resolve {host}. Use the host where process 0 runs."
        ) from None
    if processes.process_id > 0:
        return
    try:
        socket.create_server(("", int(port))).close()
    except OSError as error:
        raise ValueError(
            f"{where}: process 0 cannot listen at port {port} ({_reason(error)}), write another"
        ) from None


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def _local_devices(local_id: int | None) -> tuple[int, ...] | None:
    alone = local_id is None or tasks_on_node() == 1 or visible_devices() == 1
    return None if alone else (local_id,)  # type: ignore[return-value]
