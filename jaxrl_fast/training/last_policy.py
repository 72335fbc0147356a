"""Shows the policy that a run ends with while its last evaluations go on."""

from concurrent.futures import Future, ThreadPoolExecutor, wait

from jaxrl_fast.graph import distributed
from jaxrl_fast.policy.policies import Policy
from jaxrl_fast.runs.hooks import OnLastPolicy, ShouldStop

POLL_S = 0.1
"""How often it is checked whether the run is asked to stop, in seconds."""


class LastPolicy:
    """Calls ``on_last_policy`` at most once, in a thread of process 0, and not where the run is asked to stop."""

    def __init__(self, on_last_policy: OnLastPolicy, should_stop: ShouldStop) -> None:
        self.on_last_policy, self.should_stop = on_last_policy, should_stop
        self._shown: Future[None] | None = None

    def show(self, policy: Policy) -> None:
        """Begin to show it, unless one has been shown."""
        if self._shown is not None or not distributed.is_first() or self.should_stop():
            return
        worker = ThreadPoolExecutor(1, thread_name_prefix="last policy")
        self._shown = worker.submit(self.on_last_policy, policy)
        worker.shutdown(wait=False)

    def wait(self) -> None:
        """Wait until that has ended, unless the run is asked to stop; raises what it raised."""
        if self._shown is None:
            return
        while not self._shown.done() and not self.should_stop():
            wait([self._shown], timeout=POLL_S)
        if self._shown.done():
            self._shown.result()
