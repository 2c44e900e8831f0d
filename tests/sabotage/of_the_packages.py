"""Sabotages of what is installed, and of what leaves a machine for support."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

BUNDLE = "tests/polymq/test_support_bundle.py"
COMPLETION = "tests/polymq/commands/test_completion.py"
HEALTH = "tests/polymq/commands/test_health.py"
FACTS = "tests/packaging/test_repeated_facts.py"
CHART = "tests/packaging/test_helm_chart.py"

OF_THE_PACKAGES = (
    Sabotage(
        name="a-bundle-repeats-the-secrets-of-a-log",
        why="a log that has a password in it goes to support as it is",
        path="polymq/support_bundle.py",
        old='            raw = remove(text).encode("utf-8", "replace")\n',
        new='            raw = text.encode("utf-8", "replace")\n',
        tests=(BUNDLE,),
    ),
    Sabotage(
        name="secrets-are-shown-by-their-names",
        why="a setting that is a secret is printed in the bundle's settings",
        path="polymq/hiding.py",
        old="    if SECRET_NAMES.search(name):\n        return HIDDEN\n",
        new="    if SECRET_NAMES.match(name + name):\n        return HIDDEN\n",
        tests=(BUNDLE,),
    ),
    Sabotage(
        name="the-operators-token-goes-to-support",
        why="whoever reads the bundle may administer the server",
        path="polymq/hiding.py",
        old='    return Remover([*_secrets("", settings), *([] if token is None else [token])])\n',
        new='    return Remover([*_secrets("", settings)] if token else [])\n',
        tests=(BUNDLE,),
    ),
    Sabotage(
        name="a-bundle-for-everybody",
        why="every user of the machine reads the log's names and addresses",
        path="polymq/support_bundle.py",
        old="        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)\n",
        new="        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)\n",
        tests=(BUNDLE,),
    ),
    Sabotage(
        name="no-bundle-of-a-server-that-is-down",
        why="the bundle is not to be had when something does not work",
        path="polymq/support_bundle.py",
        old="            except (Failure, OSError) as error:\n",
        new="            except OSError as error:\n",
        tests=(BUNDLE,),
    ),
    Sabotage(
        name="completion-imports-all-commands",
        why="who presses Tab waits twice as long",
        path="polymq/commands/loading.py",
        old="            if name.startswith(incomplete)\n",
        new="            if self.get_command(ctx, name) and name.startswith(incomplete)\n",
        tests=(COMPLETION,),
    ),
    Sabotage(
        name="a-full-disk-is-healthy",
        why="a health check says that all is well while publishers are refused",
        path="polymq/commands/health.py",
        old='    if status != "ok":\n',
        new="    if not status:\n",
        tests=(HEALTH,),
    ),
    Sabotage(
        name="a-unit-that-kills-while-the-log-is-closed",
        why="systemd ends the server before its clients have gone, and each start recovers",
        path="packaging/systemd/polymq.service",
        old="TimeoutStopSec=60\n",
        new="TimeoutStopSec=5\n",
        tests=(FACTS,),
    ),
    Sabotage(
        name="a-chart-with-another-port",
        why="clients of a cluster find nobody at the port of the service",
        path="packaging/helm/polymq/templates/_helpers.tpl",
        old="amqp: { plain: 5672, tls: 5671 }\n",
        new="amqp: { plain: 5673, tls: 5671 }\n",
        tests=(CHART,),
    ),
)
