#!/usr/bin/env python3
"""What is on the six boards. Writes their JSON beside this file; --check says whether it is up to date."""
import pathlib
import sys

from grafana import board_json, heatmap, mean, panel, quantiles, rate, share, stat

MODEL = 'model=~"$model"'
ALL = f'{MODEL},instance=~"$instance"'
HOST = 'instance=~"$instance"'


def of(role, **labels):
    return ",".join([ALL, f'role="{role}"'] + [f'{name}="{value}"' for name, value in labels.items()])


ROUTER, PREFILL, DECODE = of("router"), of("prefill"), of("decode")
# What another kind of process measures: $instance is not one of those.
AT_ROUTERS, AT_DECODE = f'{MODEL},role="router"', f'{MODEL},role="decode"'
# Codes that a correct request of a patient client never sees.
FAULT = 'code=~"UNKNOWN|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|ABORTED|INTERNAL|UNAVAILABLE|DATA_LOSS"'
# Not a number where nothing was timed.
CHOOSING = f'({mean("sluice_compression_seconds", PREFILL)} >= 0 or vector(0))'
ON_GPUS = "Absent where workers run on CPUs."


def recorded(metric):
    return [(f"job_model:sluice_{metric}:{q}_rate5m{{{MODEL}}}", q) for q in ("p50", "p95", "p99")]


def by(label, gauge, selector):
    return f"sum by ({label}) ({gauge}{{{selector}}})", f"{{{{{label}}}}}"


def ready(role):
    states = f'sluice_worker_state{{{ALL},role="{role}",state="ready"}}'
    return stat(f"Ready {role} workers", "count", f"min(sum by (instance) ({states}))",
                "As the router has it that sees fewest.")


def on_gpus(role):
    return [panel("GPU utilization", "ratio", (f"sluice_gpu_utilization_ratio{{{of(role)}}}", "{{instance}} {{gpu}}"),
                  most=1, says=ON_GPUS),
            panel("GPU memory", "bytes", (f"sluice_gpu_memory_bytes{{{of(role)}}}", "{{gpu}} {{kind}}"), says=ON_GPUS)]


def free_share(role):
    return (f'sum by (instance) (sluice_kv_blocks{{{of(role, state="free")}}}) / '
            f"sum by (instance) (sluice_kv_blocks{{{of(role)}}})", "{{instance}}")


def since_forward(what, role):
    return panel(f"Since the last {what}", "seconds",
                 (f"time() - (sluice_last_forward_timestamp_seconds{{{of(role)}}} > 0)", "{{instance}}"))


OVERVIEW = [
    stat("Requests served", "per second", rate("sluice_requests_total", of("router", code="OK"))),
    stat("Errors, 5 minutes", "ratio", f"max(job_model:sluice_request_errors:ratio_rate5m{{{MODEL}}})",
         "Requests that ended in a code that a correct request of a patient client never sees."),
    stat("First token, p95", "seconds", f"max(job_model:sluice_time_to_first_token_seconds:p95_rate5m{{{MODEL}}})"),
    stat("In flight", "count", f"sum(sluice_requests_in_flight{{{ROUTER}}})"),
    ready("prefill"),
    ready("decode"),
    panel("Requests by code", "per second", (rate("sluice_requests_total", ROUTER, "code") + " > 0", "{{code}}"),
          stacked=True),
    panel("Error ratio", "ratio",
          (f'{rate("sluice_requests_total", f"{ROUTER},{FAULT}")} / {rate("sluice_requests_total", ROUTER)}',
           "of all requests"), says="Codes that a correct request of a patient client never sees."),
    panel("Requests in flight", "count", by("stage", "sluice_requests_in_flight", ROUTER), stacked=True,
          says="queued: until a prefill worker computes the prompt."),
    panel("Time to first token", "seconds", *recorded("time_to_first_token_seconds"),
          says="From the whole request at the router to its first delta. Over 5 minutes."),
    panel("Time per output token", "seconds", *recorded("time_per_output_token_seconds"),
          says="Of each request, the mean after its first token. Over 5 minutes."),
    panel("Whole request", "seconds", *recorded("request_seconds"), says="Over 5 minutes."),
    panel("Tokens", "tokens/s", (rate("sluice_tokens_total", ROUTER, "kind"), "{{kind}}"),
          says="Of finished requests. prompt includes cached."),
    panel("Answer length", "tokens", *quantiles("sluice_completion_tokens", ROUTER)),
    panel("Wait for a pair of workers", "seconds", *quantiles("sluice_queue_seconds", of("router", stage="router"))),
    panel("Workers by state", "count",
          (f"max by (role, state) (sluice_worker_state{{{ALL}}}) > 0", "{{role}} {{state}}")),
    panel("Requests by method", "per second", (rate("sluice_requests_total", ROUTER, "method") + " > 0", "{{method}}")),
    panel("Cancelled, and too slow", "per second",
          (rate("sluice_cancelled_total", ROUTER, "stage"), "cancelled: {{stage}}"),
          (rate("sluice_slow_client_total", ROUTER), "slow reader")),
    panel("Refused at the door", "per second",
          (rate("sluice_admission_refused_total", ROUTER, "reason"), "{{reason}}"),
          says="Before any work was done for them."),
    panel("Budgets lowered to keep an SLO", "per second", (rate("sluice_slo_budget_lowered_total", ROUTER), "lowered")),
    panel("Versions", "count", (f"sum by (role, instance, version) (sluice_build_info{{{ALL}}})", ""), kind="table"),
]

