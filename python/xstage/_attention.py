"""Attention on CUDA tensors. Tensors cross the border by DLPack; torch is imported only to allocate
what was not given and to ask for the current stream."""

from __future__ import annotations

from typing import Any

from . import _native

_NO_SYNC = -1  # DLPack: the consumer orders itself; we run on the producer's current stream


def _border(tensor: Any) -> Any:
    if getattr(tensor, "requires_grad", False):
        tensor = tensor.detach()
    return tensor.__dlpack__(stream=_NO_SYNC)


def _is_head_major(layout: str) -> bool:
    if layout not in ("bshd", "bhsd"):
        raise ValueError(f'layout is {layout!r}: legal "bshd" (batch, row, head, element) and "bhsd"')
    return layout == "bhsd"


def attention_workspace(q: Any, k: Any, v: Any, *, causal: bool = False, layout: str = "bshd",
                        split_last_wave: bool = True) -> Any:
    """A torch tensor that `attention(workspace=...)` takes for these shapes, ready for use. Every call
    leaves it ready for the next one on the same stream."""
    import torch

    size = _native.attention_workspace_bytes(_border(q), _border(k), _border(v), causal,
                                             _is_head_major(layout), split_last_wave)
    workspace = torch.empty(max(size, 1), dtype=torch.uint8, device=q.device)
    workspace[: _native.attention_counter_bytes].zero_()
    return workspace


def attention(q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None,
              kv_len: int | None = None, layout: str = "bshd", out: Any = None,
              return_lse: bool = False, workspace: Any = None, stream: int | None = None,
              split_last_wave: bool = True, rescale_threshold: float | None = None) -> Any:
    """softmax(scale * q k^T) v on one Hopper GPU; no gradients.

    q, k, v: bfloat16 or float16, [batch, row, head, element] (layout "bshd") or [batch, head, row,
    element] ("bhsd"), any strides with adjacent elements; fewer KV heads are shared. causal aligns at
    the bottom right: the last row sees all keys. kv_len: valid keys. out: where the result goes.
    workspace: see attention_workspace(); left out, one is allocated. stream: handle of a CUDA stream;
    left out, torch's current one. Only enqueues; can be captured in a graph.

    Returns out, or (out, lse) with lse float32 [batch, head, row], natural logarithm.
    """
    head_major = _is_head_major(layout)
    if out is None or workspace is None or stream is None or return_lse:
        import torch
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if workspace is None:
        workspace = attention_workspace(q, k, v, causal=causal, layout=layout,
                                        split_last_wave=split_last_wave)
    if stream is None:
        stream = torch.cuda.current_stream(q.device).cuda_stream
    lse = None
    if return_lse:
        row, head = (2, 1) if head_major else (1, 2)
        lse = torch.empty(q.shape[0], q.shape[head], q.shape[row], dtype=torch.float32,
                          device=q.device)
    if rescale_threshold is None:
        rescale_threshold = _native.default_rescale_threshold
    _native.attention_forward(_border(q), _border(k), _border(v), _border(out), _border(workspace),
                              stream, causal, scale, kv_len, None if lse is None else _border(lse),
                              head_major, split_last_wave, rescale_threshold)
    return (out, lse) if return_lse else out
