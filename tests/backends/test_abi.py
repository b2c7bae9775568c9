"""The slot list as Python reads it against the slot list as a C compiler reads it."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from coli.backends.abi import ABI_MAJOR, ABI_MINOR, HEADER, SLOTS, fnv1a_64, parse_slots, structs

PROGRAM = r"""
#include <stdio.h>
#include "coli_backend.h"
#define SIZE(name) printf("size " #name " %zu\n", sizeof(name))
#define OFFSET(type, field) printf("offset " #type "." #field " %zu\n", offsetof(type, field))
int main(void) {
  int at = 0;
#define SLOT(kind, requirement, name, ...) \
  printf("slot %d %s %s %s %llu\n", at++, kind, #requirement, #name, \
         (unsigned long long)coli_signature(#name "(" #__VA_ARGS__ ")"));
#define COLI_SERVICE(requirement, name, ...) SLOT("service", requirement, name, __VA_ARGS__)
#define COLI_STAGE(requirement, name, ...) SLOT("stage", requirement, name, __VA_ARGS__)
#include "coli_slots.inc"
  SIZE(coli_error); SIZE(coli_matrix); SIZE(coli_weight_desc); SIZE(coli_weight_list); SIZE(coli_context_config);
  SIZE(coli_device_info); SIZE(coli_memory_info); SIZE(coli_slot); SIZE(coli_backend);
  OFFSET(coli_matrix, place); OFFSET(coli_weight_desc, scales_bytes); OFFSET(coli_backend, memory_info_size);
  OFFSET(coli_context_config, workspace_bytes); OFFSET(coli_memory_info, context_bytes); OFFSET(coli_error, text);
  printf("tag %u\nversion %d %d\nworkspace %llu\n", COLI_PLATFORM_TAG, COLI_ABI_MAJOR, COLI_ABI_MINOR,
         (unsigned long long)COLI_WORKSPACE_BYTES(7));
  return 0;
}
"""


@pytest.fixture(scope="module")
def answer(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    folder = tmp_path_factory.mktemp("abi")
    source, program = folder / "abi.c", folder / "abi"
    source.write_text(PROGRAM, encoding="utf-8")
    subprocess.run([compiler, "-std=c11", f"-I{HEADER.parent}", str(source), "-o", str(program)], check=True)
    output = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return [line.split() for line in output.splitlines()]


def test_slots_are_those_of_the_compiler(answer: list[list[str]]) -> None:
    want = [row[1:] for row in answer if row[0] == "slot"]
    got = [[str(s.index), s.kind, s.requirement.upper(), s.name, str(s.signature)] for s in SLOTS]
    assert got == want


def test_structs_have_the_layout_of_the_compiler(answer: list[list[str]]) -> None:
    ours = {
        "coli_error": structs.Error,
        "coli_matrix": structs.Matrix,
        "coli_weight_desc": structs.WeightDesc,
        "coli_weight_list": structs.WeightList,
        "coli_context_config": structs.ContextConfig,
        "coli_device_info": structs.DeviceInfo,
        "coli_memory_info": structs.MemoryInfo,
        "coli_slot": structs.SlotEntry,
        "coli_backend": structs.Backend,
    }
    sizes = {row[1]: int(row[2]) for row in answer if row[0] == "size"}
    assert {name: ctypes.sizeof(struct) for name, struct in ours.items()} == sizes
    for row in answer:
        if row[0] == "offset":
            struct, field = row[1].split(".")
            assert getattr(ours[struct], field).offset == int(row[2]), row[1]


def test_version_tag_and_workspace(answer: list[list[str]]) -> None:
    facts = {row[0]: row[1:] for row in answer}
    assert facts["version"] == [str(ABI_MAJOR), str(ABI_MINOR)]
    assert facts["tag"] == [str(structs.platform_tag())]
    assert facts["workspace"] == [str(structs.workspace_bytes(7))]


def test_hash_has_the_published_values() -> None:
    # From the FNV reference test suite (64-bit FNV-1a of "", "a", "foobar").
    assert [fnv1a_64(text) for text in ("", "a", "foobar")] == [
        0xCBF29CE484222325,
        0xAF63DC4C8601EC8C,
        0x85944171F73967E8,
    ]


def test_parser_reads_a_hand_written_list() -> None:
    text = """/* COLI_STAGE(MANDATORY, no, int64_t x) */
COLI_SERVICE(OPTIONAL, first, coli_context *context,
             uint64_t   bytes)
COLI_STAGE(MANDATORY, second, float a)
"""
    first, second = parse_slots(text)
    assert (first.index, first.kind, first.mandatory, first.name) == (0, "service", False, "first")
    assert [(a.type, a.name) for a in first.arguments] == [("coli_context *", "context"), ("uint64_t", "bytes")]
    assert first.signature == fnv1a_64("first(coli_context *context, uint64_t bytes)")
    assert (second.index, second.kind, second.mandatory) == (1, "stage", True)


def test_abi_needs_neither_numpy_nor_the_extension() -> None:
    import sys

    code = "import sys, coli.backends._probe; print([m for m in ('numpy', 'coli.backends._host') if m in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=Path("/"))
    assert output.stdout.strip() == "[]"
