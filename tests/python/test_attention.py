"""xstage.attention on a Hopper GPU, beside float64. Needs torch and the GPU; says so where they are not."""

import math

import pytest

import xstage

torch = pytest.importorskip("torch", reason="torch is not installed: attention() is not tested")
if not xstage.has_cuda:
    pytest.skip("this build has no kernels: attention() is not tested", allow_module_level=True)
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("no sm_90 GPU here: attention() is not tested", allow_module_level=True)


def exact(q, k, v, causal=False, scale=None, kv_len=None):
    q, k, v = (t.double().transpose(1, 2) for t in (q, k, v))
    k, v = k[:, :, :kv_len], v[:, :, :kv_len]
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    s = q @ k.mT * (scale or 1 / math.sqrt(q.shape[-1]))
    if causal:
        rows, keys = s.shape[-2:]
        s.masked_fill_(torch.ones(rows, keys, device=s.device).tril(keys - rows) == 0, -math.inf)
    return (s.softmax(-1) @ v).transpose(1, 2), s.logsumexp(-1)


def tensors(b=2, s=333, h=4, kv=2, d=128, dtype=torch.bfloat16, seed=1):
    g = torch.Generator(device="cuda").manual_seed(seed)
    return [torch.randn(b, s, n, d, device="cuda", dtype=dtype, generator=g) for n in (h, kv, kv)]


def error(a, b):
    return ((a.double() - b).norm() / b.norm()).item()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d, dtype, bound", [(128, torch.bfloat16, 2.6e-3), (64, torch.float16, 4e-4)])
def test_matches_float64(causal, d, dtype, bound):
    q, k, v = tensors(d=d, dtype=dtype)
    out, lse = xstage.attention(q, k, v, causal=causal, return_lse=True)
    want, want_lse = exact(q, k, v, causal)
    assert error(out, want) < bound
    assert (lse.double() - want_lse).abs().max() < 1e-4


def test_options_and_layouts():
    q, k, v = tensors()
    out = xstage.attention(q, k, v, scale=0.3, kv_len=200)
    assert error(out, exact(q, k, v, scale=0.3, kv_len=200)[0]) < 3e-3
    first = [t.transpose(1, 2) for t in (q, k, v)]
    other = xstage.attention(*first, layout="bhsd", scale=0.3, kv_len=200)
    assert torch.equal(other.transpose(1, 2), out)


def test_current_stream_and_graph():
    q, k, v = tensors(s=4608)
    want = xstage.attention(q, k, v)
    torch.cuda.synchronize()
    out = torch.full_like(q, math.nan)
    workspace = xstage.attention_workspace(q, k, v)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(10_000_000)
        late = q * 1  # only right if the call waits for this stream
        xstage.attention(late, k, v, out=out, workspace=workspace)
    torch.cuda.synchronize()
    assert torch.equal(out, want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = xstage.attention(q, k, v)
    for _ in range(3):
        captured.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured, want)


def test_refusals_name_the_value():
    q, k, v = tensors(d=96)
    with pytest.raises(xstage.Error, match="96"):
        xstage.attention(q, k, v)
    q, k, v = tensors()
    with pytest.raises(xstage.Error, match="dimensions"):
        xstage.attention(q[0], k, v)
    with pytest.raises(xstage.Error, match="bfloat16"):
        xstage.attention(q.float(), k.float(), v.float())
    with pytest.raises(xstage.Error, match="kv_len"):
        xstage.attention(q, k, v, kv_len=10_000)
    with pytest.raises((TypeError, xstage.Error)):
        xstage.attention(q.cpu(), k.cpu(), v.cpu(), stream=0, workspace=q, out=q)


def test_gradients_are_not_asked_for():
    q, k, v = tensors()
    assert torch.equal(xstage.attention(q.requires_grad_(), k, v), xstage.attention(q.detach(), k, v))
