"""Reading the text of a compiled program: excerpts of `test_explain`'s data-parallel program in the
formats of two versions of XLA.

Types, operands and metadata that are not read are left out.
"""

import pytest

from jaxrl_fast.views.hlo import Collective, find_collectives, loop_runs

JAX_0_10 = """\
HloModule jit_chunk, is_scheduled=true, num_partitions=2

%add.clone (x.1: f32[], y.1: f32[]) -> f32[] {
  ROOT %add.27 = f32[] add(%x.1, %y.1)
}

%wide.region_4.3_spmd.clone (wide.param.11: (s32[], f32[6], f32[], f32[4,6])) -> (s32[], f32[6], f32[], f32[4,6]) {
  %all-reduce.8 = f32[6]{0} all-reduce(%bitcast.3), channel_id=1, replica_groups=mesh['axis_0'=2] {'axis_0'}, \
use_global_device_ids=true, to_apply=%add.clone, metadata={op_name="jit(chunk)/while/body" stack_frame_id=37}
}

%wide.region_5.4_spmd.clone (wide.param.10: (s32[], f32[6], f32[], f32[4,6])) -> pred[] {
  ROOT %lt.21 = pred[] compare(%param_0.18, %param_1.25), direction=LT
}

%region_2.0_spmd (param: (f32[6], f32[6])) -> (f32[6], f32[6]) {
  ROOT %param = (f32[6]{0}, f32[6]{0}) parameter(0)
}

%region_3.0_spmd (param.3: (f32[], f32[4,6], f32[6])) -> (f32[6], f32[6]) {
  %while.38 = (s32[], f32[6]{0}, f32[], f32[4,6]{1,0}) while(%tuple.81), condition=%wide.region_5.4_spmd.clone, \
body=%wide.region_4.3_spmd.clone, backend_config={"known_init_step":{"init":"0"},"known_trip_count":{"n":"4"}}
}

%region_6.6.clone (reduce_sum.18: f32[], reduce_sum.19: f32[]) -> f32[] {
  ROOT %reduce_sum.20 = f32[] add(%reduce_sum.18, %reduce_sum.19)
}

%wide.region_0.7_spmd.clone (wide.param.9: (s32[], f32[6], f32[], /*index=5*/f32[])) -> (s32[], f32[6]) {
  %all-reduce.7 = f32[] all-reduce(%add_reduce_fusion), channel_id=2, replica_groups=mesh['axis_0'=2,'axis_1'=1] \
{'axis_0'}, use_global_device_ids=true, to_apply=%region_6.6.clone, metadata={op_name="jit(chunk)" stack_frame_id=40}
  %multiply_add_fusion = f32[] fusion(%get-tuple-element.365, %all-reduce.7), kind=kLoop, calls=%fused_computation.2
  %conditional.5 = (f32[6]{0}, f32[6]{0}) conditional(%and_convert_fusion, %tuple.73, %tuple.74), \
branch_computations={%region_2.0_spmd, %region_3.0_spmd}
}

%fused_computation.2 (param_0.4: f32[], param_1.6: f32[]) -> f32[] {
  ROOT %add.89 = f32[] add(%param_0.4, %multiply.14)
}

%wide.region_7.8_spmd.clone (wide.param.8: (s32[], f32[6], f32[], /*index=5*/f32[])) -> pred[] {
  ROOT %lt.22 = pred[] compare(%param_0.19, %param_1.26), direction=LT
}

ENTRY %main.9_spmd (param.6: f32[6], param.7: f32[4,6], param.13: u32[2]) -> (f32[6], f32[4,6], /*index=5*/f32[]) {
  %while.16 = (s32[], f32[6]{0}, f32[], /*index=5*/f32[]) while(%tuple.86), condition=%wide.region_7.8_spmd.clone, \
body=%wide.region_0.7_spmd.clone, backend_config={"known_init_step":{"init":"0"},"known_trip_count":{"n":"3"}}
}
"""

