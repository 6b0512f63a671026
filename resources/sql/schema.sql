-- Tables of the store. Rates are fractions; the unit of a number is its column's suffix.
CREATE TABLE llm (
    llm_id VARCHAR PRIMARY KEY, llm_type VARCHAR, n_layers INTEGER, hidden_size INTEGER,
    ffn_size INTEGER, n_heads INTEGER, n_kv_heads INTEGER, head_dim INTEGER, vocab_size INTEGER,
    context_tokens INTEGER, dtype VARCHAR, n_parameters BIGINT, n_flop_parameters BIGINT,
    is_encoder_decoder BOOLEAN, n_encoder_layers INTEGER, n_encoder_flop_parameters BIGINT,
    n_experts INTEGER, n_experts_per_token INTEGER, n_expert_parameters BIGINT,
    n_attention_parameters BIGINT, n_mlp_parameters BIGINT,
    kv_latent_size INTEGER, kv_dtype VARCHAR, weight_bits DOUBLE, n_quantized_parameters BIGINT,
    n_quantized_expert_parameters BIGINT, weight_format VARCHAR, expert_format VARCHAR,
    expert_bits DOUBLE, is_weight_only BOOLEAN,
    sliding_window_tokens INTEGER, n_sliding_layers INTEGER, n_attention_layers INTEGER,
    state_bytes_per_request BIGINT, kv_values DOUBLE, sliding_kv_values DOUBLE,
    beside_weight_bytes BIGINT, n_products BIGINT, n_small_kernels BIGINT, attention VARCHAR,
    weight_bytes BIGINT, kv_bytes_per_token BIGINT
);
CREATE TABLE gpu (
    gpu_id VARCHAR PRIMARY KEY, kind VARCHAR, architecture VARCHAR, memory_gib DOUBLE,
    memory_bandwidth_gb_s DOUBLE, dense_16bit_tflops DOUBLE,
    interconnect_gb_s DOUBLE, source VARCHAR,
    dense_fp8_tflops DOUBLE, dense_int8_tflops DOUBLE, dense_fp4_tflops DOUBLE,
    reserved_gib DOUBLE, tdp_w DOUBLE, n_gpus_per_node INTEGER
);
CREATE TABLE gpu_profile (
    gpu_profile_id VARCHAR PRIMARY KEY, gpu_id VARCHAR, n_gpus INTEGER, usd_per_hour DOUBLE,
    price_source VARCHAR, price_as_of VARCHAR
);
CREATE TABLE trace (
    trace_id VARCHAR PRIMARY KEY, n_read BIGINT, n_accepted BIGINT, n_rejected BIGINT,
    n_failed BIGINT, duration_s DOUBLE, source_sha256 VARCHAR
);
CREATE TABLE workload (
    workload_id VARCHAR PRIMARY KEY, trace_id VARCHAR, llm VARCHAR, service VARCHAR,
    use_case VARCHAR, sampler VARCHAR,
    max_input_tokens INTEGER,
    max_output_tokens INTEGER, n_requests BIGINT, n_clipped_input BIGINT,
    n_clipped_output BIGINT, n_joint_bins INTEGER, ks_input_tokens DOUBLE,
    ks_output_tokens DOUBLE
);
CREATE TABLE slo (
    slo_id VARCHAR PRIMARY KEY, nttft_ms DOUBLE, itl_ms DOUBLE, percentile INTEGER, users INTEGER,
    request_rate_rps DOUBLE, ttft_ms DOUBLE, tpot_ms DOUBLE, e2e_ms DOUBLE,
    ttft_percentile INTEGER, nttft_percentile INTEGER, itl_percentile INTEGER,
    tpot_percentile INTEGER, e2e_percentile INTEGER, input_tokens DOUBLE, output_tokens DOUBLE,
    trace_id VARCHAR, llm VARCHAR, service VARCHAR, goodput DOUBLE, max_failed DOUBLE,
    window_s DOUBLE
);
CREATE TABLE feasibility (
    source VARCHAR, llm_id VARCHAR, gpu_profile_id VARCHAR, workload_id VARCHAR,
    scenario_id VARCHAR, variant_id VARCHAR, is_feasible BOOLEAN, verdict VARCHAR, reason VARCHAR,
    memory_utilization DOUBLE, weight_gib DOUBLE, kv_gib DOUBLE,
    batch_weight_tokens BIGINT, n_server_starts INTEGER, levels_left_out VARCHAR,
    PRIMARY KEY (source, llm_id, gpu_profile_id, workload_id, scenario_id, variant_id)
);
CREATE TABLE point (
    source VARCHAR, llm_id VARCHAR, gpu_profile_id VARCHAR, workload_id VARCHAR,
    scenario_id VARCHAR, variant_id VARCHAR, scenario_kind VARCHAR, replicas INTEGER,
    engine VARCHAR, engine_version VARCHAR, precision VARCHAR, cuda_graphs BOOLEAN, measured_on VARCHAR,
    level DOUBLE, users INTEGER, n_ok BIGINT, n_failed BIGINT, duration_s DOUBLE, throughput_tok_s DOUBLE, request_rate_rps DOUBLE,
    mean_input_tokens DOUBLE, mean_output_tokens DOUBLE,
    median_ttft_ms DOUBLE, p90_ttft_ms DOUBLE, p95_ttft_ms DOUBLE, p99_ttft_ms DOUBLE,
    median_nttft_ms DOUBLE, p90_nttft_ms DOUBLE, p95_nttft_ms DOUBLE, p99_nttft_ms DOUBLE,
    median_itl_ms DOUBLE, p90_itl_ms DOUBLE, p95_itl_ms DOUBLE, p99_itl_ms DOUBLE,
    median_tpot_ms DOUBLE, p90_tpot_ms DOUBLE, p95_tpot_ms DOUBLE, p99_tpot_ms DOUBLE,
    median_e2e_ms DOUBLE, p90_e2e_ms DOUBLE, p95_e2e_ms DOUBLE, p99_e2e_ms DOUBLE,
    median_ttft_lo_ms DOUBLE, median_ttft_hi_ms DOUBLE, p90_ttft_lo_ms DOUBLE, p90_ttft_hi_ms DOUBLE,
    p95_ttft_lo_ms DOUBLE, p95_ttft_hi_ms DOUBLE, p99_ttft_lo_ms DOUBLE, p99_ttft_hi_ms DOUBLE,
    median_nttft_lo_ms DOUBLE, median_nttft_hi_ms DOUBLE, p90_nttft_lo_ms DOUBLE, p90_nttft_hi_ms DOUBLE,
    p95_nttft_lo_ms DOUBLE, p95_nttft_hi_ms DOUBLE, p99_nttft_lo_ms DOUBLE, p99_nttft_hi_ms DOUBLE,
    median_itl_lo_ms DOUBLE, median_itl_hi_ms DOUBLE, p90_itl_lo_ms DOUBLE, p90_itl_hi_ms DOUBLE,
    p95_itl_lo_ms DOUBLE, p95_itl_hi_ms DOUBLE, p99_itl_lo_ms DOUBLE, p99_itl_hi_ms DOUBLE,
    median_tpot_lo_ms DOUBLE, median_tpot_hi_ms DOUBLE, p90_tpot_lo_ms DOUBLE, p90_tpot_hi_ms DOUBLE,
    p95_tpot_lo_ms DOUBLE, p95_tpot_hi_ms DOUBLE, p99_tpot_lo_ms DOUBLE, p99_tpot_hi_ms DOUBLE,
    median_e2e_lo_ms DOUBLE, median_e2e_hi_ms DOUBLE, p90_e2e_lo_ms DOUBLE, p90_e2e_hi_ms DOUBLE,
    p95_e2e_lo_ms DOUBLE, p95_e2e_hi_ms DOUBLE, p99_e2e_lo_ms DOUBLE, p99_e2e_hi_ms DOUBLE,
    mean_ttft_ms DOUBLE, mean_itl_ms DOUBLE, mean_tpot_ms DOUBLE, mean_e2e_ms DOUBLE,
    batch_weight_tokens BIGINT, energy_j DOUBLE, energy_bridged_fraction DOUBLE,
    energy_per_request_j DOUBLE, energy_per_output_token_j DOUBLE, mean_power_w DOUBLE, max_power_w DOUBLE,
    client_lag_p99_ms DOUBLE, client_lag_max_ms DOUBLE, send_lag_p99_ms DOUBLE,
    server_mean_itl_ms DOUBLE, server_accepted_length DOUBLE, n_other_processes BIGINT,
    is_published_median BOOLEAN,
    PRIMARY KEY (source, llm_id, gpu_profile_id, workload_id, scenario_id, variant_id, level)
);
CREATE TABLE telemetry (
    source VARCHAR, llm_id VARCHAR, gpu_profile_id VARCHAR, workload_id VARCHAR,
    scenario_id VARCHAR, variant_id VARCHAR, level DOUBLE, device VARCHAR,
    energy_j DOUBLE, energy_bridged_fraction DOUBLE, mean_power_w DOUBLE, max_power_w DOUBLE,
    mean_utilization DOUBLE, max_utilization DOUBLE, mean_memory_utilization DOUBLE,
    max_memory_utilization DOUBLE, mean_sm_active DOUBLE, max_sm_active DOUBLE,
    mean_sm_occupancy DOUBLE, max_sm_occupancy DOUBLE, max_memory_used_gib DOUBLE,
    mean_sm_clock_mhz DOUBLE, max_temperature_c DOUBLE, throttled_s DOUBLE,
    throttle_reason_s VARCHAR
);
CREATE TABLE prediction (
    source VARCHAR, slo_id VARCHAR, predictor VARCHAR, llm_id VARCHAR, gpu_profile_id VARCHAR,
    users INTEGER, nttft_ms DOUBLE, itl_ms DOUBLE, nttft_lo_ms DOUBLE, nttft_hi_ms DOUBLE,
    itl_lo_ms DOUBLE, itl_hi_ms DOUBLE, fold VARCHAR
);
CREATE TABLE candidate (
    source VARCHAR, slo_id VARCHAR, predictor VARCHAR, llm_id VARCHAR, gpu_profile_id VARCHAR,
    status VARCHAR, users_per_replica INTEGER, replicas INTEGER, usd_per_hour DOUBLE,
    fewest_users INTEGER, ttft_ratio DOUBLE, nttft_ratio DOUBLE, itl_ratio DOUBLE,
    tpot_ratio DOUBLE, e2e_ratio DOUBLE, limit_ratio DOUBLE, load_per_replica DOUBLE,
    failed_share DOUBLE, probability_met DOUBLE
);
CREATE TABLE recommendation (
    source VARCHAR, slo_id VARCHAR, predictor VARCHAR, llm_id VARCHAR, gpu_profile_id VARCHAR,
    replicas INTEGER, users_per_replica INTEGER, usd_per_hour DOUBLE, is_success BOOLEAN,
    overspend DOUBLE, probability_met DOUBLE
);
CREATE TABLE score (
    source VARCHAR, slo_id VARCHAR, predictor VARCHAR, n_llms INTEGER, success_rate DOUBLE,
    overspend DOUBLE, so_score DOUBLE, fit_seconds DOUBLE, n_left_out INTEGER,
    mape_nttft DOUBLE, mape_itl DOUBLE, n_unused_points INTEGER, note VARCHAR
);
-- Replicas for an SLO with a trace or a rate, by simulation: one row an LLM and GPU profile.
CREATE TABLE capacity (
    source VARCHAR, slo_id VARCHAR, trace_id VARCHAR, llm_id VARCHAR, gpu_profile_id VARCHAR,
    status VARCHAR, replicas INTEGER, usd_per_hour DOUBLE, probability_met DOUBLE,
    replicas_lo INTEGER, replicas_hi INTEGER, rate_at_slo_rps DOUBLE, binds VARCHAR,
    n_refused INTEGER, refused_share DOUBLE, alone_limit VARCHAR, alone_ratio DOUBLE,
    is_gpu_measured BOOLEAN, reason VARCHAR, is_chosen BOOLEAN, n_windows INTEGER,
    n_windows_missed_by_failure INTEGER
);
-- Which demand of a sheet gets which GPUs of a cluster: one row a demand.
CREATE TABLE fleet (
    source VARCHAR, demand_id VARCHAR, team VARCHAR, llm_id VARCHAR, priority INTEGER,
    status VARCHAR, gpu_profile_id VARCHAR, replicas INTEGER, usd_per_hour DOUBLE,
    probability_met DOUBLE, nodes VARCHAR, mend VARCHAR, PRIMARY KEY (source, demand_id)
);
-- The workload and scenario that a source's predictions and recommendations rest on.
CREATE TABLE decision (
    source VARCHAR PRIMARY KEY, workload_id VARCHAR, scenario_id VARCHAR
);
-- Features that came with a source, in place of those computed from facts: a JSON object in the
-- order of the sheet's columns; `kind` is llm or gpu_profile.
CREATE TABLE feature (
    source VARCHAR, kind VARCHAR, id VARCHAR, facts VARCHAR, PRIMARY KEY (source, kind, id)
);
CREATE TABLE provenance (key VARCHAR PRIMARY KEY, value VARCHAR);
