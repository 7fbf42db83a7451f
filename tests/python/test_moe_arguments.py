"""What the MoE layer refuses before it looks for a GPU."""

import pytest

xstage = pytest.importorskip("xstage")
native = xstage._native

if not native.has_moe:
    pytest.skip("this build has no CUDA support", allow_module_level=True)


def make(**changed):
    words = {"num_experts": 4, "max_tokens": 16, "top_k": 2, "hidden": 128, "intermediate": 64, "num_shared": 0,
             "dtype": "fp8", "dispatch": "pull", "combine": "pull", "send_once": True, "device": 0,
             "deadline_s": 300.0}
    return native.MoeBuffer(**{**words, **changed})


@pytest.mark.parametrize("changed, text", [
    ({"dtype": "fp4"}, "dtype is fp4: legal bf16, fp8"),
    ({"dispatch": "send"}, "dispatch is send: legal pull, push"),
    ({"combine": "send"}, "combine is send: legal pull, push"),
    ({"hidden": 100}, "hidden is 100: legal are multiples of 64 up to 16384"),
    ({"deadline_s": 0.0}, "legal are positive numbers"),
])
def test_says_what_is_legal(changed, text):
    with pytest.raises(xstage.Error, match=text) as error:
        make(**changed)
    assert error.value.category == "usage"
