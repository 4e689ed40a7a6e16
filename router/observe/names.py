"""Names of spans and attributes. OpenTelemetry's for GenAI are in development, so they stand here alone."""

from __future__ import annotations

from collections.abc import Mapping

# By the API's path; what a span's name begins with.
OPERATIONS: Mapping[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
}

QUEUE_SPAN = "queue"
DECISION_SPAN = "decision"
FIRST_BYTE_SPAN = "first_byte"
STREAM_SPAN = "stream"

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"

METHOD = "http.request.method"
ROUTE = "http.route"
STATUS_CODE = "http.response.status_code"
ERROR_TYPE = "error.type"

REQUEST_ID = "kvring.request_id"
RESULT = "kvring.result"
TIER = "kvring.tier"
TURN = "kvring.turn"
ATTEMPTS = "kvring.attempts"
POLICY = "kvring.policy"
REPLICA = "kvring.replica"
REASON = "kvring.reason"
EXPECTED_TOKENS = "kvring.expected_tokens"
WAIT_SECONDS = "kvring.expected_wait_seconds"
PREFILL_SECONDS = "kvring.expected_prefill_seconds"
RUNNER_UP = "kvring.runner_up"
REPLICAS = "kvring.replicas"
ATTEMPT = "kvring.attempt"
FAILOVER_REASON = "kvring.failover_reason"
# Before the name of a cause.
UNCACHED = "kvring.uncached_tokens."
