"""Metrics and spans for a collector of OpenTelemetry (docs/telemetry.md)."""
