"""The failures that the loop must survive, and the tests that show it.

| fault | test |
|---|---|
| kill -9 of the trainer mid-cut | publisher/test_crash.py::test_a_trainer_killed_between_stages_beside_living_shards_is_followed_by_one_that_loses_nothing |
| kill -9 of a shard mid-export | publisher/test_crash.py::test_a_shard_killed_in_the_midst_of_an_export_is_followed_by_one_that_loses_nothing |
| kill -9 of a shard, at any other time | ps/test_chaos.py::test_whatever_is_killed_every_step_is_learned_once |
| kill -9 of the publisher mid-write | publisher/test_crash.py::test_a_publisher_killed_at_any_write_loses_nothing_and_promotes_nothing_twice |
| app.py changed on a live application, then the trainer killed | cli/test_up.py::test_events_become_scores_what_is_killed_comes_back_and_nothing_stays_behind |
| kill -9 of a serving node mid-stage | versions/test_replica_boot.py::test_nodes_killed_at_any_read_of_what_they_stage_leave_nothing_that_stands_in_the_way |
| Redis down for a minute, with a hold meanwhile | publisher/test_faults_registry.py::test_redis_down_for_a_minute_stops_no_serving_and_no_publishing_and_a_hold_made_meanwhile_holds |
| a stale Redis | publisher/test_faults_registry.py::test_a_stale_redis_restored_from_an_older_dump_undoes_no_hold |
| a lost Redis | publisher/test_faults_registry.py::test_a_redis_that_lost_everything_undoes_no_hold |
| a Redis that somebody else wrote to | versions/test_registry_wrong.py::test_a_move_that_somebody_wrote_into_the_registry_is_given_up_at_the_next_look_at_the_store |
| a registry emptied or put back before a rollback | versions/test_registry_wrong.py::test_a_registry_that_was_emptied_or_put_back_keeps_no_rollback_from_its_nodes |
| a store put back from an older copy | versions/test_registry_wrong.py::test_a_store_put_back_from_an_older_copy_is_followed_though_nodes_heard_of_later_moves |
| disk full while publishing | publisher/test_faults.py::test_a_disk_that_is_full_at_any_byte_of_a_version_loses_nothing |
| disk full, a real one | publisher/test_faults.py::test_a_real_disk_that_is_full_is_survived_once_there_is_room |
| duplicated delta, under another number | versions/test_defects.py::test_a_delta_copied_to_another_number_is_named |
| duplicated delta, after the same parent | versions/test_chain.py::test_two_versions_of_one_run_after_the_same_one_are_refused |
| reordered deltas | versions/test_defects.py::test_exchanged_deltas_are_named |
| truncated or corrupted delta | versions/test_defects.py::test_a_damaged_file_of_a_table_is_named |
| truncated or corrupted delta, on a node | versions/test_replica_defects.py::test_a_damaged_delta_is_refused_by_name_and_the_old_version_answers |
| damaged delta, healed from a base | versions/test_replica_defects.py::test_a_base_after_a_damaged_delta_heals_it |
| damaged delta, a node that starts | versions/test_replica_defects.py::test_a_node_that_starts_answers_with_the_version_before_a_damaged_one |
| damaged delta between two versions of a revert | versions/test_revert.py::test_a_revert_passes_over_damaged_versions_between_two_whole_ones |
| damaged newest move of the pointer, a trainer that starts | publisher/test_requests.py::test_training_starts_though_the_newest_move_of_the_pointer_is_damaged |
| damaged newest move of the pointer, a node that starts | versions/test_replica_boot.py::test_a_node_starts_from_the_copy_of_a_damaged_newest_move_and_from_no_other |
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
| other labels under a live model, at the trainer | trainer/test_labels.py::test_a_trainer_refuses_other_labels_by_name |
| other labels under a live model, on a node | serving/test_answering.py::test_a_node_refuses_other_labels_by_name |
| samples deleted while training is quiet | trainer/test_lost_samples.py::test_a_shop_that_has_nothing_to_learn_for_longer_than_samples_are_kept_goes_on |
| samples deleted before they were learned | trainer/test_lost_samples.py::test_samples_that_are_gone_end_training_with_the_way_to_go_on |
| a rewind to a damaged version | trainer/test_trainer.py::test_a_request_to_go_back_to_a_damaged_version_stops_nothing_and_the_next_one_is_obeyed |
| a rewind to where samples are gone | trainer/test_lost_samples.py::test_a_request_to_go_back_to_where_samples_are_gone_is_refused_and_training_goes_on |
| poisoned data: judge | publisher/test_judge.py::test_flipped_labels_are_refused_for_their_scores |
| poisoned data: rollback | versions/test_pointer.py::test_a_rollback_holds_and_taints_what_it_left |
| poisoned data, again after a rewind | versions/test_pointer.py::test_a_rollback_taints_all_that_was_served_after_it_though_training_was_put_back_in_between |
| a process stopped while it judges | publisher/test_judge.py::test_time_in_which_the_process_was_stopped_is_no_verdict |
| poisoned data: rewind request | publisher/test_requests.py::test_training_goes_back_to_the_last_clean_version_and_on_from_there |
| poisoned data: skip | publisher/test_requests.py::test_requests_are_obeyed_in_their_order_and_skips_stay |
| two runs racing on one store | publisher/test_publishing.py::test_of_two_trainers_the_older_one_ends_and_promotes_nothing_more |
| two runs racing, a late version | publisher/test_publishing.py::test_a_newer_run_takes_over_from_versions_of_an_older_one_that_came_too_late |
| two runs racing, a request | publisher/test_requests.py::test_a_request_is_obeyed_though_a_run_that_is_over_committed_the_next_number |
| two runs racing, one number twice | publisher/test_requests.py::test_shards_are_restored_to_the_version_they_are_told_where_two_runs_gave_one_number |
| kill -9 of ingest, of its worker, of its runner | ingest/test_restarts.py::test_whatever_is_killed_the_next_run_goes_on_and_all_is_learned_once |
| kill -9 of the trainer, at any time | trainer/test_restarts.py::test_a_trainer_killed_at_any_time_is_followed_by_one_that_learns_the_same_bytes |
| kill -9 of a shard under a trainer | trainer/test_restarts.py::test_a_trainer_goes_on_by_itself_when_shards_are_killed |
| SIGTERM of the trainer | trainer/test_restarts.py::test_a_sigterm_ends_a_trainer_with_a_version_that_says_all_it_learned |
| two trainers on the same shards | trainer/test_restarts.py::test_of_two_trainers_on_the_same_shards_the_older_one_ends |
| kill -9 of a worker, and one that stops and goes on | trainer/workers/test_job.py::test_a_worker_that_stops_and_goes_on_and_one_that_is_killed_change_no_byte |
| kill -9 of a member of a group that sums by TensorFlow | trainer/workers/test_group.py::test_when_a_member_is_killed_the_trainer_asks_to_be_started_again_and_a_spare_worker_takes_the_place |
| kill -9 of the trainer that workers learn for | trainer/workers/test_job.py::test_a_leader_that_is_killed_finds_its_worker_again |
| a worker cut off from the trainer | trainer/workers/test_hosts.py::test_a_leader_goes_on_without_a_worker_that_it_does_not_reach_and_has_it_back_when_it_does |
| a worker cut off from the shards | trainer/workers/test_hosts.py::test_a_worker_that_does_not_reach_the_shards_leaves_and_the_leader_goes_on |
| a trainer that is away for longer than its workers wait | trainer/workers/test_hosts.py::test_a_worker_ends_when_its_leader_is_away_for_longer_than_it_waits |
| a stranger's graph | models/test_admission.py::test_a_graph_that_copies_a_file_when_it_is_loaded_is_refused_and_no_file_is_written |
| a stranger's version, on a node | versions/test_signatures.py::test_a_node_stays_at_the_signed_version_and_says_why |
| a stranger's version, under a trainer | trainer/test_signed.py::test_a_trainer_signs_what_it_writes_and_refuses_to_go_on_from_what_nobody_signed |
| a broker killed, of three | topics/test_kafka_unclean.py::test_a_killed_broker_loses_nothing_and_is_in_sync_again_once_it_is_back |
| an unclean leader election | topics/test_kafka_unclean.py::test_a_log_that_lost_what_was_read_and_has_grown_again_is_noticed_by_every_reader |
| a pointer record that nests without end | cli/test_whole_versions.py::test_a_damaged_move_is_mended_from_the_registry |
| an order that cannot be decoded | ps/test_server.py::test_an_order_that_cannot_be_decoded_is_refused_and_the_next_one_is_answered |
| a Kafka batch that lies about its count | topics/test_kafka_codec.py::test_a_batch_that_lies_about_its_count_is_refused_before_memory_is_taken_for_it |
| a small batch that expands to gigabytes | topics/test_kafka_batches.py::test_small_batches_of_huge_records_take_bounded_memory_over_all_partitions |
| a batch beyond the limit of one | topics/test_kafka_batches.py::test_what_expands_beyond_the_limit_of_a_batch_is_named_and_the_next_batch_read |
| a broker that answers with less than was asked for | topics/test_kafka_down.py::test_an_answer_without_what_was_asked_for_is_no_answer |
| a broker that answers empty at once | topics/test_kafka_scripted.py::test_a_broker_that_answers_empty_at_once_is_asked_again_after_a_pause |
| any bytes at every decoder of Python | test_any_bytes.py::test_any_bytes_give_a_value_or_the_decoders_own_error |
| a check of the judge that hangs | publisher/test_judge.py::test_a_judge_that_takes_too_long_rejects_that_version_alone_and_the_next_wait_for_it |
| thousands of silent connections, at a node | serving/test_hello.py::test_a_node_answers_though_two_thousand_connections_say_nothing |
| thousands of silent connections, at the console | console/test_api.py::test_silent_connections_keep_nobody_out |
| gradients that are no numbers | ../native/ps/tests/all/contract.rs::what_is_no_number_is_refused_and_nothing_learns_from_it |
| thousands of silent connections and half requests, at a node with a token | ../native/serve/tests/doors.rs::silent_connections_crowd_out_no_caller_who_says_the_token |
| thousands of silent connections, at a shard | ../native/ps/tests/all/peers.rs::silent_connections_crowd_out_no_client |
| a stranger's call to the runner of ingest | ingest/test_samples_pipeline.py::test_a_running_ingest_and_its_runner_listen_for_this_machine_alone |
| the wall clock jumps ahead | ingest/test_steady_clock.py::test_a_watermark_does_not_follow_a_wall_that_is_ahead_for_a_moment |
| progress ahead of the wall clock | ingest/test_steady_clock.py::test_a_run_does_not_begin_on_progress_that_is_ahead_of_the_wall |
| an event far in the future | ingest/test_watermark.py::test_a_record_from_a_future_does_not_move_time_and_those_after_it_are_judged_without_it |
| an event of 1970 | ingest/test_pair.py::test_a_jump_of_time_without_records_is_told_to_every_lot_once |
| an absurd weight | events/test_decoder.py::test_an_event_at_fault_is_named_and_the_others_are_unharmed |
| shorter windows, and a run that dies soon after | ingest/test_progress.py::test_after_windows_were_shortened_rows_open_in_the_longer_ones_are_read_again_until_written |
| many dead letters | ingest/test_written.py::test_a_command_that_ends_says_by_its_status_that_too_much_was_lost |
| other labels under a live model, in ingest | ingest/test_alike.py::test_samples_of_other_labels_are_not_added_to |
| SIGTERM of a node | serving/test_serve_verb.py::test_a_node_answers_with_what_was_trained_among_silent_connections_follows_a_rollback_and_drains |
| kill -9 of one of two applications that share sockets | supervision/test_handover.py::test_sockets_go_on_when_their_first_owner_is_killed |
| a stopped ingest continues elsewhere | ingest/test_flink.py::test_a_run_on_flink_that_is_told_to_stop_drains_and_another_runner_goes_on_from_t0 |
| all of it, by chance | versions/test_replica_property.py::test_nodes_answer_with_the_trainers_rows_at_every_version_they_are_moved_to |
| any of them on the whole loop, by chance | tools/test_chaos.py::test_a_short_run_leaves_nothing_violated |
"""  # noqa: E501

from __future__ import annotations

import ast
from pathlib import Path

import pytest

_ROWS = [line.strip("| ").split(" | ") for line in (__doc__ or "").splitlines() if "::" in line]


def test_the_table_is_read() -> None:
    assert len(_ROWS) > 30
    assert all(len(row) == 2 for row in _ROWS)


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row[0])
def test_a_fault_has_the_test_that_the_table_names(row: list[str]) -> None:
    file, _, name = row[1].partition("::")
    text = (Path(__file__).parent / file).read_text()
    if file.endswith(".rs"):
        assert f"fn {name}(" in text
    else:
        assert name in {function.name for function in ast.parse(text).body if isinstance(function, ast.FunctionDef)}
