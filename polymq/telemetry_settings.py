"""The settings of telemetry: which collector of OpenTelemetry gets metrics and spans."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, model_validator

from polymq.asked_settings import URL_BYTES_MAX
from polymq.outside_urls import check_url
from polymq.setting_kinds import Live, Section

SPANS_PER_SECOND_MAX: Final = 10_000


class TelemetrySettings(Section):
    """A collector of OpenTelemetry for metrics and spans (OTLP). Needs `polymq[telemetry]`."""

    endpoint: Live[Annotated[str, Field(max_length=URL_BYTES_MAX)]] = ""
    """The base URL of the collector, such as `https://collector.example.com:4318`: metrics are sent
    to `/v1/metrics` below it, and spans to `/v1/traces`. https; http only to this machine and to
    `plain_hosts`. Redirects are not followed. Empty: nothing is sent."""
    plain_hosts: Live[list[str]] = Field(default=[])
    """Hosts that may be sent to without TLS, although names of topics and the header cross the
    network unencrypted then."""
    ca: Live[str] = ""
    """PEM file with the authorities that have to have issued the collector's certificate. Empty:
    those that the system trusts."""
    header_file: Live[str] = ""
    """File with one header that is sent with each request, mode 0600, such as
    `Authorization: Bearer 6f1c...`. Empty: none is sent."""
    metrics: bool = True
    """Whether metrics are sent: those of `/metrics`."""
    traces: bool = False
    """Whether spans are sent, for messages whose `traceparent` says that their trace is sampled.
    The server then reads its log once more, behind what is on the disk."""
    interval_seconds: Live[Annotated[float, Field(ge=1, le=3_600)]] = 15.0
    """How often metrics are sent."""
    timeout_seconds: Live[Annotated[float, Field(gt=0, le=60)]] = 10.0
    """How long the collector may take to answer a request."""
    spans_per_second_max: Live[Annotated[int, Field(ge=1, le=SPANS_PER_SECOND_MAX)]] = 100
    """How many spans are made a second. Further ones are dropped and counted."""

    @property
    def enabled(self) -> bool:
        """Whether anything is sent."""
        return bool(self.endpoint)

    @model_validator(mode="after")
    def _whole(self) -> TelemetrySettings:
        if not self.endpoint:
            if self.ca or self.plain_hosts or self.header_file:
                raise ValueError("endpoint has to be set, too")
            return self
        if "?" in self.endpoint:
            raise ValueError("endpoint must be a URL without a query")
        try:
            check_url(self.endpoint, self.plain_hosts)
        except ValueError as error:
            hint = ", which plain_hosts does not list" if "another machine" in str(error) else ""
            raise ValueError(f"endpoint {error}{hint}") from error
        return self
