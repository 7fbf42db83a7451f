"""The Python package without a GPU: profiles, predictions, plans, refusals, stubs."""

import ast
import dataclasses
import inspect
import json
import pathlib
import subprocess

import pytest

import xstage
from xstage import _native


@pytest.fixture(scope="module")
def link():
    return xstage.load_link("h200-nv18")


def test_a_link_knows_what_it_is(link):
    assert link.name == "h200-nv18"
    assert link.num_sms == 132
    assert {"register16", "bulk", "tensor"} <= set(link.kinds)
    assert len(link.sha256) == 64
    profile = link.to_dict()
    assert profile["schema"] == "xstage.link"
    assert json.loads(json.dumps(profile)) == profile


def test_a_link_by_path_is_the_same(link):
    assert xstage.load_link(pathlib.Path(link.path)) == link


def test_predictions_follow_the_model(link):
    free = xstage.predict(link, kind="bulk", producers=132, bytes="32K", gap="20us")
    full = xstage.predict(link, kind="bulk", producers=132, bytes=32768, gap=0)
    assert free.regime == "free" and free.wait_ns == 0
    assert full.regime == "drain_limited"
    assert full.period_ns == pytest.approx(132 * 32768 / full.drain_rate_bytes_per_ns)
    assert full.issue_ns > free.issue_ns
    assert free.onset_gap_ns == full.onset_gap_ns
    assert full.coupled.issue_ns > full.issue_ns > full.unbounded.issue_ns


def test_all_producers_are_the_default(link):
    assert xstage.predict(link, bytes="8K", gap="8us").producers == 132


def test_to_dict_is_json_and_complete(link):
    p = xstage.predict(link, bytes="8K", gap="8us")
    d = json.loads(json.dumps(p.to_dict()))
    assert set(d) == {f.name for f in dataclasses.fields(p)}
    assert d["coupled"]["period_ns"] == p.coupled.period_ns
    with pytest.raises(dataclasses.FrozenInstanceError):
        p.issue_ns = 0


def test_the_tool_says_the_same(link):
    tool = next((p / "xstage" for p in pathlib.Path(_native.__file__).parents
                 if (p / "xstage").is_file()), None)
    if tool is None:
        pytest.skip("the command-line tool was not built beside the package")
    out = subprocess.run([tool, "predict", "--link", link.path, "--kind", "bulk", "--bytes", "8K",
                          "--gap", "8us", "--json"], check=True, capture_output=True, text=True).stdout
    assert json.loads(out)["predictions"][0] == xstage.predict(link, bytes="8K", gap="8us").to_dict()


def test_a_plan_chooses_the_fastest_that_runs(link):
    plan = xstage.plan("flux.1-dev-1024", link=link, ranks=2)
    assert plan.ranks == 2 and plan.workload == "flux.1-dev-1024"
    assert plan.chosen.runnable
    assert plan.chosen.total_ns >= plan.chosen.bound_ns
    assert isinstance(plan.chosen.send, xstage.Send)
    assert plan.to_dict()["candidates"][0]["name"] == plan.candidates[0].name
    assert plan.link["sha256"] == link.sha256


@pytest.mark.parametrize("call, word", [
    (lambda link: xstage.predict(link, kind="bulky", bytes=1, gap=0), "bulky"),
    (lambda link: xstage.predict(link, producers=133, bytes=1, gap=0), "133"),
    (lambda link: xstage.predict(link, producers=0, bytes=1, gap=0), "0"),
    (lambda link: xstage.predict(link, bytes="32Q", gap=0), "32Q"),
    (lambda link: xstage.predict(link, bytes="8K", gap="-1us"), "-1us"),
    (lambda link: xstage.plan("flux-9", link=link, ranks=2), "flux-9"),
    (lambda link: xstage.plan("flux.1-dev-1024", link=link, ranks=73), "73"),
    (lambda link: xstage.load_link("h300-nv99"), "h300-nv99"),
])
def test_what_cannot_be_is_refused_by_name(link, call, word):
    with pytest.raises(xstage.Error) as caught:
        call(link)
    assert word in str(caught.value)
    assert caught.value.category == "usage" and caught.value.exit_code == 2


def test_a_damaged_file_is_a_bad_file(tmp_path):
    file = tmp_path / "link.json"
    file.write_text("{")
    with pytest.raises(xstage.Error) as caught:
        xstage.load_link(file)
    assert caught.value.category == "bad_file" and caught.value.exit_code == 6
    assert str(file) in str(caught.value)


def test_wrong_types_are_type_errors(link):
    with pytest.raises(TypeError):
        xstage.predict(link, producers="many", bytes=1, gap=0)
    with pytest.raises(ValueError, match="layout"):
        xstage.attention(None, None, None, layout="sbhd")


def test_stubs_name_what_the_module_has():
    stub = ast.parse(pathlib.Path(xstage.__file__).with_name("_native.pyi").read_text())
    declared = {n.name for n in stub.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    declared |= {n.target.id for n in stub.body if isinstance(n, ast.AnnAssign)}
    assert declared <= set(dir(_native))
    public = {n for n in dir(_native) if not n.startswith("_") and not inspect.ismodule(getattr(_native, n))}
    assert public <= declared