JAX_0_11 = """\
HloModule jit_chunk, is_scheduled=true, num_partitions=2

%region_2.0_spmd (param: (f32[6], f32[6])) -> (f32[6], f32[6]) {
  ROOT %param = (f32[6]{0}, f32[6]{0}) parameter(0)
}

%add.clone (x.1: f32[], y.1: f32[]) -> f32[] {
  ROOT %add.20 = f32[] add(%x.1, %y.1)
}

%wide.region_4.3_spmd.clone (wide.param.11: (s32[], f32[6], f32[], f32[4,6])) -> (s32[], f32[6], f32[], f32[4,6]) {
  %all-reduce.8 = f32[6]{0} all-reduce(%bitcast.3), channel_id=1, replica_groups=mesh['axis_0'=2] {'axis_0'}, \
use_global_device_ids=true, to_apply=%add.clone, frontend_attributes={is_spmd_generated="true"}
}

%wide.region_5.4_spmd.clone (wide.param.10: (s32[], f32[6], f32[], f32[4,6])) -> pred[] {
  ROOT %lt.19 = pred[] compare(%param_0.18, %param_1.26), direction=LT
}

%region_3.0_spmd (param.3: (f32[], f32[4,6], f32[6])) -> (f32[6], f32[6]) {
  %while.32 = (s32[], f32[6]{0}, f32[], f32[4,6]{1,0}) while(%tuple.79), condition=%wide.region_5.4_spmd.clone, \
body=%wide.region_4.3_spmd.clone, backend_config={"known_init_step":{"init":"0"},"known_trip_count":{"n":"4"}}
}

%region_6.6.clone (reduce_sum.16: f32[], reduce_sum.17: f32[]) -> f32[] {
  ROOT %reduce_sum.18 = f32[] add(%reduce_sum.16, %reduce_sum.17)
}

%wide.region_0.7_spmd.clone (wide.param.9: (s32[], f32[6], f32[], /*index=5*/f32[])) -> (s32[], f32[6]) {
  %conditional.5 = (f32[6]{0}, f32[6]{0}) conditional(%and_convert_fusion, %tuple.71, %tuple.72), \
branch_computations={%region_2.0_spmd, %region_3.0_spmd}
  %all-reduce.7 = f32[] all-reduce(%wrapped_reduce.1), channel_id=2, replica_groups=mesh['seed'=1,'batch'=2] \
{'batch'}, use_global_device_ids=true, to_apply=%region_6.6.clone, frontend_attributes={is_spmd_generated="true"}
}

%wide.region_7.8_spmd.clone (wide.param.8: (s32[], f32[6], f32[], /*index=5*/f32[])) -> pred[] {
  ROOT %lt.20 = pred[] compare(%param_0.20, %param_1.28), direction=LT
}

ENTRY %main.9_spmd (param.6: f32[6], param.7: f32[4,6], param.13: u32[2]) -> (f32[6], f32[4,6], /*index=5*/f32[]) {
  %while.31 = (s32[], f32[6]{0}, f32[], /*index=5*/f32[]) while(%tuple.84), condition=%wide.region_7.8_spmd.clone, \
body=%wide.region_0.7_spmd.clone, backend_config={"known_init_step":{"init":"0"},"known_trip_count":{"n":"3"}}
}

%fused_computation.3 (param_0.7: f32[], param_1.11: f32[4,6], param_2.6: f32[]) -> pred[4,6] {
  ROOT %gt.8 = pred[4,6]{1,0} compare(%add.83, %broadcast.19), direction=GT
}
"""
"""Here an uncalled computation follows the entry computation."""

LEFT_BEHIND = """
%unused (param: f32[8]) -> f32[8] {
  %all-gather.1 = f32[16]{0} all-gather(%param), channel_id=3, dimensions={0}
  %while.1 = f32[8]{0} while(%param), condition=%wide.region_7.8_spmd.clone, body=%unused_body
}

%unused_body (param: f32[8]) -> f32[8] {
  %all-gather.2 = f32[16]{0} all-gather(%param), channel_id=4, dimensions={0}
}
"""


@pytest.mark.parametrize("text", [JAX_0_10, JAX_0_11])
@pytest.mark.parametrize("behind", ["", LEFT_BEHIND])
def test_texts_of_both_versions_are_counted_alike(text: str, behind: str):
    each_update, each_tick = (
        Collective("all-reduce", 1, 4.0, 24),
        Collective("all-reduce", 1, 1.0, 4),
    )
    assert set(find_collectives(text + behind, ticks=3)) == {each_update, each_tick}
    assert sorted(loop_runs(text + behind)) == [3.0, 12.0]


def test_of_a_loop_of_unknown_length_nothing_is_known():
    text = JAX_0_11.replace('"known_trip_count":{"n":"4"}', "")
    assert {c.runs for c in find_collectives(text, ticks=3)} == {None, 1.0}
    assert sum(runs != runs for runs in loop_runs(text)) == 1


@pytest.mark.parametrize("text", ["", "HloModule nothing\n"])
def test_a_text_without_a_program_has_none(text: str):
    assert find_collectives(text) == () and loop_runs(text) == []


TPU_CONDITION = """
%counted (counter: (s32[], f32[6])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(128), metadata={op_name="jit(chunk)/while/body"}
  %counter.1 = s32[]{:T(128)} get-tuple-element(%counter), index=0
  ROOT %lt.1 = pred[]{:T(512)} compare(%counter.1, %constant.1), direction=LT, backend_config={"flag_configs":[]}
}
"""


@pytest.mark.parametrize(("direction", "number"), [("LT", 128.0), ("NE", None)])
def test_on_a_tpu_a_loop_counts_up_to_the_number_of_its_condition(
    direction: str, number: float | None
):
    text = JAX_0_11.replace('"known_trip_count":{"n":"4"}', "")
    unknown = next(
        line for line in text.splitlines() if "condition=" in line and "known_trip" not in line
    )
    name = unknown.partition("condition=%")[2].partition(",")[0]
    condition = TPU_CONDITION.replace("%counted", f"%{name}_counted").replace(
        "=LT", f"={direction}"
    )
    runs = loop_runs(text.replace(f"condition=%{name},", f"condition=%{name}_counted,") + condition)
    known = {often for often in runs if often == often}
    assert known == ({3.0, 3.0 * number} if number else {3.0})
