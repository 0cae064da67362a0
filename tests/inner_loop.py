"""Tests of the inner loop, `pytest -m unit`: all fast tests but those that are listed here.

Left out are tests that start processes or servers, train a model, or take more than about a second of a core: those of
NOT_UNIT, and those that use one of COSTLY_FIXTURES. An entry of NOT_UNIT is a file, or one test of a file;
tests/test_inner_loop.py checks that each exists.
"""

import functools
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent

# Files of a folder, and tests of a file.
LISTED = """
.: test_container.py test_engine_alone.py test_recorded.py
benchmarks: test_gpu.py
docs/test_mkdocs_hooks.py: test_a_figure_needs_no_script
flows: test_bad_input.py test_data_step.py test_demo.py test_deployments.py test_docs.py test_full_disk.py
    test_hostile.py test_lineage.py test_pipeline.py test_server.py test_small_corpora.py
flows/dry_run: test_plan.py
flows/orchestration: test_cluster_runner.py test_recover.py test_server_access.py
flows/orchestration/test_cancellation.py: test_a_flow_shuts_down_cleanly_when_its_worker_is_killed
flows/test_pretrain.py: test_a_raw_file_has_the_documents_of_its_pair
    test_missing_sentinels_are_refused_before_anything_starts test_the_plan_shows_files_split_and_missing_validation
    test_wrong_tokens_are_refused_in_one_line
flows/test_settings.py: test_a_dry_run_shows_the_steps_of_the_run test_mistakes_are_found_before_anything_starts
flows/ui: test_flags.py
flows/ui/test_artifacts.py: test_a_server_that_does_not_answer_stops_nothing
    test_the_artifact_of_a_long_training_stays_small
gpt2train: test_cli.py test_train.py
gpt2train/checkpoint: test_resume.py test_writer.py
gpt2train/compat: test_torch_compile.py test_torch_elastic.py
gpt2train/convert: test_merge.py test_model_card.py
gpt2train/convert/test_export.py: test_a_folder_has_what_vllm_and_sglang_read test_llama_cpp_continues_as_the_model_does
gpt2train/convert/test_generation_config.py: test_a_folder_has_the_default_template_of_its_tuning
    test_a_folder_keeps_its_template_and_its_tokens test_llama_cpp_answers_by_the_template_and_ends_the_turn
    test_llama_cpp_gets_the_template_and_the_end_of_a_turn test_pieces_of_sentencepiece_are_those_of_transformers
gpt2train/convert/test_huggingface.py: test_a_model_folder_is_written_atomically
gpt2train/data: test_chat.py test_tokenizer_kinds.py
gpt2train/data/test_document_split.py: test_a_resumed_run_is_bit_equal_and_another_split_is_refused
    test_too_few_documents_are_refused_for_training_and_logged_for_validation
gpt2train/data/test_index_cache.py: test_a_kill_during_the_write_is_harmless
    test_concurrent_processes_leave_one_valid_file
gpt2train/data/test_indexed.py: test_the_command_converts_a_legacy_dataset
gpt2train/data/test_tokenize_files.py: test_bytes_do_not_depend_on_workers test_no_worker_outlives_a_killed_command
    test_the_commands_of_the_page_run
gpt2train/data/test_tokenizer.py: test_any_text_has_equal_ids
    test_difficult_texts_have_equal_ids_with_a_trained_vocabulary
    test_difficult_texts_have_equal_ids_with_the_published_vocabulary test_published_files_give_the_ids_of_transformers
    test_real_texts_have_equal_ids test_text_round_trips_and_never_gives_the_special_id
gpt2train/evaluate: test_add_an_evaluation.py test_distributed_scoring.py
gpt2train/evaluate/test_command.py: test_a_curve_scores_no_checkpoint_twice test_a_task_in_the_curve_of_a_run
    test_command
gpt2train/evaluate/test_perplexity.py: test_document_perplexity_equals_the_reference_implementation
    test_perplexity_above_that_of_token_counts_is_explained test_scores_equal_the_reference_implementation
    test_wikitext_equals_the_reference_implementation
gpt2train/evaluate/test_tasks.py: test_trees_hold_every_request_once
gpt2train/inference: test_distributed_job.py
gpt2train/inference/test_command.py: test_a_message_that_does_not_fit_is_refused_and_the_conversation_goes_on
    test_mistakes_are_one_line test_the_history_is_sent
gpt2train/inference/test_decoders.py: test_equal_to_the_plain_model_as_rows_come_and_go
    test_two_tensor_parallel_processes_answer_as_one
gpt2train/inference/test_generate.py: test_a_batch_gives_what_each_prompt_gives_alone
    test_beams_and_scores_equal_transformers test_equal_to_transformers
gpt2train/launch: test_multi_node.py test_stop_request.py
gpt2train/model/test_linear.py: test_a_compiled_model_has_the_gradients_of_the_plain_one
gpt2train/monitoring: test_trackers.py
gpt2train/parallel: test_offload.py test_tensor_parallel.py
gpt2train/plan/test_plan.py: test_the_command_prints_a_plan
gpt2train/quality: test_label.py
gpt2train/runs: test_page.py
gpt2train/runs/test_runs.py: test_a_killed_writer_leaves_a_readable_record
gpt2train/runs/test_trace.py: test_every_sample_leads_to_its_documents
gpt2train/serve: test_chat.py test_connections.py test_http.py test_page.py
gpt2train/serve/test_api.py: test_any_value_in_any_field_is_answered test_millions_of_ids_are_refused_in_time
gpt2train/store/test_progress.py: test_a_terminal_shows_rate_and_time_left test_the_bar_of_a_block_of_work
gpt2train/test_settings.py: test_queries_are_removed
gpt2train/training: test_callbacks.py test_plugin_pages.py test_precision.py test_wrong_settings.py
gpt2train/training/test_optimizers.py: test_layouts_have_the_updates_of_one_process_and_send_each_matrix_once
    test_steps_do_not_leak_memory
gpt2train/training/test_performance.py: test_phases_add_up_to_the_seconds_of_a_step
    test_starting_the_next_step_early_changes_nothing test_waiting_has_a_phase_of_its_own
tasks: test_kills.py
tasks/blacklist/test_blacklist.py: test_order_is_kept_and_shards_are_full test_the_fast_path_equals_the_general_one
    test_the_real_list_gets_its_reference_decisions
tasks/clean/filters/test_filters.py: test_help_and_errors_name_its_settings
    test_the_filter_of_the_page_cleans_in_worker_processes
tasks/clean/test_clean.py: test_a_fast_library_that_disagrees_is_not_used test_real_mojibake_is_repaired
    test_token_counts_of_real_texts_are_exact
tasks/clean/test_language.py: test_any_text_is_ranked_as_by_fasttext test_both_detectors_agree_on_most_texts
    test_real_documents_are_ranked_decided_and_cut_as_by_fasttext
    test_the_language_does_not_depend_on_process_or_earlier_texts
    test_the_model_is_the_one_that_was_measured_and_another_one_is_refused
tasks/cloze/test_step.py: test_passages_have_lambadas_format_and_come_from_the_test_split
tasks/core: test_gpu_queue.py test_object_stores.py test_runner.py test_versions.py
tasks/core/test_step.py: test_a_second_run_is_cached_and_a_changed_parameter_runs_again
    test_the_fingerprint_depends_on_each_parameter
tasks/decontaminate/test_decontaminate.py: test_planted_passages_of_lambada_are_removed
tasks/decontaminate/test_ngrams.py: test_clean_texts_have_nothing_of_lambada
    test_words_equal_the_reference_implementation
tasks/dedup: test_dedup.py
tasks/dedup/test_kernels.py: test_every_code_point_folds_as_python_does test_shingles_equal_the_reference_implementation
tasks/dedup/test_lost_text.py: test_sequences_of_both_engines_are_equal
tasks/discover/test_step.py: test_memory_is_bounded
tasks/download: test_download.py test_refresh.py
tasks/download/test_fetch.py: test_each_failure_has_its_reason
tasks/download/test_headers.py: test_an_adversarial_file_delays_only_its_own_host
    test_each_malformed_response_ends_with_a_reason test_many_rules_take_bounded_time_for_any_url
tasks/download/test_politeness.py: test_a_host_that_asks_to_wait_gets_no_request_meanwhile
    test_a_slow_host_delays_only_its_own_shard test_crawl_delay_is_obeyed_and_robots_txt_passes_the_ssrf_guard
    test_limits_of_a_host_hold_across_shards test_the_slot_of_a_killed_process_is_freed
    test_two_processes_share_the_delay_of_a_host
tasks/evaluate: test_merge_and_evaluate.py
tasks/extract: test_row_reuse.py test_step.py
tasks/extract/test_prefilter.py: test_adversarial_pages_take_little_cpu_time
    test_nothing_that_cleaning_keeps_is_dropped_on_a_sample test_the_bound_on_tokens_is_never_too_low
tasks/extract/test_soft_404.py: test_real_content_is_not_flagged_on_a_sample
tasks/report: test_report.py
tasks/sources/test_texts.py: test_a_large_page_of_a_parquet_file_takes_little_memory
    test_a_repeated_text_in_a_parquet_file_takes_little_memory
    test_each_file_of_a_folder_is_a_record_and_html_is_extracted test_long_lines_are_rejected_and_not_held_in_memory
    test_many_keys_take_bounded_memory test_several_sources_are_one_input
tasks/sources/test_warcs.py: test_a_fault_has_a_reason_and_costs_no_other_page
    test_decompression_bombs_are_read_in_bounded_memory test_reading_time_is_proportional_to_the_decompressed_size
tasks/tokenize: test_tokenize.py
tasks/tokenizer/test_step.py: test_training_depends_on_the_texts_alone
tasks/train/launch: test_slurm_ends.py test_ssh.py
tasks/train/launch/test_job.py: test_settings_of_the_launcher_are_checked
    test_the_launcher_of_the_page_runs_a_job_and_lets_it_save test_the_next_job_waits_while_the_previous_one_saves
"""
NOT_UNIT = tuple(
    f"{place}::{name}" if place.endswith(".py") else name if place == "." else f"{place}/{name}"
    for place, names in re.findall(r"^(\S+): ((?:.|\n    )+)", LISTED, re.M)
    for name in names.split()
)
COSTLY_FIXTURES = {"finished", "mini", "runner", "trained_run"}  # each starts processes


@functools.cache
def is_unit_file(path: Path) -> bool:
    """True if a file of tests has any test of the inner loop."""
    return path.relative_to(ROOT).as_posix() not in NOT_UNIT


def is_unit_test(path: Path, function: str, fixtures: Iterable[str]) -> bool:
    """True if a fast test belongs to the inner loop."""
    listed = f"{path.relative_to(ROOT).as_posix()}::{function}" in NOT_UNIT
    return is_unit_file(path) and not listed and COSTLY_FIXTURES.isdisjoint(fixtures)
