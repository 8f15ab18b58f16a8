//! Promises of tracer, with their limits, and with the tests that keep them.
//!
//! This page has no code. Each row ends with the tests that fail when the promise is broken, as `file::test` in `tests/integration`; that they exist is a
//! test of its own. What is not on this page is not promised.
//!
//! # Three kinds of hook
//!
//! Most promises hold whatever the hook does, because modules and tracer itself never call the hook's table but one around it, which
//! writes every span into a *spool*: shared memory that survives its process. How soon a span is out of the hook's own hands differs:
//!
//! | the hook | when a result is seen, the spans of its task are |
//! |---|---|
//! | a `Tracing` with a durable processor (`local_tmp_tracing`, `otlp_file`) | in its file |
//! | a `Tracing` with other processors, an exporter's list of processors | in the spool until the exporter has said that they are delivered |
//! | a finished `SdkTracerProvider` | in the spool, and with its exporter at its own pace |
//! | a table in C without `commit` | the same; with `commit`, wherever it has put them |
//!
//! What a dead process left in its spool goes to the process's own span file for a hook that keeps one in a form that tracer knows (`local_tmp_tracing`,
//! `otlp_file`, a `FileProcessor` with their formats), to the exporter of another process for a `Tracing` with exporters (`otlp`, `console`), and for all others to
//! `<pid>.json` in the span folder, whatever else the hook has done with it: a span that its exporter had got is then in both places, with one id.
//!
//! # Promises about spans
//!
//! **Seen means recorded.** When anyone can see that a task has ended, each of its spans that has ended is in the span file or in the spool, out of
//! reach of a SIGKILL of its process.
//!
//! - A loss of power is not a SIGKILL: nothing is synced to the disk.
//! - A spool has 4,096 slots. With more spans open than that, the further ones are recorded by the hook only; an ended span that no exporter has confirmed gives
//!   its slot up when all are taken. `tracer status` counts both.
//! - In a spool, attributes, events and links that do not fit a span's slot are cut; a span that is completed from there says so with `tracer.cut`.
//! - Kept by `seen_means_recorded::a_worker_that_dies_when_the_attempts_span_has_ended_leaves_it_as_it_was`,
//!   `seen_means_recorded::results_of_one_lease_are_recorded_when_its_worker_dies_after_they_were_sent` and those beside them, which kill a worker at
//!   each step, and `seen_means_recorded::workers_that_are_killed_at_random_leave_one_outcome_and_one_span_for_each_task`; for hooks without a file by
//!   `hooks::spans_that_a_hook_had_not_delivered_outlive_a_killed_worker`.
//!
//! **A record is kept.** When a module's call that logs has returned, its log record is out of reach of a SIGKILL of its process. When anyone can see that a task has ended,
//! its records are in `<pid>.logs.jsonl`, each once, with the ids of the span that they were made in.
//!
//! - A loss of power is not a SIGKILL. Where the disk takes no more, records wait in 512 KiB for each process; those beyond that are lost, and counted in the log of the process.
//! - A record is 64 KiB at most, its body 32 KiB. What is cut ends in `…`; attributes that are left out are counted in the record.
//! - Exporters of log records get what their process has handed to them: what it had not exported when it was killed is in the file alone.
//! - A task that removes or overwrites the files of its session loses what is in them.
//! - Kept by `log_records::no_record_of_an_ended_span_is_lost_and_none_is_twice_when_workers_are_killed`,
//!   `log_records::a_process_that_dies_between_the_line_and_the_note_of_it_leaves_no_record_twice`,
//!   `log_records::what_a_dead_head_and_its_workers_have_left_is_there_for_whoever_reads`,
//!   `log_records::a_record_of_a_task_that_runs_is_in_the_file_soon_and_stays_when_it_is_killed`, `log_records::a_module_in_c_makes_log_records`,
//!   `log_records::log_records_go_to_a_collector_too` and `fuzzing::what_is_left_of_log_records_is_one_line_or_none`.
//!
//! **Several hooks.** The first makes the spans; each further one gets every sampled span that has ended, under its own ids, also of processes that died.
//!
//! - An additional hook gets spans from the spool: in full up to the size of a slot, and at its own pace. What it does not take waits in the session's folder, as for
//!   exporters, and is counted. Spans that find no room in the spool reach the first hook only.
//! - The resource is the first hook's. An additional hook's plain `SpanProcessor` cannot be told of it.
//! - Kept by `several_hooks::two_files_hold_the_same_spans`, `several_hooks::spans_of_a_killed_worker_are_whole_in_both_files`,
//!   `several_hooks::a_killed_worker_loses_nothing_to_the_receiver_and_the_file` and
//!   `several_hooks::a_further_hook_that_cannot_deliver_disturbs_nobody_and_is_counted`.
//!
//! **Each line is its task's.** What an attempt writes to standard output and standard error is kept with the attempt, the output, the time and the trace, and
//! shown by `tracer logs` and `tracer trace show --logs`, also when worker and head are gone. No task can claim another's lines.
//!
//! - A function that wrote nothing in its first 16 attempts in a worker has its next lines shown as approximate, once.
//! - What a task of a queue writes is kept by the node that runs it. Whoever follows it elsewhere gets a copy for which nobody waits, and is told how many lines are
//!   missing from it: `over_a_queue::following::what_a_submitter_that_takes_its_time_misses_is_counted_and_is_in_the_log_of_the_node`.
//! - Calls of an actor that run beside each other share their output, and so do a replica's requests.
//! - A line that a thread, or a process that was left behind, writes after its task has ended counts for the next task in the worker.
//! - The logs of a session are bounded (`--max-log-size`); the oldest output goes first, and is counted. They are not synced to the disk.
//! - Kept by `task_logs::every_line_of_ten_thousand_tasks_is_its_own_while_workers_are_killed`,
//!   `task_logs::the_lines_of_a_task_are_shown_without_a_head_too`, `task_logs::what_a_silent_function_writes_at_last_is_approximate_once`,
//!   `task_logs::bytes_that_look_like_a_mark_are_a_tasks_own`, `task_logs::what_the_c_library_holds_back_is_the_tasks_that_printed_it`,
//!   `task_logs::a_task_that_runs_inside_of_another_keeps_its_lines` and
//!   `task_logs::calls_that_run_beside_each_other_share_the_output_of_their_actor`.
//! - However much was written, whoever reads it takes memory for what is shown alone, and has the first line at once. What does not fit into a bound comes in
//!   pieces, which say so, with all of its bytes: `long_logs::readers_of_a_long_log_take_memory_for_what_they_show`,
//!   `long_logs::the_first_line_is_shown_before_the_log_has_been_read` and `long_logs::what_is_written_in_pieces_is_whole_everywhere`.
//!
//! **Death leaves a span.** When a worker or a submission is killed, crashes, or is ended, its spans are completed under their own ids: ended ones as they
//! were, open ones with status ERROR, `error.type` and an end. None twice, none without its parent.
//!
//! - Spans in a trace that is not sampled leave nothing.
//! - `error.type` says how: `signal:9`, `exit:3`, `timeout`, `cancelled`, and `oom` for a worker that the kernel killed for memory, where it counts such kills.
//! - When the head was killed too, whatever comes first in the same place does it: the next `tracer start`, or a `tracer trace` that reads. What that one
//!   completes has an end at that time, for nobody saw the death; the span of an attempt that had not begun it is left to the next head, which retries the task.
//! - Kept by `submit::spans_that_were_open_in_a_killed_worker_are_closed_with_what_happened`,
//!   `seen_means_recorded::a_worker_that_dies_before_it_notes_that_its_spans_are_written_leaves_none_twice`,
//!   `seen_means_recorded::a_submission_that_dies_while_it_waits_leaves_its_job_and_the_task_goes_on`,
//!   `deaths::however_a_worker_dies_its_spans_are_completed_for_a_hook_in_rust`,
//!   `deaths::however_a_worker_dies_its_spans_are_completed_for_a_hook_in_c`,
//!   `deaths::a_worker_that_the_kernel_kills_for_memory_is_told_from_one_that_somebody_kills`,
//!   `deaths::the_death_of_a_worker_alone_brings_its_spans_to_the_file`,
//!   `backends::the_spans_of_a_killed_worker_are_in_the_files_of_its_hook_and_none_twice`,
//!   `backends::spans_of_a_killed_worker_are_on_the_console_of_the_next_one_once`,
//!   `deaths::more_open_spans_than_the_spool_holds_are_counted_and_nothing_is_damaged`,
//!   `seen_means_recorded::the_next_head_completes_the_spans_that_a_killed_head_left`,
//!   `seen_means_recorded::head_worker_and_submission_that_are_killed_together_leave_their_spans_to_the_next_head`,
//!   `dead_heads::a_reader_shows_what_a_dead_head_and_its_processes_left`, `dead_heads::the_next_head_goes_on_after_a_reader_as_without_one` and
//!   `dead_heads::readers_and_a_head_that_come_together_write_no_span_twice_and_lose_none`.
//!
//! **Delivered.** Spans for a network leave at the exporter's pace. What it had not delivered when its process died is handed to the exporter of
//! another process of the session, or of the next session in the same place, with the resource of the process that it came from.
//!
//! - A receiver gets every span at least once; one that was under way may come twice, with the same id.
//! - What waits belongs to the hooks that owe it, by name: a head that has others keeps it for one that has them. `tracer hooks undelivered` shows it,
//!   and discards it. Kept by `delivery::undelivered_spans_wait_for_the_hook_that_owes_them_and_are_shown_and_discarded`.
//! - What no exporter takes waits in at most 64 MiB of files of the session; beyond that the oldest is given up. `tracer status` counts what was handed
//!   over, what waits and what was given up.
//! - What is handed over is what a slot of the spool holds: about 2,000 bytes a span. What did not fit is counted in `tracer status`, and on the span as `tracer.cut`.
//! - What a receiver rejects of a batch that it takes is counted as given up, also of what was handed over.
//! - Kept by `delivery::what_a_killed_worker_had_not_delivered_arrives_through_the_next_one`,
//!   `delivery::a_head_that_is_killed_loses_no_span_that_was_to_be_delivered`,
//!   `delivery::more_spans_than_an_exporter_takes_wait_in_files_and_all_arrive`,
//!   `delivery::spans_that_a_reader_completes_for_a_dead_head_are_delivered_once`,
//!   `collectors::spans_that_a_receiver_rejects_of_a_dead_process_are_counted_too`,
//!   `collectors::what_a_dead_process_leaves_is_cut_to_its_place_and_that_is_counted_and_said` and
//!   `seen_means_recorded::ten_thousand_tasks_among_killed_workers_leave_every_span_at_an_otlp_receiver`.
//!
//! **Running is visible.** `tracer trace open` and `tracer trace show --follow` show what is open now in every process of the session, spans of the
//! user's own included.
//!
//! - Up to the 4,096 spans that a spool holds; that there are more is said.
//! - What it costs is in [the table below](#what-it-costs).
//! - Kept by `trace_reading::what_is_open_in_tasks_and_submissions_is_seen_while_it_runs`,
//!   `trace_reading::what_was_open_in_a_dead_process_is_not_running` and `trace_reading::a_trace_is_followed_span_by_span_until_it_is_complete`.
//!
//! **Sampling is whole.** A trace is complete or absent, in every process, whatever the ratio.
//!
//! - For samplers that are parent-based, as the default one is. A hook's own sampler is never replaced, and one that is not parent-based may tear traces
//!   apart. `runtime_context()` in a sampler and in `on_start` of a processor is known for hooks in Rust; in C it is `SpanStart.runtime`.
//! - Kept by `sampling::of_a_thousand_tasks_half_leave_a_whole_trace_and_half_leave_none`,
//!   `sampling::the_decision_of_a_traceparent_is_stronger_than_the_ratio`, `sampling::spans_that_tracer_writes_itself_are_sampled_alike`,
//!   `sampling::a_hooks_own_sampler_is_not_replaced_by_the_ratio` and `hooks::ids_sampler_and_resource_of_a_hook_are_never_replaced`.
//!
//! **Context arrives, and nothing else does.** `traceparent` with its random flag, `tracestate` and `baggage` reach every task and command, also through a
//! head without a hook, and what one task attaches, leaks or leaves behind is seen by no other.
//!
//! - The parsers are strict: what W3C calls invalid is refused, said, and never fails the caller.
//! - A thread or a future that a task starts begins without a context, as everywhere in OpenTelemetry; the task hands its own on.
//! - A sampler or processor in a hook sees the parent of a task's span as a bare span context, and of the caller's context only the baggage.
//! - Kept by `hygiene::r1_the_context_after_a_task_is_the_one_before_it_however_the_task_ends`,
//!   `hygiene::r1_the_context_after_a_cancelled_task_is_the_one_before_it`,
//!   `hygiene::r2_a_span_that_is_not_sampled_takes_nothing_off_the_one_around_it`, `hygiene::r3_threads_and_futures_see_their_own_spans_only`,
//!   `hygiene::r3_work_that_outlives_its_task_is_not_in_the_next_ones_trace`,
//!   `hygiene::r7_tracestate_baggage_and_flags_survive_every_hop_and_come_back_out`,
//!   `hygiene::r8_the_decision_and_the_ids_of_one_task_are_never_seen_by_the_next`,
//!   `hygiene::r9_a_malformed_traceparent_is_a_new_trace_and_fails_nothing` and `fuzzing::any_trace_context_is_carried_on_valid`.
//!
//! **What is written can be read.** An integer is an integer in every format; a process has one span file open, which is complete when it has ended; a torn
//! line costs itself alone.
//!
//! - Kept by `hygiene::r5_integers_are_integers_in_every_span_and_every_format`,
//!   `hygiene::r6_a_process_has_one_span_file_open_which_is_complete_when_it_has_ended`,
//!   `trace_reading::what_others_have_written_is_read_in_each_of_its_forms`, `trace_reading::otlp_lines_are_what_the_official_parser_understands` and
//!   `fuzzing::any_span_file_is_read_and_what_is_exported_is_read_again`.
//!
//! **Untraced code is unharmed.** Without a hook, and with one that fails in a process, tasks run.
//!
//! - A hook that fails leaves the process without what the hook would have done; its spans are written to the span file by tracer, once that is said. With
//!   `--tracing-required` such a worker runs nothing.
//! - Kept by `hooks::worker_whose_hook_fails_runs_tasks_and_tracer_writes_their_spans`,
//!   `hooks::hook_that_hangs_or_panics_in_a_worker_leaves_it_running_tasks`, `hooks::hook_that_kills_every_worker_takes_the_blame` and
//!   `spans::an_untraced_head_writes_nothing_and_passes_the_context_on`.
//!
//! **Arguments are private.** They are on no span unless `--record-arguments` asks for it; results never are. The message of an error is, whatever it says.
//!
//! - Kept by `config::arguments_are_on_the_spans_only_if_asked_for`.
//!
//! # Promises about services
//!
//! **Seen means recorded, for requests.** Whoever has the last byte of an answer has a trace whose spans have ended, out of reach of a SIGKILL of proxy,
//! replica or head: the proxy's, the one of the way to the replica, and the replica's.
//!
//! - A request that is malformed has no route and no spans.
//! - Kept by `serving_deaths::a_replica_that_is_killed_at_any_step_of_a_request_leaves_its_spans_and_loses_no_other`,
//!   `serving_deaths::a_proxy_that_is_killed_at_any_step_of_a_request_leaves_its_spans_and_refuses_nobody`,
//!   `serving_deaths::ten_thousand_requests_of_32_clients_are_whole_while_replicas_and_proxy_are_killed`,
//!   `serving_deaths::whole_answers_have_whole_traces_while_replicas_are_killed`,
//!   `serving_deaths::whole_answers_have_whole_traces_while_the_proxy_is_killed` and
//!   `proxy::a_request_is_answered_by_the_replica_and_its_spans_are_one_trace`.
//!
//! **No request is begun twice.** What a replica has not claimed when it dies goes to another one, whatever its method; what it has claimed ends with 502, unless
//! its deployment says `retry = "idempotent"`.
//!
//! - Kept by `proxy::what_a_dead_replica_had_not_begun_goes_to_another_and_what_it_had_begun_is_lost`,
//!   `proxy::clients::what_a_dead_replica_had_begun_begins_again_if_its_deployment_says_so` and `replica::what_was_taken_back_is_not_begun`.
//!
//! **A batch is whole for each request in it.** Each caller gets the output of its own input, or an error; one that goes disturbs no other. The span of the batch and those of all
//! sampled requests in it are linked in both directions, and closed when the process is killed.
//!
//! - Of a batch in a killed process the links of its requests that are in the same spool are kept, 4,096 at most.
//! - Kept by `batching::requests_of_a_full_batch_have_one_span_and_each_its_own_answer`,
//!   `batching::a_client_that_goes_leaves_the_batch_and_the_others_are_answered`,
//!   `batching::a_batch_that_fails_fails_each_request_and_the_replica_serves_on`,
//!   `batching::every_span_of_a_batch_that_is_killed_is_closed`, `batching::a_batch_of_many_that_is_killed_is_linked_to_all_of_its_requests` and
//!   `batching::in_a_storm_on_several_threads_each_has_its_own_answer_and_links_that_agree`.
//!
//! **Change without loss.** A new version is ready before the old one takes no more requests; one that fails is not served, and the old one is, all of it.
//!
//! - A proxy that is replaced cuts connections that clients keep open beyond the drain timeout.
//! - Kept by `serving_deaths::clients_see_nothing_of_changes_of_counts_and_settings`,
//!   `serving_tls::proxies_that_are_replaced_lose_no_request_of_connections_with_tls`,
//!   `serving_tls::certificates_that_change_are_those_of_the_next_handshake_and_broken_ones_change_nothing`,
//!   `services::settings_that_live_replicas_refuse_or_are_not_well_with_are_not_served_and_lose_no_request`,
//!   `services::a_new_version_is_rolled_out_and_rolled_back_without_a_failed_request` and
//!   `services::a_version_whose_replica_fails_is_not_served_and_the_one_before_it_is`.
//!
//! **Scaled within bounds.** A deployment with `autoscaling` has as many replicas as its requests want, never more than `max` nor, after a start, fewer than `min`; none is started
//! for a peak that is shorter than `upscale_delay`, and none ends for a pause that is shorter than `downscale_delay`. One that goes ends what it has.
//!
//! - Without a replica nothing is waited for: the first request starts one, waits for it, and has a span of that.
//! - A replica has `drain_timeout` to end what it has, as in a rollout.
//! - Kept by `scaling::replicas_follow_the_requests_and_those_that_go_end_what_they_have`,
//!   `scaling::a_first_request_waits_for_its_replica_and_its_span_has_the_cold_start` and `scaling::when_there_is_no_room_it_is_said_what_is_short`.
//!
//! **A service outlives its head.** When the head is killed, replicas and proxies serve on and no request fails; the guard starts another head within a second, which
//! goes on with them, finishes the spans of what has died meanwhile, and a rollout that was going on.
//!
//! - If no head has taken over within 10 s (11 s while the guard is stopped), or the guard is killed too, all of it ends. Services that are bound to a command or a program end with their head.
//! - Kept by `serving_without_head::no_request_fails_and_nothing_is_left_while_the_head_is_killed_again_and_again`,
//!   `serving_without_head::what_dies_while_there_is_no_head_is_finished_and_replaced_by_the_next`,
//!   `serving_without_head::a_rollout_goes_on_at_whichever_step_the_head_dies`,
//!   `serving_without_head::all_of_it_ends_when_no_head_comes_in_time`,
//!   `serving_without_head::all_of_it_ends_in_time_also_while_the_guard_is_stopped`,
//!   `composition::calls_between_replicas_go_on_with_and_without_a_head` and
//!   `serving_tasks::a_handler_submits_tasks_to_the_head_that_comes_after_one_that_was_killed`.
//!
//! **A port outlives its proxy.** While a killed proxy is replaced, connections wait and none is refused; what was served is served again by the next head of the place,
//! and `tracer serve shutdown` is for good.
//!
//! - Kept by `serving_deaths::whole_answers_have_whole_traces_while_the_proxy_is_killed`, `services::replicas_and_proxies_that_are_killed_are_replaced` and
//!   `services::a_head_that_is_started_again_serves_what_was_served_and_a_shutdown_is_for_good`.
//!
//! # Promises about tasks
//!
//! **An accepted task survives `kill -9` of the head.** Its submission is in the journal before it is acknowledged; the next head in the same place runs what
//! waited, starts again what was running, and remembers what had ended.
//!
//! - A loss of power it survives with `--journal-sync`: then no task is acknowledged, and no outcome told, before it is on the disk. Without that nothing is
//!   synced.
//! - The journal is compacted when it has grown to several times what is worth keeping, at least 64 MiB, or 256 MiB while tasks are open, by a thread beside the head. Whoever dies at any
//!   step of that leaves one whole journal.
//! - A full disk refuses new tasks, and says so. What was accepted goes on.
//! - Kept by `journal::tasks_that_wait_survive_a_killed_head_and_run_under_the_next_with_their_ids_and_traces`,
//!   `attempts::a_task_that_ran_when_its_head_died_is_started_again_under_the_next_and_stays_charged`,
//!   `journal::with_journal_sync_nothing_is_acknowledged_before_it_is_on_the_disk`,
//!   `journal::a_head_that_dies_while_its_journal_is_compacted_loses_nothing`,
//!   `journal::of_a_journal_that_is_cut_or_damaged_all_is_recovered_that_is_whole`,
//!   `full_disk::a_full_disk_of_the_journal_refuses_new_tasks_by_name_and_loses_none`,
//!   `soak::whatever_was_accepted_has_one_outcome_however_heads_and_workers_are_killed`,
//!   `journal::whatever_was_accepted_ends_once_however_often_heads_are_killed` and
//!   `journal::a_torn_journal_is_mended_and_said_and_a_newer_one_is_refused_by_name`.
//!
//! **An orderly end loses nothing.** `tracer stop`, SIGTERM and SIGINT keep what has not ended for the next head in the place, as `kill -9` does, in its order and with its budgets.
//!
//! - What runs has the grace period. What that cuts short is kept and charged to nothing, its span is closed as `stopped`; with `--at-most-once` or `--crash-limit 0` it ends as lost.
//! - Tasks of other nodes go back to their queue, also those whose claim was on its way when the stop began.
//! - Actors that end with their job end with the head. A detached one is made again as often as `--max-restarts` says, and a stop counts. Not kept: what is discarded by
//!   `tracer stop --discard` or with an embedded head.
//! - Kept by `stopping::what_has_not_begun_is_the_next_heads_in_its_order_with_its_trace`,
//!   `stopping::what_the_grace_period_cuts_short_is_run_again_uncharged_or_is_lost_if_it_may_not_be`,
//!   `stopping::a_task_that_fails_while_the_head_stops_keeps_its_retries`, `stopping::large_arguments_and_results_outlive_a_stop`,
//!   `stopping::a_detached_actor_that_may_be_made_again_and_its_calls_outlive_a_stop` and
//!   `shared_deaths::a_rolling_restart_of_three_nodes_fails_and_charges_nothing`.
//!
//! **A new version takes over without loss.** `tracer restart` tries executable, hook, engine and settings before it touches the head; then the next head goes on in the same
//! session. No accepted task is lost and no connection refused. Every head can be stopped, drained and asked by commands of any version.
//!
//! - If the two speak different versions of the protocol, processes of services begin anew: a connection that is kept may be closed by that.
//! - A program that starts well where it is tried and fails as the next head has no other behind it: what was accepted is kept in the journal.
//! - Kept by `restarting::a_copy_of_the_program_goes_on_with_place_queue_and_port_and_whoever_connects_waits`,
//!   `restarting::settings_that_would_not_start_leave_the_head_as_it_was`,
//!   `restarting::a_program_that_cannot_be_run_leaves_the_work_to_the_one_that_is_there`,
//!   `restarting::services_go_on_while_the_head_makes_way_for_one_of_the_same_protocol`,
//!   `restarting::services_begin_anew_and_no_connection_is_refused_where_the_next_head_speaks_another_protocol` and
//!   `restarting::a_head_of_another_version_is_asked_drained_and_stopped`.
//!
//! **Damage costs what it meets.** When bytes in the middle of the journal are wrong, everything that is still whole is restored; `tracer start` and `tracer status` say
//! what was found, the damaged file is kept, and no id is given out twice. After a write, a cut or a sync of the journal that failed, nothing is accepted or
//! acknowledged that the next head would not find.
//!
//! - Kept by `journal::damage_in_the_middle_of_the_journal_is_said_and_costs_only_what_it_meets`,
//!   `journal::after_a_write_that_failed_in_the_middle_nothing_is_accepted_that_would_be_lost`,
//!   `journal::what_could_not_be_synced_is_not_acknowledged_until_it_is` and property tests of damage and of failures in any order.
//!
//! **A place has one head.** It holds a lock on the folder and on a file in it. What somebody removes while the head runs, lock, socket or journal, it makes anew at once, with a
//! warning; when the folder is moved or removed, the head ends in good order.
//!
//! - Where a file system locks no folders, a head that loses its lock ends.
//! - Kept by `place::a_lock_that_is_removed_or_replaced_is_taken_back_and_no_second_head_starts`,
//!   `place::a_journal_that_is_removed_or_replaced_is_written_anew_with_all_that_is_known`, `place::a_socket_that_is_removed_is_made_anew`,
//!   `place::a_head_whose_folder_is_moved_or_removed_ends_with_all_its_processes` and
//!   `place::the_folder_is_locked_as_long_as_its_head_lives`.
//!
//! **At most one outcome is recorded.** An attempt begins when a worker claims the task. One that its worker or its head takes along is started again, two
//! times unless `--crash-limit` says otherwise; what had not been claimed goes back free of charge.
//!
//! - So a task may start more than once, unless it is submitted with `--at-most-once`: then it is reported as lost.
//! - Kept by `seen_means_recorded::workers_that_are_killed_at_random_leave_one_outcome_and_one_span_for_each_task`,
//!   `attempts::a_killed_workers_claimed_task_is_charged_and_its_other_leases_are_not`,
//!   `attempts::a_task_that_kills_its_worker_is_started_again_twice_unless_it_says_otherwise` and
//!   `attempts::what_is_to_start_at_most_once_is_lost_with_its_worker_or_its_head_and_never_started_again`.
//!
//! **What is cancelled ends.** It is asked to, then it gets SIGTERM, then SIGKILL with all that it has started, each after its grace period; a task in the lease of
//! a busy worker is taken back without waiting for that worker.
//!
//! - A function that is not async is told when it asks `runtime_context().is_cancelled()`, and while it waits for tasks that it has submitted; one that does
//!   neither is ended with its worker.
//! - Kept by `cancelling::a_function_that_does_not_ask_is_ended_with_its_worker_when_its_time_is_up`,
//!   `cancelling::a_function_that_waits_for_others_is_told_in_its_wait_and_may_clean_up`,
//!   `cancelling::a_command_gets_sigterm_then_sigkill_and_each_step_is_seen` and
//!   `cancelling::a_task_in_the_lease_of_a_busy_worker_is_cancelled_without_waiting_for_that_worker`.
//! - A task of a queue is ended from any node by its id in the cluster, also when the node that submitted it is gone. What nodes tell each other for that may be lost: then whoever asks says after 15 s that
//!   there is no answer. A task that travels in a bundle nobody has begun is ended only by the node that submitted it. Kept by
//!   `shared_cancelling::a_task_that_waits_and_one_that_runs_are_ended_from_a_node_that_has_nothing_to_do_with_them` and
//!   `shared_cancelling::a_task_whose_own_node_is_gone_is_ended_by_its_record_and_that_node_sees_it_when_it_is_back`.
//! - Where a cancel of a running task was acknowledged, no node begins another attempt, also if both the node that submitted it and the one that runs it are lost: kept by
//!   `shared_cancelling::a_running_task_that_was_cancelled_is_not_begun_again_although_its_own_node_and_the_one_that_ran_it_are_lost`.
//!
//! **Jobs take turns.** A driver with one task does not wait for all the tasks of another; within a job the first submitted begins first.
//!
//! - What tasks submit comes before what drivers submit, so that what has begun can end.
//! - Kept by `fairness::a_job_of_one_task_does_not_wait_for_thousands_of_another`.
//!
//! **Never more is taken than there is.** A task that asks for several cpus (`--num-cpus`) or for named resources (`--resource`) begins when all of it is
//! free; it is given back when the attempt has ended, also by the death of its worker. What a head can never give is refused when it is asked for.
//!
//! - Tasks that ask for different things take turns. One that does not fit may be passed by others for one second; from then on what it lacks is kept for
//!   it, so it begins as soon as what runs has ended. Nothing else is kept idle.
//! - A task that waits for others gives its cpus back, and takes them again when it goes on, even if all are taken by then. Its resources it keeps: a child
//!   that needs what its waiting parent has waits for ever, and `tracer explain` says so.
//! - Kept by `resources::a_driver_asks_for_what_its_tasks_need_and_never_more_runs_than_there_is`,
//!   `resources::what_can_never_run_here_is_refused_and_nothing_else_is` and
//!   `resources::slots_and_resources_are_counted_explained_given_back_and_kept_by_the_next_head`.
//!
//! **A task fails before the machine does.** With `--worker-memory`, or `--memory` of its own, an attempt that takes more memory fails with `oom`, and
//! nothing else does. What the worker process and everything that it has started takes counts.
//!
//! - Where the head may make control groups, as root or in one that was delegated, the kernel holds the bound. Elsewhere the head looks, at least every
//!   250 ms and more often the nearer the bound is, at memory that belongs to the processes alone: one that takes it fast may be beyond the bound for
//!   some milliseconds. `tracer status` says which.
//! - A worker runs one task after another. What an earlier one has kept in it counts too.
//! - Kept by `resources::memory_is_bounded_by_the_kernel_where_that_is_allowed` and
//!   `resources::memory_is_bounded_by_the_head_where_there_are_no_control_groups`.
//!
//! **Tasks that wait for tasks come to an end.** A waiting worker gives its slot back; where no further process may be started, what is waited for runs
//! in the waiter, also what is in a queue of many machines and no node has begun. So neither depth nor number of waiting tasks stops a head, or nodes that wait for one another.
//!
//! - 128 tasks deep in one process it fails, and names the limit.
//! - A parent that is killed, cancelled or ended by its limit takes along its children that have not ended; one that returns leaves them running.
//! - Kept by `nesting::recursion_deeper_than_there_are_workers_does_not_deadlock`,
//!   `nesting::many_parents_that_wait_neither_take_all_processes_nor_starve`,
//!   `nesting::a_process_that_may_be_the_only_one_runs_what_it_waits_for`,
//!   `over_a_queue::waiting::fifty_deep_where_no_further_process_may_be_had` and
//!   `nesting::a_parent_that_is_killed_while_it_waits_takes_its_children_with_it_in_one_whole_trace`.
//!
//! **An actor's calls run in the order of their submission, and none runs twice unless it is said.** When its worker is killed, it is created again as often as
//! its creation allows; calls that had not begun keep their place, one that was going on fails, or is run again as often as allowed.
//!
//! - Calls of `async` methods that take `&self` begin in order, and run beside each other.
//! - The order is that of one submitter's calls; a call whose argument comes late holds up those of its submitter.
//! - A detached actor is created again under the next head, if it may be; one that is not detached ends with the job that has created it.
//! - Kept by `actors::ten_thousand_calls_of_one_driver_run_in_their_order`,
//!   `actors::an_actor_whose_worker_is_killed_begins_again_and_every_span_is_there`,
//!   `actors::a_call_that_was_going_on_is_run_again_as_often_as_its_actor_allows`,
//!   `actors::a_call_whose_argument_comes_late_holds_up_its_submitters_and_nobody_elses`,
//!   `actors::a_detached_actor_outlives_the_head_and_the_calls_that_wait_for_it_are_run` and
//!   `actors::an_actor_ends_with_the_job_that_created_it_unless_it_is_detached`.
//!
//! **A call of an actor is in one whole trace, however it was made.** Through a wrapped method, by a name from another process, on a handle that is older than the
//! tracing; functions without `self` are tasks and traced like all. No span of a call that runs beside others has another's ids.
//!
//! - Kept by `actors::a_method_that_another_attribute_has_wrapped_is_called_and_its_trace_is_whole`,
//!   `actors::a_static_function_of_an_actor_is_a_task_and_is_traced`,
//!   `actors::an_actor_found_by_name_from_another_process_is_called_in_one_whole_trace`,
//!   `actors::an_actor_created_and_a_call_begun_before_tracing_are_traced_from_then_on` and
//!   `actors::concurrent_calls_run_beside_each_other_up_to_the_limit_and_no_context_is_anothers`.
//!
//! **Large values do not pass through the head.** From 256 KiB on, arguments and results go by file, for this user only. When nobody needs a file
//! any more, it is removed, or kept for five seconds for the next value, unless somebody still reads it: up to four files, of 256 MiB in all.
//!
//! - All of them together take at most 4 GiB.
//! - Kept by `large_values::large_values_go_both_ways_and_not_through_the_head`,
//!   `large_values::what_is_decoded_from_a_large_result_may_stay_in_its_file` and
//!   `large_values::after_a_head_that_was_killed_what_is_needed_is_kept_and_the_rest_goes`.
//!
//! **A large value of a task of a queue is the one that was sent, or an error that says so.** It goes from node to node through the engine in pieces; a copy takes a few mebibytes of
//! an agent's memory, however large the value is, and counts only if its SHA-256 is the one that the task's message or record has. When an agent or the engine is killed in the middle, the copy begins
//! again. Its pieces are removed from the engine when the task has ended and its origin has written the end down.
//!
//! - A value that the engine has lost is put there again by the task's origin for as long as that has it. Who takes part in the removal and dies in that moment leaves it to age: 7 days.
//! - Kept by `shared_values::a_hundred_mebibytes_go_to_another_node_and_back_in_little_memory`,
//!   `shared_values::agents_that_are_killed_while_they_copy_begin_again`,
//!   `shared_values::an_engine_that_is_killed_in_the_middle_of_a_value_loses_nothing`,
//!   `shared_values::a_damaged_value_is_an_error_by_name_and_one_that_the_engine_has_lost_is_put_there_again`,
//!   `shared_values::an_origin_that_was_killed_still_has_its_large_argument_and_gets_the_large_result`,
//!   `shared_values::what_is_above_the_bound_is_refused_by_name` and the tests of the agent over a simulated engine with thousands of faults (`src/engine/agent_tests.rs`).
//!
//! **A queue never stands still for a message that nobody can run, and a node with trusted keys runs what they have signed and nothing else.** Everything that an engine says may have been written by
//! anybody: messages, records, heartbeats and what nodes tell each other are decoded with every length and flag checked. A message that cannot be read or is not trusted goes into
//! a stream of its own with the reason before it leaves its queue.
//!
//! - Who may write to the engine can withhold tasks, end them with outcomes of its own and have a signed task delivered again under its own id; signatures keep it from running anything else. They say who has submitted,
//!   not that the engine's records are true.
//! - A message that somebody has kept runs again if it is put back under its id when its record is gone, seven days after the end: what is signed has no expiry, because a task may wait for as long as it has to.
//!   Until then the record says that it has ended, and nothing runs.
//! - Kept by `hostile_queues::rubbish_in_a_queue_is_put_aside_with_its_reason_and_every_real_task_runs`,
//!   `hostile_queues::nodes_with_trusted_keys_run_what_those_have_signed_and_put_everything_else_aside`,
//!   `hostile_queues::a_message_of_a_signed_task_that_somebody_replaces_is_put_again_and_runs`,
//!   `hostile_queues::tasks_that_are_not_signed_are_refused_by_name_and_wrong_keys_are_told`, and the properties of `src/engine/hostile_tests.rs` and `src/engine/signed.rs`.
//!
//! **A task of a queue that was accepted ends once.** It is accepted when its origin's journal and the engine have it, and then either may be lost: the origin puts again what the engine has
//! lost, and what is in the engine runs without its origin. Its record ends once, by compare-and-swap: whoever lost a task to another node and comes back changes nothing by its outcome, and ends
//! what it still runs of it. What was refused never runs, and what must not be started twice is not.
//!
//! - An engine that loses its store says so in `tracer status` once it is back, if an agent lives that had heard of more. What must not be started twice and was there without an outcome is reported lost, begun or not.
//! - An accepted task is gone with both the engine's disk and its origin's. An ordinary task whose record the engine has lost may run again.
//! - A node that is killed whole is replaced after two intervals of redelivery, 20 s, and a moment more; its attempts have stand-ins as spans until it is back.
//! - While the engine is away, a node goes on to count attempts by itself. If it is lost then, the next node counts from the record: two attempts have one number, each with its own span.
//! - Kept by `shared_deaths::an_origin_whose_head_or_agent_dies_at_any_step_of_a_submission_has_it_run_once`,
//!   `shared_deaths::a_broker_that_is_killed_after_each_acknowledgement_loses_no_task`,
//!   `shared_deaths::tasks_run_although_the_server_has_forgotten_how_far_their_queue_had_come`,
//!   `shared_deaths::an_engine_whose_store_is_wiped_is_said_to_have_lost_writes_and_what_waited_runs`,
//!   `shared_deaths::an_origin_whose_place_is_wiped_has_its_tasks_run_and_any_node_reads_the_outcomes`,
//!   `shared_deaths::a_queue_that_is_full_refuses_by_name_and_what_it_refused_never_runs`,
//!   `shared_deaths::a_node_that_was_stopped_for_longer_than_a_take_over_ends_what_it_runs_and_changes_nothing`,
//!   `shared_storm::of_nodes_and_a_broker_that_are_killed_and_stopped_at_random_each_accepted_task_has_one_end`,
//!   `shared_storm::of_nodes_and_three_brokers_that_are_killed_and_stopped_at_random_each_accepted_task_has_one_end`,
//!   `shared_replicas::each_task_ends_once_while_one_server_of_three_is_killed_and_comes_back`,
//!   `engine::a_node_that_is_killed_whole_is_replaced_by_another_one`,
//!   `namespaces::a_node_whose_link_is_down_is_replaced_and_its_outcome_counts_for_nothing_when_it_is_up_again`,
//!   `shared_spans::whoever_dies_between_claim_stand_in_and_run_each_attempt_has_one_span_that_is_shown`,
//!   `shared_spans::an_outcome_that_its_origin_has_heard_of_has_its_spans_whatever_dies_where_it_ran`,
//!   `draining::a_node_that_is_told_to_stop_takes_nothing_new_finishes_what_runs_and_gives_the_rest_back`,
//!   `draining::a_node_that_gets_sigterm_takes_nothing_new_finishes_what_runs_and_gives_the_rest_back` and the tests of the agent over a simulated engine.
//!
//! **Whoever shares an engine hears of what stands still, and is not kept waiting for it.** A queue whose stream or consumer is gone, a server that is away, an engine
//! that stores nothing any more and a certificate that is not accepted are told within half a minute, with what mends them. What a node may mend it does.
//!
//! - A submission is answered within `--engine-wait`. If the engine was asked and has not answered, it is accepted by the head's journal alone, and goes into its queue later.
//! - A head starts without its engine, and runs what is its own.
//! - Kept by `stuck_engines::a_queue_that_nobody_is_given_tasks_of_is_told_by_name_and_made_again_by_a_node_that_may`,
//!   `stuck_engines::servers_that_are_away_are_told_and_so_is_that_nothing_is_stored_any_more`,
//!   `stuck_engines::a_submission_to_an_engine_that_takes_connections_and_answers_nothing_is_accepted_in_time_and_runs_later`,
//!   `stuck_engines::a_head_starts_without_its_engine_which_delays_nothing_of_its_own_and_joins_it_when_it_is_there` and
//!   `engine_access::a_certificate_that_is_not_accepted_any_more_is_told_while_a_head_runs`.
//!
//! **With `--on-partition stop` a task of a queue runs on one node at a time.** A node that the engine has not heard for as long as claims last, 10 s of its monotonic clock, ends what it runs of queues as `tracer cancel` does. Nobody
//! takes it over before the engine has heard nothing for 10 s more. What is of no queue is not touched.
//!
//! - Each step of the end may take the task's `--grace`; one of several seconds may be over after another node has begun. Processes that are stopped themselves end when they go on.
//! - An agent that is started again while the engine is away does not know when the one before was heard, and gives it 5 s.
//! - By default what runs goes on, and one of two outcomes counts.
//! - Kept by `partitions::a_node_that_is_to_stop_when_the_engine_does_not_hear_it_ends_its_tasks_before_another_one_begins_them`,
//!   `partitions::tasks_that_were_ended_while_the_engine_answered_nobody_begin_again_when_it_is_back`,
//!   `namespaces::a_node_whose_link_is_down_ends_its_tasks_before_another_one_begins_them_if_it_was_told_to`,
//!   `imports_that_are_another_nodes_or_may_be_are_ended_as_if_cancelled_and_given_back` in `src/reactor/sharing_tests.rs` and the tests of the agent over a simulated engine.
//!
//! **An idempotency key with a queue is one task in the whole cluster.** The key is in the engine before its task is published, and names the task under whose id whoever submits it again publishes it: one message, one record, one run,
//! whoever dies in between, and every submission has its outcome.
//!
//! - For seven days from the first submission. A later one is another task.
//! - Kept by `shared_keys::the_same_key_on_two_nodes_is_one_run_and_both_have_its_result`,
//!   `shared_keys::an_origin_that_is_killed_between_its_key_and_its_message_has_its_task_run_once_by_who_submits_it_again` and `src/engine/keys_tests.rs`.
//!
//! **Short tasks of a queue that travel together end one by one.** A bundle is in its origin's journal before anybody hears of it, so it is the same one for every agent and every later head. Each
//! of its tasks ends in exactly one record, has its own attempts and spans, and can be looked up and cancelled by itself. A single task waits for no bundles: it is in another part of the queue.
//!
//! Tasks that wait in it behind one that takes longer than was expected are given back after a quarter of a second, for a node with a free slot.
//!
//! - A node that is lost takes with it what had ended in its bundle within the last quarter of a second, or with all of it, and was not recorded yet: that runs again.
//! - Kept by `bundles::short_tasks_of_a_map_travel_together_and_each_has_its_result_and_its_spans`,
//!   `bundles::a_single_task_does_not_wait_for_a_map_of_20_000_in_the_same_queue`,
//!   `bundles::a_task_in_a_bundle_is_looked_up_cancelled_and_ended_by_itself`,
//!   `bundles::killed_agents_and_a_killed_worker_in_the_middle_of_a_bundle_cost_nothing_but_an_attempt`,
//!   `bundles::an_origin_and_a_broker_that_are_killed_lose_no_task_of_a_bundle`,
//!   `bundles::a_node_that_stops_in_the_middle_of_a_bundle_gives_back_what_has_not_ended`,
//!   `bundles::what_waits_behind_slow_tasks_of_a_bundle_is_run_by_a_node_with_free_slots`,
//!   `bundles::a_node_that_is_killed_whole_in_the_middle_of_a_bundle_is_replaced_and_each_attempt_has_its_span`, the table of `src/engine/bundle.rs` and the tests of the agent over a
//!   simulated engine.
//!
//! **A node runs no command of a queue unless it was started with `--shared-commands`**, and no path of a library ever. Commands have a part of the queue that other nodes do not take from; their heads refuse
//! one that somebody has put elsewhere.
//!
//! - A node that takes some runs any program of whoever may submit to its queues.
//! - Kept by `shared_commands::a_queue_takes_commands_once_a_node_runs_some_and_no_other_node_ever_does` and
//!   `a_command_of_a_queue_is_run_where_that_was_permitted_and_nowhere_else` in `src/reactor/sharing_tests.rs`.
//!
//! **A task of a queue runs where its module is, and another build is told.** A node that lacks a module leaves its tasks to living nodes of the queue that have it; where there are none the task fails by name, and
//! is not given back for ever. What ran is told by SHA-256 where it is not the build of the submitter.
//!
//! - Another build is not refused. Which nodes have a module is known from their heartbeats, every 3 seconds; in between a task may wait a second, or fail where a node has just got the module.
//! - A node that has left a task to others takes nothing new from that queue before its next heartbeat.
//! - Kept by `shared_modules::a_task_whose_module_a_node_lacks_is_left_to_the_node_that_has_it`,
//!   `shared_modules::another_build_of_a_module_runs_and_both_digests_are_told` and `src/engine/doctor/modules.rs`.
//!
//! **What a node takes from a queue can begin there.** A queue says what its tasks may ask for; one that asks for more is refused, and a node takes none before that much is free.
//!
//! - A task of the node itself that comes at the same moment may be before it. A bound that is raised while tasks wait is known to every node within half a minute; what does not fit goes back to the queue until then.
//! - Kept by `queue_bounds::a_queue_says_what_its_tasks_may_ask_for_and_keeps_it`,
//!   `queue_bounds::a_queue_whose_tasks_may_ask_for_more_than_a_node_has_is_left_to_others` and
//!   `resources::a_driver_asks_for_what_its_tasks_need_and_never_more_runs_than_there_is`.
//!
//! **A wrong clock of a node decides nothing, and is told.** Who is silent is seen by the stamps of the engine, and limits are durations of one machine: no task is taken over early or late for it.
//! `tracer.queued_ns` of a task of a queue is right within the errors of two measured offsets, and never below 0; offsets of more than a millisecond are on the CONSUMER span, and `tracer trace show` has its spans on one clock. Stored times are never changed.
//!
//! - The first messages of a node that starts wait 100 ms at most until its clock is measured, and their tasks are not corrected if it is not. An offset counts as it was when the task came, for all attempts of that node.
//! - The span that stands in for an attempt which was lost with its node has both its times by the clock of whoever wrote it, within the errors of the two offsets. It never ends before it begins, nor begins
//!   before its submission. Spans below an attempt that were made on further machines are shifted with it.
//! - The offset of an origin travels beside the signed message. Whoever may write to a queue can make it wrong, by a day at most, and with it the times that are shown.
//! - `queued` in `tracer get` at the node that submitted is from the times of two clocks.
//! - Kept by `clocks::the_spans_of_a_node_whose_clock_is_five_seconds_ahead_are_right_and_are_shown_on_one_clock`,
//!   `clocks::the_spans_of_a_node_whose_clock_is_five_seconds_behind_are_right_and_are_shown_on_one_clock`,
//!   `clocks::wrong_clocks_make_no_take_over_come_early_or_late`,
//!   `clocks::the_span_of_an_attempt_that_was_lost_with_a_clock_ahead_of_its_writers_has_one_clock`, and `the_true_offset_is_within_the_error` and its neighbours in `src/engine/clock.rs`.
//!
//! **No process outlives its owner.** Kill head, worker or submission, any of them together, and what tasks have started ends too, daemons included.
//!
//! - Replicas and proxies of services outlive a head that is killed, for 10 s at most without another one; they are the guard's children, and end with it.
//! - Only when worker, head and the guard above the head are all killed at the same moment can a daemonized process stay.
//! - Kept by `leftovers::a_daemon_ends_with_its_worker_while_the_head_lives_and_nothing_else_does`,
//!   `leftovers::head_worker_and_submitter_killed_at_once_leave_nothing_and_lose_no_span`,
//!   `leftovers::everything_that_tasks_have_started_ends_with_a_head_that_is_killed`,
//!   `leftovers::a_daemon_that_a_task_leaves_ends_with_the_head_however_that_ends`,
//!   `serving_without_head::all_of_it_ends_when_the_guard_is_killed_alone_or_with_the_head` and
//!   `leftovers::a_worker_that_is_killed_takes_everything_along_that_its_function_has_started`.
//!
//! **A head of a program's own ends with the program.** [`init`](crate::init) starts one if none runs. However the program ends, SIGKILL and a Ctrl-C in its
//! terminal included, what it has running is ended and recorded, and nothing is left of the head and its place.
//!
//! - Tasks that run then get a second to end; when the program drops its [`Cluster`](crate::Cluster), as long as [`Init::grace`](crate::Init::grace) says.
//! - Its place stays when spans wait there that no exporter took. When program, guard and head are all killed at once, its files stay, and no process.
//! - Kept by `library_programs::a_program_that_is_killed_leaves_no_process_and_all_spans`,
//!   `library_programs::a_program_that_is_killed_with_its_head_and_guard_leaves_no_process`,
//!   `library_programs::a_ctrl_c_ends_a_program_and_its_head_records_what_ran`,
//!   `library_programs::a_program_that_panics_stops_its_head_and_its_job_says_so` and
//!   `library::a_head_of_its_own_lives_as_long_as_the_cluster`.
//!
//! **Acknowledged means recorded, for OTLP too.** What a program sends to `tracer start --otlp` is in a file of the span folder when it is answered with 200, all but
//! what the answer counts as rejected. Whoever has only the token of senders can send, and do nothing else.
//!
//! - A request is a line that is appended in one write: it is there whole or not at all. One whose answer was lost may be there twice; of its spans, each is shown once.
//! - A loss of power is not a SIGKILL: nothing is synced to the disk.
//! - Kept by `otlp_in::json_is_in_the_file_before_it_is_acknowledged_and_what_cannot_be_taken_is_counted`,
//!   `otlp_in::what_was_acknowledged_outlives_the_receiver_which_comes_back_with_port_and_token`, `otlp_in::senders_may_send_and_do_nothing_else`,
//!   `otlp_in::hostile_bodies_are_refused_and_the_next_one_is_taken`, `otlp_in::more_bodies_than_there_is_room_for_are_told_when_to_come_again`,
//!   `otlp_in::a_python_program_with_automatic_instrumentation_alone_is_below_its_attempt_while_it_runs`,
//!   `otlp_in::a_node_program_with_automatic_instrumentation_alone_is_below_its_attempt_while_it_runs`,
//!   `full_disk::what_is_sent_to_a_full_disk_is_to_be_sent_again_and_is_there_once_when_it_was`, `fuzzing::hostile_otlp_is_refused_or_a_line_that_is_read_again` and
//!   `several_hooks::spans_that_are_received_go_to_the_exporters_of_the_session_too`.
//!
//! **Much harms nobody.** A million tasks may wait; what is asked is answered at once, and lists say what they left out. Clients by the thousands, slow or dead
//! ones among them, do not slow the others. A cluster in which nothing happens uses no processor time.
//!
//! - A task that waits takes at most 256 bytes beyond its arguments; with what the allocator adds, the kernel counts 245, and 275 of one that is
//!   traced. When all together take as much as `--queue-memory` says, a quarter of the smallest of the machine's memory, the control
//!   groups above the head and its own limits
//!   unless said, drivers are refused by name; tasks that tasks submit may take twice as much.
//! - A head takes as many connections as its limit on open files leaves room for, which it raises as far as it may; beyond that, whoever connects waits, and
//!   `tracer status` says so. A client that has not read 64 MiB is disconnected.
//! - Kept by `load::more_tasks_than_there_is_memory_for_are_refused_and_what_is_asked_is_answered_at_once`,
//!   `load::the_queue_takes_a_quarter_of_what_limits_allow_and_the_next_head_starts_with_all_of_it`,
//!   `load::the_queue_takes_a_quarter_of_what_a_control_group_above_allows`,
//!   `load::thousands_of_connections_and_clients_that_are_slow_or_dead_hurt_nobody`,
//!   `load::files_threads_and_memory_stay_as_they_are_however_much_is_done`, `load::a_cluster_in_which_nothing_happens_does_nothing` and the test
//!   target `queued`, which counts every byte of a million tasks.
//!
//! **Hostile bytes harm nobody.** A torn or hostile frame closes its connection and nothing else; what is announced takes no memory; everything that a head makes is for
//! its user alone.
//!
//! - Modules are trusted: they run in the worker's process.
//! - Kept by `security::bytes_that_are_no_hello_close_their_connection_and_nothing_else`,
//!   `security::a_frame_that_announces_much_takes_no_memory`, `security::random_bytes_never_harm_the_head`,
//!   `security::what_a_head_makes_is_for_its_user_alone`, `fuzzing::hostile_frames_and_messages_are_refused` and
//!   `fuzzing::hostile_arguments_are_refused`.
//!
//! **Over HTTP only those are let in who have the token, and they hurt nobody.** The API listens on addresses of this machine; every request, of any method,
//! names this server in `Host` and `Origin` and shows the token. It runs in a process of its own, a driver like any other: whatever clients do, the head
//! and other drivers go on; when that process dies, it is started again and no task is touched.
//!
//! - Functions are found by name; commands are taken only if the head was told so. Who has the token can run code as the user.
//! - All clients together are one driver, with one turn in the queue. What they wrote to follow later is kept as the description says, and goes with the process.
//! - Kept by `http_api::access::nothing_is_answered_without_the_token_whatever_the_method`,
//!   `http_api::access::a_page_that_was_rebound_or_is_of_another_origin_is_refused_whatever_the_method`,
//!   `http_api::access::an_address_that_others_can_reach_is_refused_with_a_way_that_is_safe`,
//!   `http_api::clients::requests_that_never_come_to_an_end_are_cut_off_and_hold_nobody_up`,
//!   `http_api::clients::a_follower_that_does_not_read_holds_neither_the_task_nor_others_up`,
//!   `http_api::clients::a_front_that_is_killed_comes_back_on_its_port_with_its_token_and_no_task_is_touched`,
//!   `http_api::description::schemathesis_finds_nothing_that_is_not_as_described` and
//!   `http_api::tasks::the_trace_goes_on_from_the_callers_header_to_the_workers_spans`.
//!
//! **The page of `tracer view` only looks, and what it shows runs nowhere.** Its files hold no data; everything else needs a token, which a link gives once, within a minute. That token reads;
//! only one of a link that was made with `--control` cancels too. Names, attributes, lines and messages are texts, whatever is in them. When its server dies the page says so, and goes on once there is
//! one again, without being loaded anew; a stream of events that broke off goes on where it was, and says how many changes it does not name. A hidden tab asks for nothing.
//!
//! - The code of the page is what its sources build, byte for byte. Without a head, a page shows what is in the files.
//! - An index of the files takes at most 64 MiB, but for the moment of a look. A list of all traces ends with it and says so; a query reads older ones from the files and says how many.
//!   Of a trace that had left it, and then gets further spans, lists count only those.
//! - Kept by `view::a_link_lets_in_once_and_a_token_all_the_while`, `view::the_page_needs_the_right_name_and_data_needs_a_token`,
//!   `view::a_head_with_an_http_api_serves_the_page_and_its_tokens_do_no_more_than_they_may`, `view::the_page_works_in_a_browser`,
//!   `view::the_page_of_a_head_goes_on_when_its_server_is_killed_also_in_a_second_tab`, `view::a_stream_that_breaks_off_goes_on_where_it_was`,
//!   `view::a_folder_is_shown_without_a_head` and `view::the_page_is_what_its_sources_build`.
//!
//! **Clients and replicas of a service hurt themselves only.** What is no request of HTTP/1.1 or HTTP/2 has its documented answer, who is slow has the time that is documented, and floods take no
//! memory; other clients are answered meanwhile. A replica that writes what none may write loses its lane, and its requests are answered with 502.
//!
//! - The limits are those of [serving](super::serving).
//! - Kept by `serving_hostile::frames_of_http_2_that_are_wrong_have_the_answer_of_rfc_9113`,
//!   `serving_hostile::floods_of_http_2_end_their_connection_take_no_memory_and_disturb_nobody`,
//!   `serving_hostile::clients_of_http_2_that_stop_are_told_and_what_else_they_ask_is_answered`,
//!   `serving_hostile::bytes_of_http_1_that_are_no_request_have_their_documented_answer`,
//!   `serving_hostile::clients_of_http_1_that_are_slow_have_the_time_that_is_documented`,
//!   `serving_hostile::thousands_of_connections_with_nothing_to_do_take_little_and_others_are_answered` and
//!   `serving_smuggling::what_nginx_and_node_refuse_is_refused`; of replicas by
//!   `proxy::broken::a_replica_that_writes_anything_into_its_lane_and_its_claims_loses_its_lane_alone`,
//!   `proxy::broken::a_table_that_is_overwritten_ends_no_proxy` and `replica::a_caller_that_writes_anything_loses_its_lane_alone`.
//!
//! # What it costs
//!
//! Of a release build on two virtual cpus, which other work shared: for spans the undisturbed tenth of the samples, for commands their CPU time.
//! `cargo bench --bench inner -- span` and `-- trace` measure again, `cargo bench --bench end_to_end -- --only span` the span of a task, `--only throughput`
//! the spans of tasks, and `--only death` the last rows.
//!
//! | what | cost |
//! |---|---|
//! | a span with six attributes, from its start to the span file, by the OpenTelemetry SDK alone | 0.8 µs |
//! | the same through the boundary to the hook and through the spool, which is what survives a SIGKILL and is visible while it runs | 0.8 µs |
//! | of that, the spool: open, attributes, end, written | less than 0.1 µs |
//! | a span that is not sampled, as its parent | less than 0.1 µs |
//! | CPU time of all threads for a span with five attributes, through the boundary and the spool | 0.65 µs |
//! | the same by the SDK's batch and simple processors, with an exporter that derives its JSON | 1.8 and 2.7 µs |
//! | a span with five attributes that a task makes with `opentelemetry`, in its worker, and by the SDK alone | 0.65 and 0.5 µs |
//! | an event of `tracing` with two fields as a log record, from a module to its file; by `tracing-subscriber` to a file (`-- "log record"`) | 0.6 and 1.5 µs |
//! | the two spans of a task that does nothing, with all that goes with them, in driver, head and worker together | 1.6 to 2.4 µs |
//! | `tracer trace show last` over 100,000 spans (63 MB) | 0.17 s, where `jq -c .` takes 1.75 s; 0.4 s when all of them are the one trace that is shown |
//! | the same in OTLP lines (76 MB) | 0.28 s, where `jq -c .` takes 2.6 s |
//! | from the death of a worker until its five spans, open and ended, are in the file: SIGKILL, SIGSEGV, abort, exit, timeout | p50 0.1 to 0.7 ms, p99 7 ms |
//! | the same when the kernel killed it for memory | p50 1.4 ms, p99 26 ms |
//!
//! Nothing but the death itself brings a dead worker's spans to the file: no timer is on that way.
//!
//! A span that is not sampled takes no slot of the spool. Without a hook there is none of this: a round trip takes as many instructions as in a build
//! without tracing code, within 2 %, which `cargo bench --profile counted --bench end_to_end -- --only untraced` counts.
