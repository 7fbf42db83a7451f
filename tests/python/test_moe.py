"""The MoE layer through Python, one rank, against the same sums in float32 by torch."""

import pytest

xstage = pytest.importorskip("xstage")
torch = pytest.importorskip("torch")

if not (torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)):
    pytest.skip("needs torch and a Hopper GPU", allow_module_level=True)


def reference(x, ids, weights, w1, w2):
    y = torch.zeros(x.shape[0], w2.shape[1], device=x.device)
    for token in range(x.shape[0]):
        for slot, expert in enumerate(ids[token].tolist()):
            if expert < 0:
                continue
            gate, up = (w1[expert].float() @ x[token].float()).chunk(2)
            middle = torch.nn.functional.silu(gate) * up
            y[token] += weights[token, slot] * (w2[expert].float() @ middle)
    return y


def inputs(tokens, experts, top_k, hidden, intermediate):
    torch.manual_seed(tokens)
    w1 = torch.randn(experts, 2 * intermediate, hidden, device="cuda").mul(hidden ** -0.5).bfloat16()
    w2 = torch.randn(experts, hidden, intermediate, device="cuda").mul(intermediate ** -0.5).bfloat16()
    x = torch.randn(tokens, hidden, device="cuda").bfloat16()
    ids = torch.rand(tokens, experts, device="cuda").argsort(1)[:, :top_k]
    ids[0, 0] = -1
    return x, ids, torch.rand(tokens, top_k, device="cuda"), w1, w2


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_values(dtype):
    x, ids, weights, w1, w2 = inputs(37, 12, 3, 256, 192 if dtype == "bf16" else 128)
    with xstage.get_symm_buffer_for_mega_moe(None, 12, 64, 3, 256, w2.shape[2], dtype=dtype) as buf:
        assert buf.experts == (0, 12)
        buf.topk_idx[:37], buf.topk_weights[:37] = ids, weights
        if dtype == "bf16":
            buf.x[:37] = x
            l1, l2 = xstage.transform_weights_for_mega_moe(w1, w2)
        else:
            blocks = x.float().view(37, 2, 128)
            scales = blocks.abs().amax(2) / 448
            buf.x[:37] = (blocks / scales[..., None]).view(37, 256).to(torch.float8_e4m3fn)
            buf.x_sf[:37] = scales
            halves = xstage.quantize_weights(w1.view(24, 128, 256))
            l1 = halves[0].view(12, 256, 256), halves[1].view(12, 2, 2)
            l1, l2 = xstage.transform_weights_for_mega_moe(l1, xstage.quantize_weights(w2))
        y = torch.full((37, 256), float("nan"), dtype=torch.bfloat16, device="cuda")
        stats = {}
        assert xstage.fp8_mega_moe(y, l1, l2, buf, stats=stats) is y
        torch.cuda.synchronize()
        buf.check()
        wanted = reference(x, ids, weights, w1, w2)
        relative = (y.float() - wanted).norm() / wanted.norm()
        assert relative < (0.01 if dtype == "bf16" else 0.08)
        assert stats == {"schedule": "unfused"}


def test_graph_replay():
    x, ids, weights, w1, w2 = inputs(16, 4, 2, 128, 64)
    with xstage.get_symm_buffer_for_mega_moe(None, 4, 16, 2, 128, 64, dtype="bf16") as buf:
        l1, l2 = xstage.transform_weights_for_mega_moe(w1, w2)
        y = torch.empty(16, 128, dtype=torch.bfloat16, device="cuda")
        buf.x[:], buf.topk_idx[:], buf.topk_weights[:] = x, ids, weights
        xstage.fp8_mega_moe(y, l1, l2, buf)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            xstage.fp8_mega_moe(y, l1, l2, buf)
        buf.x[:] = x.flip(0)
        buf.topk_idx[:], buf.topk_weights[:] = ids.flip(0), weights.flip(0)
        first = y.clone()
        y.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, first.flip(0))


def test_refuses():
    with pytest.raises(xstage.Error, match="dtype is fp4: legal bf16, fp8"):
        xstage.get_symm_buffer_for_mega_moe(None, 4, 16, 2, 128, 64, dtype="fp4")
    with xstage.get_symm_buffer_for_mega_moe(None, 4, 16, 2, 128, 64, dtype="bf16") as buf:
        y = torch.empty(17, 128, dtype=torch.bfloat16, device="cuda")
        w = torch.zeros(4, 128, 128, dtype=torch.bfloat16, device="cuda")
        with pytest.raises(xstage.Error, match="y has 17 rows: legal 0..16"):
            xstage.fp8_mega_moe(y, w, w[:, :, :64].contiguous(), buf)
