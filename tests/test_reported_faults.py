"""Faults that users of such programs reported on hardware detection, memory, the command line and downloads: what tests each.

A row is the report, and tests that fail where kt would do the same. Other themes' reports are in the tests of their areas.
"""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# report, what went wrong -> file and functions
REPORTED = {
    ("kvcache-ai/ktransformers#2172", "32 small nodes, two of them used"): (
        "plan/test_plan.py", "test_nodes_that_are_smaller_than_their_part_are_told"),
    ("kvcache-ai/ktransformers#1136", "a refused binding on eight nodes"): (
        "kernels/test_groups.py", "test_binding_refused",
        "plan/test_plan.py", "test_cpus_are_allowed_ones_and_never_empty", "test_chosen_number_of_pools"),
    ("kvcache-ai/ktransformers PR#1891", "pools always begin at node 0"): (
        "plan/test_gpus.py", "test_chosen_nodes",
        "plan/test_plan.py", "test_pinning_respects_the_affinity", "test_memory_is_not_bound_to_a_node_that_is_barred"),
    ("ggml-org/llama.cpp#5121", "interleaved lists of cores"): (
        "machine/test_probe.py", "test_interleaved_ranges_and_offline_cpus", "test_lists_and_masks"),
    ("vllm-project/vllm PR#17930", "nodes with memory and no CPUs"): (
        "machine/test_probe.py", "test_eight_nodes_gaps_and_a_node_of_memory_only", "plan/test_plan.py", "test_a_pool_for_each_node"),
    ("vllm-project/vllm#58033", "cores of the host in a narrower container"): (
        "machine/test_probe.py", "test_affinity_narrower_than_the_machine", "plan/test_plan.py", "test_pinning_respects_the_affinity"),
    ("ollama/ollama#17916", "a quota of CPUs is not seen"): (
        "machine/test_probe.py", "test_cgroup_v2_quota", "test_cgroup_v1", "plan/test_plan.py", "test_quota_container"),
    ("ggml-org/llama.cpp#28625", "a hybrid CPU without SMT gets four threads"): (
        "machine/test_probe.py", "test_hybrid_without_smt_gets_its_performance_cores", "test_hybrid_by_capacity_on_arm"),
    ("kvcache-ai/ktransformers#726", "more threads than cores"): (
        "plan/test_plan.py", "test_more_threads_than_cores_is_warned_about"),
    ("ggml-org/llama.cpp PR#934", "odd CPU information ends the program"): (
        "machine/test_probe.py", "test_junk_cpuinfo_never_stops_the_probe", "test_arm_layout",
        "machine/test_damage.py", "test_the_probe_survives_any_damage"),
    ("sgl-project/sglang PR#19666", "threads on three nodes, memory on one"): (
        "plan/test_plan.py", "test_cpus_of_three_nodes_have_their_memory_from_all_three"),
    ("ollama/ollama#15474", "cache of files counts as used"): (
        "machine/test_probe.py", "test_file_cache_of_the_group_counts_as_available"),
    ("kvcache-ai/ktransformers#2084", "experts on a GPU still take memory"): (
        "plan/test_gpus.py", "test_what_is_planned_fits", "test_what_this_version_is_told_to_hold_it_has_room_for"),
    ("kvcache-ai/ktransformers#2099", "a path left out shows as a full GPU"): (
        "plan/test_flags.py", "test_two_folders_of_one_model", "test_what_becomes_of_a_command"),
    ("jranaraki/vllm-fit#27", "parameters of experts and of an untied head are not counted"): (
        "models/test_counting.py", "test_weights_by_part_are_those_of_the_modules",
        "models/test_spec.py", "test_sums_are_those_of_the_tensors"),
    ("ggml-org/llama.cpp#27872", "a fit around the user's choice gives up and loads"): (
        "plan/test_gpus.py", "test_the_context_gives_way_to_experts_that_were_asked_for", "test_wishes_that_cannot_be_kept"),
    ("ollama/ollama#10920", "memory is checked after a download of 132 GB"): (
        "plan/test_plan.py", "test_a_download_that_can_never_fit_is_refused_first"),
    ("ollama/ollama#4955", "no check, then a check with no way round"): (
        "plan/test_plan.py", "test_40_gib_on_an_8_gib_host_is_refused_unless_forced"),
    ("vllm-project/vllm#29233", "the default cache holds no request"): (
        "plan/test_plan.py", "test_default_context_is_the_largest_that_fits", "test_cache_is_between_one_conversation_and_all"),
    ("mudler/vllm.cpp#357", "the limit of the cache is ignored"): (
        "plan/test_gpus.py", "test_tokens_of_all_conversations", "engine/test_room.py", "test_pages_are_the_planned_bytes",
        "engine/test_memory.py", "test_the_plan_is_what_is_taken"),
    ("kvcache-ai/ktransformers#878", "a typo gives a wall of usage text"): (
        "cli/test_cli_frame.py", "test_usage_errors_tell_what_and_where_to_look",
        "hostile/test_command_lines.py", "test_command_lines"),
    ("raullenchai/Rapid-MLX#1738", "an advised option does not exist"): (
        "cli/test_cli_catalogue.py", "test_options_in_messages_exist", "test_options_and_commands_in_docs_exist"),
    ("kvcache-ai/sglang PR#36", "methods renamed, and in one case only"): (
        "plan/test_plan.py", "test_methods_in_any_case_and_by_their_older_names"),
    ("utensils/mold#45", "a wrong hash is a warning"): (
        "models/test_store.py", "test_one_flipped_byte_is_an_error_and_nothing_is_kept",
        "models/test_repository.py", "test_wrong_content_is_never_taken"),
    ("kvcache-ai/ktransformers#1048", "options that nobody can explain"): (
        "cli/test_cli_catalogue.py", "test_every_option_and_argument_has_help_in_both_languages",
        "plan/test_flags.py", "test_every_published_flag_is_in_the_table"),
}  # fmt: skip


@pytest.mark.parametrize("report", REPORTED, ids=" ".join)
def test_what_was_reported_has_its_tests(report: tuple[str, str]) -> None:
    text, found = "", 0
    for word in REPORTED[report]:
        if word.endswith(".py"):
            text = (TESTS / word).read_text(encoding="utf-8")
            continue
        assert re.search(rf"^def {word}\(", text, re.MULTILINE), word
        found += 1
    assert found