PREFILL_BOARD = [
    panel("Wait in the queue", "seconds", *quantiles("sluice_queue_seconds", of("prefill", stage="prefill"))),
    panel("Prefill, first layer to last", "seconds", *quantiles("sluice_prefill_seconds", PREFILL)),
    panel("Prompts here", "count", by("stage", "sluice_requests_in_flight", PREFILL), stacked=True),
    heatmap("Prompt length", "tokens", "sluice_prompt_tokens", AT_ROUTERS, "Of finished requests, at the routers."),
    panel("Prompt tokens", "tokens/s", (rate("sluice_prefix_cache_tokens_total", PREFILL, "outcome"), "{{outcome}}"),
          stacked=True, says="hit: found in history. miss: computed."),
    panel("Cached share of prompts", "ratio",
          (share(rate("sluice_prefix_cache_tokens_total", of("prefill", outcome="hit")),
                 rate("sluice_prefix_cache_tokens_total", of("prefill", outcome="miss"))), "found in history"), most=1),
    panel("Prompts in one pass", "count", (mean("sluice_batch_size", PREFILL), "mean"), width=6),
    panel("One layer of a pass", "seconds", *quantiles("sluice_step_seconds", PREFILL), width=6),
    panel("Choosing and gathering rows", "seconds",
          (mean("sluice_compression_seconds", PREFILL, "algorithm"), "{{algorithm}}, mean"),
          says="A prompt's mean, on CPUs; a GPU's queue is not timed.", width=6),
    panel("Cancelled here", "per second", (rate("sluice_cancelled_total", PREFILL, "stage"), "{{stage}}"), width=6),
    panel("History blocks in use", "count", by("state", "sluice_kv_blocks", PREFILL + ',state!="free"'), stacked=True,
          says="Of 64 tokens. active: a pass reads them."),
    panel("History blocks free", "ratio", free_share("prefill"), most=1),
    panel("KV memory", "bytes", by("kind", "sluice_kv_memory_bytes", PREFILL), stacked=True),
    since_forward("layer", "prefill"),
    *on_gpus("prefill"),
]

DECODE_BOARD = [
    heatmap("Time between tokens", "seconds", "sluice_inter_token_seconds", AT_ROUTERS, "At the routers."),
    panel("Time between tokens, at the routers", "seconds", *quantiles("sluice_inter_token_seconds", AT_ROUTERS)),
    panel("One step", "seconds", *quantiles("sluice_step_seconds", DECODE)),
    panel("Sequences in a step", "count", (mean("sluice_batch_size", DECODE), "mean")),
    panel("Tokens", "tokens/s", (rate("sluice_batch_size_sum", DECODE, "instance"), "{{instance}}")),
    panel("KV pages in use", "count", by("state", "sluice_kv_blocks", DECODE + ',state!="free"'), stacked=True,
          says="leased: reserved for a hand-off. orphaned: of no request, and not free."),
    panel("KV pages free", "ratio", free_share("decode"), most=1),
    panel("Orphaned KV pages", "count", by("instance", "sluice_kv_blocks", of("decode", state="orphaned"))),
    panel("KV memory", "bytes", by("kind", "sluice_kv_memory_bytes", DECODE), stacked=True),
    panel("Sequences here", "count", by("stage", "sluice_requests_in_flight", DECODE), stacked=True,
          says="queued: registered, the prompt still at prefill."),
    panel("From registration to pages", "seconds", *quantiles("sluice_queue_seconds", of("decode", stage="decode"))),
    panel("Sequences stopped for their pages", "per second", (rate("sluice_preemptions_total", DECODE), "preempted")),
    panel("Wrong slabs, non-finite logits", "per second",
          (rate("sluice_kv_integrity_mismatch_total", DECODE), "slabs that were not as sent"),
          (rate("sluice_non_finite_logits_total", ALL, "role"), "non-finite logits, {{role}}")),
    panel("Cancelled here", "per second", (rate("sluice_cancelled_total", DECODE, "stage"), "{{stage}}"),
          says="By the router: the client went away, or a stop string ended the answer."),
    since_forward("step", "decode"),
    panel("Tokens per GPU", "tokens/s",
          (rate("sluice_batch_size_sum", DECODE, "instance") +
           f' / count by (instance) (sluice_gpu_memory_bytes{{{of("decode", kind="total")}}})', "{{instance}}"),
          says=ON_GPUS),
    *on_gpus("decode"),
]

