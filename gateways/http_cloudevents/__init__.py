"""CloudEvents over HTTP: publish, webhooks and pull. README.md tells the way of an event."""
