#!/bin/sh
# The program, with the configuration of the packaged server. Another one wins: --config,
# POLYMQ_CONFIG, or polymq.toml in the working directory.
if [ -z "${POLYMQ_CONFIG:-}" ] && [ ! -f polymq.toml ] && [ -r /etc/polymq/polymq.toml ]; then
    export POLYMQ_CONFIG=/etc/polymq/polymq.toml
fi
exec /usr/lib/polymq/bin/polymq "$@"
