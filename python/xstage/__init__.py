"""xstage: measure, model and use the stage between a GPU's remote store and its arrival.

    link = xstage.load_link("h200-nv18")            # a name, a path, or None: newest probe of this machine
    xstage.predict(link, producers=132, bytes="32K", gap="8us")
    xstage.plan("flux.1-dev-1024", link=link, ranks=2)
    out = xstage.attention(q, k, v, causal=True)    # CUDA tensors, on the current stream
    buf = xstage.get_symm_buffer_for_mega_moe(None, experts, tokens, top_k, hidden, intermediate)
    xstage.fp8_mega_moe(y, l1, l2, buf)             # experts spread over the launcher's ranks

Results are frozen dataclasses with .to_dict(). Sizes are bytes or text ("32K"), times nanoseconds or
text ("8us"). Whatever is impossible raises xstage.Error with .category and .exit_code.
"""

from __future__ import annotations

import warnings as _warnings
from pathlib import Path as _Path

from . import _native
from ._attention import attention, attention_workspace
from ._moe import (
    MoeBuffer, fp8_mega_moe, get_symm_buffer_for_mega_moe, quantize_weights, transform_weights_for_mega_moe,
)
from ._native import Error, __version__, has_cuda
from ._results import Candidate, Counterfactual, Link, Plan, Prediction, Send

__all__ = [
    "Candidate", "Counterfactual", "Error", "Link", "MoeBuffer", "Plan", "Prediction", "Send", "__version__",
    "attention", "attention_workspace", "fp8_mega_moe", "get_symm_buffer_for_mega_moe", "has_cuda", "load_link", "plan",
    "predict", "quantize_weights", "transform_weights_for_mega_moe",
]


def _find(kind: str, name: str | None) -> str:
    """A file that ships inside the package, or what the library makes of the name."""
    if not name:
        return ""
    shipped = _Path(__file__).parent / "data" / kind / f"{name}.json"
    return str(shipped) if shipped.is_file() else str(name)


def _text(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


def load_link(name: str | _Path | None = None) -> Link:
    """A link profile: the name of one that ships or was probed here, a path, or None for the newest
    probe of this machine."""
    native = _native.load_link(_find("profiles", None if name is None else str(name)))
    info = native.info()
    for warning in info.pop("warnings"):
        _warnings.warn(warning, stacklevel=2)
    return Link(native=native, **info)


def predict(link: Link, *, kind: str = "bulk", producers: int | None = None, bytes: int | str,
            gap: float | str = 0) -> Prediction:
    """How long a burst holds its issuers and at what period it can go on; times in ns."""
    return Prediction.from_dict(
        _native.predict(link.native, kind, producers, _text(bytes), _text(gap)))


def plan(workload: str | _Path, *, link: Link, ranks: int, costs: str | _Path | None = None) -> Plan:
    """The best way to run a workload (a name that ships or a file), and what each candidate costs."""
    return Plan.from_dict(
        _native.plan(_find("workloads", str(workload)), link.native,
                     _find("profiles/costs", str(costs) if costs else "h200"), ranks))
