"""The expert-parallel MoE layer on CUDA tensors, in the words that callers of fused MoE kernels use.
Each rank is a process with its own GPU, started by torchrun, mpirun or srun; without a launcher
there is one rank. torch is imported only when something is called."""

from __future__ import annotations

from typing import Any

from . import _native
from ._attention import _border


def _bytes(tensor: Any) -> Any:
    """Across the border as plain bytes: not every library's DLPack knows 8-bit floats."""
    import torch

    if not tensor.is_contiguous():
        raise ValueError("weights and results have to be contiguous")
    return _border(tensor.view(torch.uint8))


def _stream(tensor: Any, stream: int | None) -> int:
    import torch

    return torch.cuda.current_stream(tensor.device).cuda_stream if stream is None else stream


class MoeBuffer:
    """What get_symm_buffer_for_mega_moe() returns: memory that peers reach, and where a call's inputs go.

    x: [max_tokens, hidden], float8_e4m3fn or bfloat16; x_sf: float32 [max_tokens, ceil(hidden / 128)], fp8
    alone; topk_idx: int64 [max_tokens, top_k], -1 for an empty slot; topk_weights: float32, the same.
    experts: first expert of this rank, and how many.
    """

    def __init__(self, native: Any, dtype: str, hidden: int, intermediate: int, top_k: int,
                 num_shared: int, device: int):
        import torch

        self._native = native
        self.dtype, self.hidden, self.intermediate = dtype, hidden, intermediate
        self.num_shared_experts = num_shared
        self.rank, self.num_ranks, self.experts = native.rank, native.num_ranks, native.experts
        rows = torch.from_dlpack(native.rows())
        element, size = (torch.float8_e4m3fn, 1) if dtype == "fp8" else (torch.bfloat16, 2)
        self.x = rows[:, : hidden * size].view(element)
        self.x_sf = rows[:, hidden : hidden + (hidden + 127) // 128 * 4].view(torch.float32) if size == 1 else None
        where = torch.device("cuda", device)
        tokens = rows.shape[0]
        self.topk_idx = torch.full((tokens, top_k), -1, dtype=torch.int64, device=where)
        self.topk_weights = torch.zeros((tokens, top_k), dtype=torch.float32, device=where)
        self._workspace = torch.zeros(native.workspace_bytes, dtype=torch.uint8, device=where)

    def check(self) -> None:
        """Raises xstage.Error if something went wrong in a call that has run; does not wait for the GPU."""
        self._native.check()

    def close(self) -> None:
        """Gives the memory back; x and x_sf are void afterwards. No call may be under way on any rank."""
        self._native.close()

    def __enter__(self) -> MoeBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def get_symm_buffer_for_mega_moe(group: Any, num_experts: int, num_max_tokens_per_rank: int, num_topk: int,
                                 hidden: int, intermediate_hidden: int, num_shared_experts: int = 0, *,
                                 dtype: str = "fp8", dispatch: str = "pull", combine: str = "pull",
                                 send_once: bool = True, device: int | None = None,
                                 deadline: float = 300.0) -> MoeBuffer:
    """Collective. `group`: None, or a torch process group of all ranks that the launcher started (its size
    is checked; the ranks meet by themselves). dtype "fp8" or "bf16". dispatch, combine: who moves the
    rows, "pull" or "push". send_once: a token crosses a link once for each rank. deadline: of waits, s."""
    import torch

    if device is None:
        device = torch.cuda.current_device()
    native = _native.MoeBuffer(num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden,
                               num_shared_experts, dtype, dispatch, combine, send_once, device, deadline)
    if group is not None and group.size() != native.num_ranks:
        count = native.num_ranks
        native.close()
        raise ValueError(f"group has {group.size()} ranks: legal are None and a group of all {count}")
    return MoeBuffer(native, dtype, hidden, intermediate_hidden, num_topk, num_shared_experts, device)


def quantize_weights(weights: Any, *, stream: int | None = None) -> tuple[Any, Any]:
    """bfloat16 [matrices, rows, k] -> (float8_e4m3fn, float32 scales of blocks of 128 x 128)."""
    import torch

    matrices, rows, k = weights.shape
    out = torch.empty(weights.shape, dtype=torch.float8_e4m3fn, device=weights.device)
    scales = torch.empty(matrices, (rows + 127) // 128, (k + 127) // 128, device=weights.device)
    _native.moe_quantise_weights(_bytes(weights), _bytes(out), _border(scales), matrices, rows, k,
                                 _stream(weights, stream))
    return out, scales


def transform_weights_for_mega_moe(l1: Any, l2: Any, *, stream: int | None = None) -> tuple[Any, Any]:
    """Once per model: (l1, l2) as fp8_mega_moe() takes them. l1: [experts, 2 * intermediate, hidden], gate
    above up; l2: [experts, hidden, intermediate]; bfloat16 tensors, or pairs (float8_e4m3fn, float32 scales
    of 128 x 128 blocks, gate and up quantised apart). Shared experts come after the rank's own."""
    import torch

    weights = l1[0] if isinstance(l1, tuple) else l1
    if weights.element_size() not in (1, 2):
        raise ValueError(f"l1 is {weights.dtype}: legal are float8_e4m3fn and bfloat16")
    out = torch.empty_like(weights, memory_format=torch.contiguous_format)
    carrier = torch.uint8 if weights.element_size() == 1 else torch.bfloat16
    _native.moe_interleave(_border(weights.view(carrier)), _border(out.view(carrier)), weights.shape[1] // 2,
                           _stream(weights, stream))
    return ((out, l1[1].contiguous()) if isinstance(l1, tuple) else out), l2


def _parts(weights: Any) -> tuple[Any, Any]:
    if isinstance(weights, tuple):
        return _bytes(weights[0]), _bytes(weights[1])
    return _bytes(weights), None


def fp8_mega_moe(y: Any, l1: Any, l2: Any, buf: MoeBuffer, *, schedule: str = "auto", clamp: float | None = None,
                 stats: dict | None = None, stream: int | None = None) -> Any:
    """y[t] = sum over slots of weight * W2(swiglu(W1 x[t])) for the first len(y) tokens of `buf`; returns y.

    All ranks call it, also with no token. y: bfloat16 [tokens, hidden]. l1, l2: of transform_weights_for_
    mega_moe(). schedule: "auto" or "unfused", a few kernels one after the other. clamp: of gate and up.
    stats: is given the schedule taken. Only enqueues; can be captured in a graph once each set of weights
    has been used."""
    if schedule not in ("auto", "unfused"):
        raise ValueError(f'schedule is {schedule!r}: legal "auto" and "unfused"')
    w1, w1_scales = _parts(l1)
    w2, w2_scales = _parts(l2)
    buf._native.run(_bytes(y), y.shape[0], _border(buf.topk_idx), _border(buf.topk_weights), w1, w1_scales, w2,
                    w2_scales, _border(buf._workspace), 0.0 if clamp is None else clamp, _stream(y, stream))
    if stats is not None:
        stats["schedule"] = "unfused"
    return y