TRANSFER = [
    heatmap("Hand-offs, offer to commit", "seconds", "sluice_kv_transfer_seconds", PREFILL,
            "Overlaps the computation of the prompt."),
    panel("Hand-off, offer to commit", "seconds", *quantiles("sluice_kv_transfer_seconds", PREFILL)),
    panel("Hand-off, what no compute hides", "seconds", *quantiles("sluice_kv_transfer_exposed_seconds", PREFILL),
          says="From the last layer's kept rows to Commit."),
    panel("Rate on the wire", "bytes/s",
          (rate("sluice_kv_transfer_bytes_total", of("prefill", form="wire"), "instance"), "{{instance}}")),
    panel("KV of prompts, and what was sent", "bytes/s",
          (rate("sluice_kv_transfer_bytes_total", PREFILL, "form"), "{{form}}"),
          says="logical: the full KV of the prompts."),
    heatmap("Bytes of a hand-off", "bytes", "sluice_kv_transfer_size_bytes", PREFILL),
    panel("Kept rows", "ratio", (mean("sluice_compression_kept_ratio", PREFILL, "algorithm"), "{{algorithm}}, mean"),
          most=1),
    panel("Gates that did not apply", "per second",
          (rate("sluice_compression_fallback_total", ROUTER, "reason") + " > 0", "{{reason}}"),
          says="Requests for which a gate was switched off."),
    panel("Hand-offs that failed", "per second",
          (rate("sluice_kv_transfer_failures_total", PREFILL, "reason") + " > 0", "{{reason}}"),
          says="As prefill saw them; none is drawn where none failed."),
    panel("To the first token (stacked means)", "seconds",
          (mean("sluice_queue_seconds", f'{AT_ROUTERS},stage="router"'), "wait for a pair"),
          (mean("sluice_queue_seconds", of("prefill", stage="prefill")), "queue at prefill"),
          (mean("sluice_prefill_seconds", PREFILL) + " - " + CHOOSING, "compute"),
          (CHOOSING, "choose and gather rows"), stacked=True,
          says="The first token does not wait for the wire. What is missing to the time to first token are the hops. "
               "On GPUs choosing is part of computing."),
    panel("From there to the second (stacked means)", "seconds",
          (mean("sluice_kv_transfer_exposed_seconds", PREFILL), "transfer that no compute hides"),
          (mean("sluice_step_seconds", AT_DECODE), "first step"), stacked=True),
    panel("Hand-offs under way", "count", by("role", "sluice_kv_transfer_in_flight", ALL)),
    panel("Slabs sent again, leases run out", "per second",
          (rate("sluice_kv_transfer_retries_total", PREFILL), "slabs sent again"),
          (rate("sluice_kv_lease_expired_total", ALL, "role"), "leases, {{role}}"), width=6),
    panel("Ring slots", "count", (by("role, state", "sluice_kv_ring_slots", ALL)[0], "{{role}} {{state}}"), width=6),
    panel("Oldest slot in quarantine", "seconds",
          (f"max by (role) (sluice_kv_quarantine_oldest_seconds{{{ALL}}})", "{{role}}"), width=6),
    panel("Rate that the probe measured", "bytes/s",
          (f"sluice_kv_transport_probe_bytes_per_second{{{PREFILL}}} > 0", "{{instance}} {{transport}}"), width=6),
    "What compression lost, on the prompts of --shadow-rate",
    panel("Attention on kept rows", "ratio",
          (mean("sluice_shadow_retained_attention_mass_ratio", PREFILL, "algorithm"), "{{algorithm}}, mean"), most=1,
          width=6),
    panel("Next tokens that agree", "ratio",
          (rate("sluice_shadow_top1_tokens_total", of("prefill", outcome="agree"), "algorithm") + " / " +
           rate("sluice_shadow_top1_tokens_total", PREFILL, "algorithm"), "{{algorithm}}"), most=1, width=6),
    panel("Prompts measured", "per second",
          (rate("sluice_shadow_measured_total", PREFILL, "algorithm") + " > 0", "{{algorithm}}"),
          (rate("sluice_shadow_skipped_total", PREFILL, "reason") + " > 0", "skipped: {{reason}}"), width=6),
    panel("Device time of one measurement", "seconds", (mean("sluice_shadow_seconds", PREFILL), "mean"), width=6),
]

