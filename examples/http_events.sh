#!/bin/sh
# CloudEvents over HTTP with nothing but curl: subscribe, publish, receive, acknowledge.
#
#     sh examples/http_events.sh [http://127.0.0.1:8080]
set -eu
server=${1:-http://127.0.0.1:8080}
post="curl --silent --show-error --fail-with-body --request POST"

echo "A subscription that is asked for its events (with a member \"sink\" it would be a webhook):"
curl --silent --show-error --fail-with-body --request PUT "$server/subscriptions/example" \
    --header 'Content-Type: application/json' --data '{"topic": "sensors"}'
echo

echo "One event, in binary mode: attributes are headers, the body is the data."
$post "$server/topics/sensors" \
    --header 'ce-specversion: 1.0' --header "ce-id: $(date +%s%N)" \
    --header 'ce-source: /examples' --header 'ce-type: room1.temp' \
    --header 'Content-Type: text/plain' --data-binary '21.5 °C'

echo "Received:"
received=$($post "$server/topics/sensors/subscriptions/example:receive?maxEvents=10&maxWaitTime=5")
echo "$received"

echo "Acknowledged, so that it does not come again:"
token=$(echo "$received" | sed 's/.*"lockToken":"\([^"]*\)".*/\1/')
$post "$server/topics/sensors/subscriptions/example:acknowledge" \
    --header 'Content-Type: application/json' --data "{\"lockTokens\": [\"$token\"]}"
echo
