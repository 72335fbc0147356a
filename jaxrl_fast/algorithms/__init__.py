"""Algorithms, one file each; and aliases of the modules that contained their helpers until 0.2.0."""

import sys

from jaxrl_fast.learning import acting, algorithm

for _old, _new in (("interface", algorithm), ("sequences", algorithm), ("choosing", acting)):
    sys.modules[f"{__name__}.{_old}"] = _new