SESSIONS = [
    stat("Turns served warm", "ratio",
         f'{rate("sluice_session_turns_total", of("router", outcome="warm"))} / '
         f'{rate("sluice_session_turns_total", ROUTER)}', "Turns whose history was found at their prefill worker.", 6),
    stat("Prompt tokens cached", "ratio", f'{rate("sluice_tokens_total", of("router", kind="cached"))} / '
                                          f'{rate("sluice_tokens_total", of("router", kind="prompt"))}', width=6),
    stat("Sessions", "count", f"max(sum by (instance) (sluice_sessions{{{ROUTER}}}))",
         "Routers may share one store: the largest that one sees.", 6),
    stat("History", "bytes", f"sum(sluice_session_bytes{{{ALL}}})", width=6),
    panel("Turns", "per second", (rate("sluice_session_turns_total", ROUTER, "outcome"), "{{outcome}}"), stacked=True,
          says="warm: on kept history. cold: computed anew. remote: not at the home worker."),
    panel("Warm share", "ratio",
          (f'{rate("sluice_session_turns_total", of("router", outcome="warm"))} / '
           f'{rate("sluice_session_turns_total", ROUTER)}', "warm"), most=1),
    panel("Hit ratio of history", "ratio",
          (share(rate("sluice_prefix_cache_tokens_total", of("prefill", outcome="hit")),
                 rate("sluice_prefix_cache_tokens_total", of("prefill", outcome="miss"))), "prompt tokens"), most=1),
    panel("Stored sessions", "count",
          (f"max by (state) (sluice_sessions{{{ROUTER}}})", "{{state}}"), stacked=True, says="busy: a turn runs."),
    panel("Bytes of history", "bytes", by("instance", "sluice_session_bytes", PREFILL), stacked=True),
    panel("History blocks that went", "per second", (rate("sluice_evictions_total", PREFILL, "reason"), "{{reason}}"),
          says="pressure: for want of memory. forgotten: with a turn that is no more."),
    panel("Leases that ran out", "per second", (rate("sluice_kv_lease_expired_total", ALL, "role"), "{{role}}")),
]

HOSTS = [
    panel("CPU", "cores", (f"rate(process_cpu_seconds_total{{{HOST}}}[$__rate_interval])", "{{job}} {{instance}}"),
          stacked=True, says="Cores in use."),
    panel("Resident memory", "bytes", (f"process_resident_memory_bytes{{{HOST}}}", "{{job}} {{instance}}"),
          stacked=True),
    panel("Open files", "count", (f"process_open_fds{{{HOST}}}", "{{job}} {{instance}}")),
    panel("Open files, of those allowed", "ratio",
          (f"process_open_fds{{{HOST}}} / process_max_fds{{{HOST}}}", "{{job}} {{instance}}")),
    panel("Network, in", "bytes/s",
          (f"rate(process_network_receive_bytes_total{{{HOST}}}[$__rate_interval])", "{{job}} {{instance}}"),
          says="Of the process's network namespace: processes of one host show the same."),
    panel("Network, out", "bytes/s",
          (f"rate(process_network_transmit_bytes_total{{{HOST}}}[$__rate_interval])", "{{job}} {{instance}}"),
          says="Of the process's network namespace: processes of one host show the same."),
    panel("Up since", "seconds", (f"time() - process_start_time_seconds{{{HOST}}}", "{{job}} {{instance}}")),
    panel("Takes requests", "count", (f"sluice_ready{{{ALL}}}", "{{role}} {{instance}}"), most=1),
    panel("Time the model took to load", "seconds", (f"sluice_model_load_seconds{{{ALL}}}", "{{role}} {{instance}}")),
    panel("Weights loaded", "ratio", (f"sluice_model_load_progress_ratio{{{ALL}}}", "{{role}} {{instance}}"), most=1),
    panel("GPU temperature", "celsius", (f"sluice_gpu_temperature_celsius{{{ALL}}}", "{{instance}} {{gpu}}"),
          says=ON_GPUS),
    panel("Certificates are good for", "seconds",
          (f"sluice_certificate_expiry_timestamp_seconds{{{ALL}}} - time()", "{{role}} {{instance}} {{kind}}"),
          says="Absent where TLS is off."),
]

BOARDS = {
    "overview": ("Overview", OVERVIEW),
    "prefill": ("Prefill", PREFILL_BOARD),
    "decode": ("Decode", DECODE_BOARD),
    "transfer": ("KV transfer and compression", TRANSFER),
    "sessions": ("Sessions and cache", SESSIONS),
    "hosts": ("Hosts", HOSTS),
}


def main():
    folder, stale = pathlib.Path(__file__).parent, []
    for name, (title, panels) in BOARDS.items():
        path, text = folder / f"{name}.json", board_json(f"sluice-{name}", title, panels)
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.name)
    if stale:
        sys.exit(f"not as boards.py has it: {', '.join(stale)}; run deploy/dashboards/boards.py")


if __name__ == "__main__":
    main()
