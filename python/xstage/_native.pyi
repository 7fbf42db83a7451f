"""The compiled part; use the package instead."""

from typing import Any

__version__: str
has_cuda: bool
attention_counter_bytes: int
default_rescale_threshold: float

class Error(RuntimeError):
    category: str
    exit_code: int

class Link:
    def info(self) -> dict[str, Any]: ...
    def to_dict(self) -> dict[str, Any]: ...

def load_link(name_or_path: str) -> Link: ...
def predict(link: Link, kind: str, producers: int | None, bytes: str, gap: str) -> dict[str, Any]: ...
def plan(workload: str, link: Link, costs: str, ranks: int) -> dict[str, Any]: ...
def attention_workspace_bytes(q: Any, k: Any, v: Any, causal: bool, head_major: bool,
                              split_last_wave: bool) -> int: ...
def attention_forward(q: Any, k: Any, v: Any, out: Any, workspace: Any, stream: int, causal: bool,
                      scale: float | None, kv_len: int | None, lse: Any, head_major: bool,
                      split_last_wave: bool, rescale_threshold: float) -> None: ...
