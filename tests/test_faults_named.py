"""Every failure that ingest, training and versions must survive, and the tests that show it.

| fault | test |
|---|---|
| kill -9 of the trainer mid-cut | publisher/test_crash.py::test_a_trainer_killed_between_stages_beside_living_shards_is_followed_by_one_that_loses_nothing |
| kill -9 of a shard mid-export | publisher/test_crash.py::test_a_shard_killed_in_the_midst_of_an_export_is_followed_by_one_that_loses_nothing |
| kill -9 of a shard, at any other time | ps/test_chaos.py::test_whatever_is_killed_every_step_is_learned_once |
| kill -9 of the publisher mid-write | publisher/test_crash.py::test_a_publisher_killed_at_any_write_loses_nothing_and_promotes_nothing_twice |
| kill -9 of a serving node mid-stage | versions/test_replica_boot.py::test_nodes_killed_at_any_read_of_what_they_stage_leave_nothing_that_stands_in_the_way |
| Redis down for a minute, with a hold meanwhile | publisher/test_faults_registry.py::test_redis_down_for_a_minute_stops_no_serving_and_no_publishing_and_a_hold_made_meanwhile_holds |
| a stale Redis | publisher/test_faults_registry.py::test_a_stale_redis_restored_from_an_older_dump_undoes_no_hold |
| a lost Redis | publisher/test_faults_registry.py::test_a_redis_that_lost_everything_undoes_no_hold |
| disk full while publishing | publisher/test_faults.py::test_a_disk_that_is_full_at_any_byte_of_a_version_loses_nothing |
| disk full, a real one | publisher/test_faults.py::test_a_real_disk_that_is_full_is_survived_once_there_is_room |
| duplicated delta, under another number | versions/test_defects.py::test_a_delta_copied_to_another_number_is_named |
| duplicated delta, after the same parent | versions/test_chain.py::test_two_versions_of_one_run_after_the_same_one_are_refused |
| reordered deltas | versions/test_defects.py::test_exchanged_deltas_are_named |
| truncated or corrupted delta | versions/test_defects.py::test_a_damaged_file_of_a_table_is_named |
| truncated or corrupted delta, on a node | versions/test_replica_defects.py::test_a_damaged_delta_is_refused_by_name_and_the_old_version_answers |
| damaged delta, healed from a base | versions/test_replica_defects.py::test_a_base_after_a_damaged_delta_heals_it |
| foreign-run delta | versions/test_chain.py::test_a_parent_of_another_run_is_foreign |
| delete then recreate of a key within one version | publisher/test_publishing.py::test_a_key_that_leaves_and_comes_back_within_a_version_is_there_and_one_that_leaves_is_not |
| delete then recreate, on a node | table/test_replicas.py::test_a_key_may_leave_and_come_back_within_one_version |
| expired key leaves serving | table/test_replicas.py::test_an_expired_key_leaves_the_replica |
| expired key leaves with the next version | publisher/test_publishing.py::test_an_expired_key_leaves_with_the_next_version |
| torn embedding and optimizer snapshot under writers | publisher/test_publishing.py::test_embeddings_and_optimizer_state_of_a_version_belong_together_while_others_push |
| late-joining replica | versions/test_replica.py::test_a_late_joiner_equals_an_old_node_bit_for_bit |
| rollback during staging | versions/test_replica_threads.py::test_a_rollback_during_staging_waits_for_no_file |
| new version during a hold, at the publisher | publisher/test_judge.py::test_a_version_that_comes_during_a_hold_is_judged_and_served_at_the_release |
| new version during a hold, on a node | versions/test_replica.py::test_versions_that_come_during_a_hold_are_staged_and_not_activated |
| empty interval | publisher/test_publishing.py::test_an_empty_interval_publishes_nothing |
| two tables of one name | publisher/test_publishing.py::test_two_tables_of_one_name_are_refused |
| poisoned data: judge | publisher/test_judge.py::test_flipped_labels_are_refused_for_their_scores |
| poisoned data: rollback | versions/test_pointer.py::test_a_rollback_holds_and_taints_what_it_left |
| poisoned data: rewind request | publisher/test_requests.py::test_training_goes_back_to_the_last_clean_version_and_on_from_there |
| poisoned data: skip | publisher/test_requests.py::test_requests_are_obeyed_in_their_order_and_skips_stay |
| two runs racing on one store | publisher/test_publishing.py::test_of_two_trainers_the_older_one_ends_and_promotes_nothing_more |
| two runs racing, a late version | publisher/test_publishing.py::test_a_newer_run_takes_over_from_versions_of_an_older_one_that_came_too_late |
| kill -9 of ingest, of its worker, of its runner | ingest/test_restarts.py::test_whatever_is_killed_the_next_run_goes_on_and_all_is_learned_once |
| kill -9 of the trainer, at any time | trainer/test_restarts.py::test_a_trainer_killed_at_any_time_is_followed_by_one_that_learns_the_same_bytes |
| kill -9 of a shard under a trainer | trainer/test_restarts.py::test_a_trainer_goes_on_by_itself_when_shards_are_killed |
| SIGTERM of the trainer | trainer/test_restarts.py::test_a_sigterm_ends_a_trainer_with_a_version_that_says_all_it_learned |
| two trainers on the same shards | trainer/test_restarts.py::test_of_two_trainers_on_the_same_shards_the_older_one_ends |
| all of it, by chance | versions/test_replica_property.py::test_nodes_answer_with_the_trainers_rows_at_every_version_they_are_moved_to |
| any of them on the whole loop, by chance | tools/test_chaos.py::test_a_short_run_leaves_nothing_violated |
"""  # noqa: E501

from __future__ import annotations

import ast
from pathlib import Path

import pytest

_ROWS = [line.strip("| ").split(" | ") for line in (__doc__ or "").splitlines() if "::test_" in line]


def test_the_table_is_read() -> None:
    assert len(_ROWS) > 30
    assert all(len(row) == 2 for row in _ROWS)


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row[0])
def test_a_fault_has_the_test_that_the_table_names(row: list[str]) -> None:
    file, _, name = row[1].partition("::")
    tree = ast.parse((Path(__file__).parent / file).read_text())
    assert name in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
