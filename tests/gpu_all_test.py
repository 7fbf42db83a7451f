"""bench/gpu_all.sh and bench/launch.sh without a GPU: stubs stand for the driver and the programs."""

import os
import pathlib
import subprocess
import tempfile
import unittest

BENCH = pathlib.Path(__file__).resolve().parent.parent / "bench"


def run(*words, path=None):
    env = dict(os.environ)
    if path:
        env["PATH"] = f"{path}:{env['PATH']}"
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, env=env,
                          check=False, timeout=60)


def stub(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


class GpuAll(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        root = pathlib.Path(self.folder.name)
        self.bin, self.build, self.out = root / "bin", root / "build", root / "out"
        self.build.mkdir()

    def tearDown(self):
        self.folder.cleanup()

    def gpus(self, count):
        lines = "".join(f"echo 'GPU {i}: stub'\n" for i in range(count))
        stub(self.bin / "nvidia-smi", f'[ "$1" = -L ] || exit 0\n{lines}')

    def gpu_all(self, *words):
        return run(BENCH / "gpu_all.sh", self.build, self.out, *words, path=self.bin)

    def statuses(self):
        rows = (self.out / "summary.tsv").read_text().splitlines()[1:]
        return {row.split("\t")[0]: row.split("\t")[1] for row in rows}

    def test_every_entry_has_a_name_of_its_own_and_a_limit(self):
        rows = [line.split("|") for line in run(BENCH / "gpu_all.sh", "--list").stdout.splitlines()]
        names = [row[1].strip() for row in rows]
        self.assertGreater(len(names), 30)
        self.assertEqual(len(names), len(set(names)), "a name twice")
        for row in rows:
            self.assertGreater(int(row[2]), 0, row)
            self.assertIn(int(row[3]), (1, 2), row)

    def test_says_what_passed_failed_is_missing_or_impossible(self):
        self.gpus(1)
        stub(self.build / "tests/gpu/wait_gpu_test", "echo waited\n")
        stub(self.build / "tests/gpu/outbox_gpu_test", "echo broken\nexit 4\n")
        stub(self.build / "xstage", "echo 'no such GPU'\nexit 3\n")
        result = self.gpu_all("--only", "waits", "--only", "outbox", "--only", "doctor",
                              "--only", "two-probe-back")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertEqual(self.statuses(), {
            "doctor": "impossible", "outbox": "failed:4", "outbox-decisions": "missing",
            "waits": "passed", "two-doctor": "impossible", "two-probe-back": "impossible",
            "many-doctor": "impossible"})
        results = (self.out / "results.txt").read_text()
        self.assertIn("--- waits: @build/tests/gpu/wait_gpu_test\nwaited\npassed", results)
        self.assertIn("needs 2 GPUs, 1 here", results)

    def test_many_gpus_get_all_their_numbers(self):
        self.gpus(4)
        stub(self.build / "tests/gpu/peers_gpu", 'echo "$@"\n')
        self.assertEqual(self.gpu_all("--set", "many", "--only", "soak").returncode, 0)
        self.assertIn("--ranks 4 --rounds 10000 --launches 100 --devices 0,1,2,3",
                      (self.out / "many-soak.log").read_text())

    def test_one_gpu_is_its_own_second_one(self):
        stub(self.build / "tests/gpu/peers_gpu", 'echo "$@"\n')
        stub(self.build / "xstage", 'echo "$@"\n')
        for count, pair, second, rounds in ((1, "0", "host", 200), (2, "0,1", "1", 10000)):
            self.gpus(count)
            self.assertEqual(self.gpu_all("--only", "two-soak", "--only", "two-probe-quick",
                                          "--only", "two-processes").returncode, 0)
            self.assertIn(f"--devices {pair}\n", (self.out / "two-soak.log").read_text())
            self.assertIn(f"--rounds {rounds} ", (self.out / "two-processes.log").read_text())
            self.assertIn(f"--peer {second} ", (self.out / "two-probe-quick.log").read_text())
        self.assertEqual(self.gpu_all("--gpus", "1", "--only", "two-probe-back").returncode, 0)
        self.assertEqual(self.statuses(), {"two-probe-back": "impossible"})

    def test_benchmarks_that_are_not_built_say_so(self):
        self.gpus(2)
        stub(self.build / "xstage", "exit 2\n")
        self.assertEqual(self.gpu_all("--set", "many", "--only", "experts").returncode, 0)
        self.assertEqual((self.out / "many-experts.log").read_text(), "not built: xstage bench moe\n")

    def test_real_ranks_are_processes(self):
        self.gpus(2)
        stub(self.build / "xstage", 'echo "rank $RANK of $WORLD_SIZE: $@"\n')
        self.assertEqual(self.gpu_all("--set", "many", "--only", "many-attention").returncode, 0)
        self.assertIn("rank 0 of 2: bench exchange 8192x8",
                      (self.out / "many-attention.log").read_text())

    def test_programs_with_redirections_stay_as_they_are(self):
        self.gpus(1)
        stub(self.build / "xstage", "exit 2\n")
        before = sorted(BENCH.parent.iterdir())
        self.gpu_all("--set", "many", "--only", "experts", "--only", "attention")
        self.assertEqual(sorted(BENCH.parent.iterdir()), before)

    def test_what_an_earlier_entry_did_not_write_is_said(self):
        self.gpus(1)
        stub(self.build / "xstage", "exit 3\n")
        self.assertEqual(self.gpu_all("--only", "two-probe", "--only", "two-same").returncode, 0)
        self.assertEqual(set(self.statuses().values()), {"impossible"})
        self.assertEqual((self.out / "two-same.log").read_text(),
                         "needs two-probe/first.json, which is not there\n")

    def test_a_budget_ends_it(self):
        self.gpus(1)
        stub(self.build / "tests/gpu/wait_gpu_test", "sleep 30\n")
        result = self.gpu_all("--budget", "1", "--only", "waits")
        self.assertEqual((result.returncode, self.statuses()), (1, {"waits": "timeout"}))

    def test_refuses_what_it_does_not_know(self):
        self.gpus(1)
        for words in (["--set", "three"], ["--gpus", "many"], ["--gpus", "2"], ["--only", "nothing"]):
            self.assertEqual(self.gpu_all(*words).returncode, 2, words)


class Launch(unittest.TestCase):
    def test_shows_rank_0_and_whoever_failed(self):
        result = run(BENCH / "launch.sh", 3, "sh", "-c",
                     'echo "here $RANK/$WORLD_SIZE"; test $RANK -ne 2 || exit 5')
        self.assertEqual(result.returncode, 5)
        self.assertIn("here 0/3", result.stdout)
        self.assertNotIn("here 1/3", result.stdout)
        self.assertIn("rank 2 ended with 5:\nhere 2/3", result.stdout)

    def test_needs_a_command(self):
        self.assertEqual(run(BENCH / "launch.sh", 2).returncode, 2)


if __name__ == "__main__":
    unittest.main()
