"""Prometheus metrics of the server; they contain no part of any prompt or answer."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Metrics of one server, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.requests = Counter("gpt2train_requests", "Requests answered.", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "gpt2train_request_seconds", "From arrival to the last byte.", ["path"], buckets=SECONDS, registry=registry
        )
        self.disconnects = Counter(
            "gpt2train_disconnects", "Clients that disconnected before the answer.", registry=registry
        )
        self.prompt_tokens = Counter("gpt2train_prompt_tokens", "Prompt tokens accepted.", registry=registry)
        self.generated_tokens = Counter("gpt2train_generated_tokens", "Tokens generated.", registry=registry)
        self.waiting = Gauge("gpt2train_waiting_sequences", "Sequences that wait for a row.", registry=registry)
        self.running = Gauge("gpt2train_running_rows", "Decoder rows in use.", registry=registry)
        self.steps = Gauge("gpt2train_decoder_steps", "Steps of the decoder since the start.", registry=registry)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
