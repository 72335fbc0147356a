"""Reading the texts that XLA writes for a GPU: excerpts of programs compiled for an H100 with JAX
0.10.2.

Parts that are not read are left out.
"""

import pytest

from jaxrl_fast.targets.program_cost import (
    Launches,
    count_launches,
    kernels_of,
    thunk_names,
    unordered_scatters,
)
from jaxrl_fast.views.hlo import read_instruction, read_text, trip_count

PROGRAM = """\
HloModule jit_chunk, is_scheduled=true

%gemm_computation (parameter_0: f32[512,32], parameter_1: f32[32,256]) -> f32[512,256] {
  %parameter_0 = f32[512,32]{1,0} parameter(0)
  %parameter_1 = f32[32,256]{1,0} parameter(1)
  ROOT %dot_general.1 = f32[512,256]{1,0} dot(%parameter_0, %parameter_1), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}, metadata={op_name="jit(chunk)/while/body/learn/dot_general"}
}

%fused_gather (param_0: f32[10000,32], param_1: s32[512]) -> f32[512,32] {
  %param_0 = f32[10000,32]{1,0} parameter(0)
  %param_1 = s32[512]{0} parameter(1)
  ROOT %gather.1 = f32[512,32]{1,0} gather(%param_0, %param_1), offset_dims={1}, slice_sizes={1,32}
}

%fused_write (param_0.1: f32[10000,32], param_1.1: f32[1,32], param_2: s32[]) -> f32[10000,32] {
  %param_0.1 = f32[10000,32]{1,0} parameter(0)
  %param_1.1 = f32[1,32]{1,0} parameter(1)
  %param_2 = s32[] parameter(2)
  ROOT %dynamic-update-slice.1 = f32[10000,32]{1,0} dynamic-update-slice(%param_0.1, %param_1.1, %param_2, %param_2)
}

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %add.1 = f32[] add(%x, %y)
}

%fused_scatter (param_0.2: f32[8], param_1.2: s32[512,1], param_2.2: f32[512]) -> f32[8] {
  %param_0.2 = f32[8]{0} parameter(0)
  %param_1.2 = s32[512,1]{1,0} parameter(1)
  %param_2.2 = f32[512]{0} parameter(2)
  ROOT %scatter.1 = f32[8]{0} scatter(%param_0.2, %param_1.2, %param_2.2), update_window_dims={}, to_apply=%add, \
metadata={op_name="jit(chunk)/while/body/sample/scatter-add"}
}

%body (arg: (s32[], f32[10000,32], s32[512], f32[32,256])) -> (s32[], f32[10000,32], s32[512], f32[32,256]) {
  %arg = (s32[], f32[10000,32]{1,0}, s32[512]{0}, f32[32,256]{1,0}) parameter(0)
  %buffer = f32[10000,32]{1,0} get-tuple-element(%arg), index=1
  %index = s32[512]{0} get-tuple-element(%arg), index=2
  %weights = f32[32,256]{1,0} get-tuple-element(%arg), index=3
  %gather_fusion = f32[512,32]{1,0} fusion(%buffer, %index), kind=kLoop, calls=%fused_gather, \
metadata={op_name="jit(chunk)/while/body/vmap(learn)/gather"}, backend_config={"reification_cost":[\
{"end_to_end_cycles":97.5,"exec_time_us":0.04925,"compute_time_us":0.0215,"memory_access_time_us":0.04825,"name":""},\
{"end_to_end_cycles":0,"exec_time_us":0.9,"compute_time_us":0,"memory_access_time_us":0,"name":"sol"}]}
  %gemm = f32[512,256]{1,0} fusion(%gather_fusion, %weights), kind=kCustom, calls=%gemm_computation, \
metadata={op_name="jit(chunk)/while/body/learn/dot_general"}
  %copy.1 = f32[32,256]{1,0} copy(%weights)
  ROOT %tuple.1 = (s32[], f32[10000,32]{1,0}, s32[512]{0}, /*index=3*/f32[32,256]{1,0}) \
tuple(%c, %buffer, %index, %copy.1)
}

%condition (arg.1: (s32[], f32[10000,32], s32[512], f32[32,256])) -> pred[] {
  ROOT %lt.1 = pred[] compare(%n, %arg.1), direction=LT
}

ENTRY %main (p0: f32[10000,32], p1: s32[512], p2: f32[32,256]) -> f32[10000,32] {
  %p0 = f32[10000,32]{1,0} parameter(0)
  %p1 = s32[512]{0} parameter(1)
  %p2 = f32[32,256]{1,0} parameter(2)
  %row = f32[1,32]{1,0} parameter(3)
  %at = s32[] parameter(4)
  %tuple.2 = (s32[], f32[10000,32]{1,0}, s32[512]{0}, f32[32,256]{1,0}) tuple(%at, %p0, %p1, %p2)
  %while.10 = (s32[], f32[10000,32]{1,0}, s32[512]{0}, f32[32,256]{1,0}) while(%tuple.2), condition=%condition, \
body=%body, backend_config={"known_trip_count":{"n":"16"}}
  %sums = f32[8]{0} fusion(%zeros, %p1, %values), kind=kInput, calls=%fused_scatter, \
metadata={op_name="jit(chunk)/while/body/sample/scatter-add"}
  ROOT %write_fusion = f32[10000,32]{1,0} fusion(%p0, %row, %at), kind=kLoop, calls=%fused_write, \
metadata={op_name="jit(chunk)/while/body/experience/scatter"}
}
"""

