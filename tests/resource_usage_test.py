"""Tests of resource_usage.py: what it reads, and that it finds what does not fit."""

import unittest

from resource_usage import Kernel, check, parse_budgets, parse_report

REPORT = """
Fatbin elf code:
================
arch = sm_90a
Resource usage:
 Common:
  GLOBAL:0
 Function _Z3addPi:
  REG:40 STACK:8 SHARED:1152 LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0
arch = sm_80
 Function _Z3addPi:
  REG:32 STACK:0 SHARED:128 LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0
"""


def problems(kernel, table):
    return check([kernel], parse_budgets(table))


class ResourceUsage(unittest.TestCase):
    def test_reads_each_architecture_and_leaves_out_reserved_shared_memory(self):
        self.assertEqual(parse_report(REPORT), [Kernel("_Z3addPi", "sm_90a", 40, 8, 128),
                                                Kernel("_Z3addPi", "sm_80", 32, 0, 128)])

    def test_what_fits_is_no_problem(self):
        self.assertEqual(problems(Kernel("add", "sm_90", 64, 8, 128), "add 1024 64 8 128"), [])

    def test_each_limit_counts(self):
        kernel = Kernel("add", "sm_90", 64, 8, 128)
        for table, word in (("add 256 63 8 128", "registers"), ("add 256 64 7 128", "stack"),
                            ("add 256 64 8 127", "shared")):
            self.assertEqual(len(problems(kernel, table)), 1)
            self.assertIn(word, problems(kernel, table)[0])

    def test_registers_of_all_threads_must_fit_an_sm(self):
        self.assertEqual(problems(Kernel("add", "sm_90", 168, 0, 0), "add 384 168 0 0"), [])
        self.assertIn("65536", problems(Kernel("add", "sm_90", 169, 0, 0), "add 384 255 0 0")[0])

    def test_unlisted_kernels_and_stale_lines_are_problems(self):
        found = problems(Kernel("add", "sm_90", 1, 0, 0), "# a comment\n\nmul 32 255 0 0")
        self.assertEqual(len(found), 2)
        self.assertIn("no line in the table", found[0])
        self.assertIn("line 3", found[1])

    def test_unreadable_tables_name_the_line(self):
        for table in ("add 1 2 3", "add 1 2 3 x", "( 1 2 3 4"):
            with self.assertRaisesRegex(ValueError, "line 1"):
                parse_budgets(table)


if __name__ == "__main__":
    unittest.main()