THUNKS = """\
000: kCommandBuffer [source       | next=006 (1)]
    001: kCopy         [source | sink] kCopy
    004: kCustomKernel [source | sink] loop_broadcast_fusion grid: [1, 1, 1] threads: [16, 1, 1]
006: kWhile         [prev=000 (1) | next=021 (1)]
condition:
    007: kCustomKernel [source | sink] loop_compare_fusion grid: [1, 1, 1] threads: [1, 1, 1]
  body:
    000: kCommandBuffer [source | sink]
        008: kCustomKernel       [source        | next=009 (1)] loop_add_xor_fusion grid: [1, 1, 1]
        018: kDynamicSliceFusion [prev=017 (1)  | sink        ] params=1, results=1
            019: kCopy [source | sink] kCopy
    020: kCustomKernel  [source | sink] gemm grid: [1, 1, 1]
    022: kWhile         [prev=000 (1) | next=021 (1)]
  condition:
        023: kCustomKernel [source | sink] loop_compare_fusion grid: [1, 1, 1]
    body:
        024: kCustomKernel [source | sink] inner grid: [1, 1, 1]
021: kCustomKernel  [prev=006 (1) | sink        ] write_fusion grid: [1, 1, 1] threads: [32, 1, 1]
025: kConditional   [prev=021 (1) | sink        ]
branch_0:
    026: kCommandBuffer [source | sink]
        027: kCustomKernel       [source        | next=009 (1)] loop_add_fusion grid: [1, 1, 1]
"""
METADATA = """\
thunk_metadata {
  thunk_info {
    profile_annotation: "command_buffer_1"
  }
  thunk_kind: "kCommandBuffer"
}
thunk_metadata {
  thunk_info {
    profile_annotation: "while.10"
    thunk_id: 6
  }
  thunk_kind: "kWhile"
}
thunk_metadata {
  thunk_info {
    profile_annotation: "while.11"
    thunk_id: 22
  }
  thunk_kind: "kWhile"
}
"""


@pytest.fixture(scope="module")
def kernels() -> dict:
    return {
        kernel.name: kernel
        for kernel in kernels_of(read_text(PROGRAM), ("sample", "learn", "experience"))
    }


def test_kernels_run_as_often_as_their_loop_and_belong_to_the_fragment_that_asked(kernels):
    assert {name: (k.runs, k.scope) for name, k in kernels.items()} == {
        "gather_fusion": (16, "learn"),
        "gemm": (16, "learn"),
        "copy.1": (16, "learn"),  # nothing else runs in that loop
        "sums": (1, "sample"),
        "write_fusion": (1, "experience"),
    }


def test_products_are_counted_within_a_fusion(kernels):
    assert kernels["gemm"].flops == 2 * 512 * 32 * 256
    assert kernels["gather_fusion"].flops == 0


def test_of_what_is_sliced_only_the_slices_count_as_traffic(kernels):
    rows = 512 * 32 * 4
    assert kernels["gather_fusion"].moved_bytes == 2 * rows + 512 * 4
    assert kernels["write_fusion"].moved_bytes == 2 * 32 * 4 + 4
    assert kernels["copy.1"].moved_bytes == 2 * 32 * 256 * 4


def test_the_time_is_that_of_the_model_without_a_name(kernels):
    assert kernels["gather_fusion"].model_us == 0.04925
    assert kernels["gemm"].model_us is None


def test_scatters_that_add_at_places_that_may_repeat_are_found():
    assert unordered_scatters(read_text(PROGRAM)) == ("scatter.1",)
    safe = PROGRAM.replace("update_window_dims={}, to", "unique_indices=true, to")
    assert unordered_scatters(read_text(safe)) == ()


def test_launches_are_graphs_and_what_stands_alone_as_often_as_it_runs():
    assert count_launches(THUNKS, METADATA, {"while.10": 16, "while.11": 3}) == Launches(
        graphs=1 + 16 + 1, alone=16 + 16 * 3 + 1, host_syncs=1
    )


def test_a_loop_of_unknown_length_makes_the_host_wait():
    assert count_launches(THUNKS, METADATA, {"while.10": 16}).host_syncs == 16 + 1
    assert thunk_names(METADATA) == {0: "command_buffer_1", 6: "while.10", 22: "while.11"}


def test_an_instruction_with_brackets_in_its_shape():
    line = (
        "  %w = (s32[], /*index=1*/f32[8,128]{1,0:T(8,128)}) while(%a, %b), condition=%c, body=%d"
    )
    found = read_instruction(line)
    assert (found.name, found.opcode, found.operands) == ("w", "while", ("a", "b"))
    assert trip_count(found) is None
    assert read_instruction("}") is None
