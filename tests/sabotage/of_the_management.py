"""Sabotages of RabbitMQ's management API."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

LISTS = "tests/polymq/management/test_lists.py"
REGEXES = "tests/polymq/management/test_regexes.py"
DEFINITIONS = "tests/polymq/management/test_definitions.py"
PROPERTIES = "tests/polymq/management/test_properties.py"
PARTS = "tests/polymq/management/test_small_parts.py"
CALLERS = "tests/polymq/management/test_callers.py"
PASSWORDS = "tests/broker/test_rabbit_passwords.py"
LETTERS = "tests/polymq/admin/test_dead_letters.py"

OF_THE_MANAGEMENT = (
    Sabotage(
        name="a-fast-reader-of-a-long-list-has-the-loop",
        why="the list of a hundred thousand queues stops all clients for 50 ms, again and again",
        path="polymq/admin/written_answers.py",
        old="        size = 0\n        for part in self._steps:\n",
        new="        size, self._begin = 0, 1e9\n        for part in self._steps:\n",
        tests=("tests/polymq/admin/test_written_answers.py",),
    ),
    Sabotage(
        name="a-prefix-of-names-is-everything",
        why="a user of RabbitMQ gets rights to all queues by ^app.*",
        path="polymq/management/regexes.py",
        old="    return (*levels, REST)\n",
        new="    return EVERYTHING\n",
        tests=(REGEXES,),
    ),
    Sabotage(
        name="an-exact-name-opens-names-below-it",
        why="^orders$ also allows orders.eu",
        path="polymq/management/regexes.py",
        old="        return (EXACT, name, REST)\n",
        new='        return (*name.split("."), REST)\n',
        tests=(REGEXES,),
    ),
    Sabotage(
        name="alternatives-may-be-repeated",
        why="a filter of a list stops the server: a name has too many ways to match",
        path="polymq/management/filters.py",
        old="            if inner != [_Cost(0, 1)]:\n",
        new="            if inner[0].repeats:\n",
        tests=(LISTS,),
    ),
    Sabotage(
        name="long-names-are-compared-whole",
        why="a topic with a long name stops the server as soon as somebody filters",
        path="polymq/management/filters.py",
        old="self._pattern.search(name, 0, self._compared)",
        new="self._pattern.search(name)",
        tests=(LISTS,),
    ),
    Sabotage(
        name="expressions-without-anchor-are-taken",
        why="an expression is taken that means something else in RabbitMQ",
        path="polymq/management/regexes.py",
        old='    if not alternative.startswith("^"):\n',
        new="    if not alternative:\n",
        tests=(REGEXES,),
    ),
    Sabotage(
        name="a-tag-makes-an-operator",
        why="a tag of one's own in RabbitMQ becomes a role with rights",
        path="polymq/management/tags.py",
        old="        if tag in _RESERVED:\n",
        new="        if tag in ():\n",
        tests=(PARTS,),
    ),
    Sabotage(
        name="a-list-is-made-in-one-step",
        why="a hundred thousand queues stop the loop",
        path="polymq/management/lists.py",
        old="STEP_ROWS: Final = 20\n",
        new="STEP_ROWS: Final = 1_000_000\n",
        tests=(LISTS,),
    ),
    Sabotage(
        name="names-are-sorted-in-stretches-only",
        why="pages of a long list are out of order",
        path="polymq/management/lists.py",
        old="        return iter(heapq.merge(*stretches, key=name, reverse=wanted.reverse))\n",
        new="        return (entry for stretch in stretches for entry in stretch)\n",
        tests=(LISTS,),
    ),
    Sabotage(
        name="expressions-may-repeat-what-is-repeated",
        why="one request stops the loop for ever",
        path="polymq/management/filters.py",
        old="            if inner != [_Cost(0, 1)]:\n",
        new="            if inner[0].ways > 1:\n",
        tests=(LISTS,),
    ),
    Sabotage(
        name="hidden-queues-are-shown",
        why="a user sees the names of queues that are none of its business",
        path="polymq/management/callers.py",
        old="        return bool(filters) and all(decide(read, address).allowed for address in "
        "filters)\n",
        new="        return True\n",
        tests=(CALLERS,),
    ),
    Sabotage(
        name="everybody-with-a-password-comes-in",
        why="any user of the broker may use the management API",
        path="polymq/management/callers.py",
        old="        if MANAGEMENT_ROLES.intersection(roles):\n",
        new="        if True:\n",
        tests=(CALLERS,),
    ),
    Sabotage(
        name="guest-is-imported-as-administrator",
        why="RabbitMQ's guest, whose password everybody knows, may do everything from anywhere",
        path="polymq/management/plans.py",
        old="    if name == GUEST:\n        text =",
        new="    if not name:\n        text =",
        tests=(DEFINITIONS,),
    ),
    Sabotage(
        name="policies-are-dropped-in-silence",
        why="messages live for ever that a policy let expire",
        path="polymq/management/plans.py",
        old='    return Remark("policies", name, f"{\', \'.join(keys)}: {POLICIES}")\n',
        new="    return None\n",
        tests=(DEFINITIONS,),
    ),
    Sabotage(
        name="bindings-share-a-name",
        why="DELETE removes another binding than the one that was named",
        path="polymq/management/bindings.py",
        old='        return f"{key}~{digest[:HASH_CHARACTERS]}"\n',
        new='        return f"{key}~{digest[:0]}"\n',
        tests=(PROPERTIES,),
    ),
    Sabotage(
        name="a-hash-of-rabbitmq-fits-every-password",
        why="whoever knows the name of an imported user is that user",
        path="broker/accounts/passwords.py",
        old="    found = hashlib.new(kind, salt + cut).digest()\n",
        new="    found = digest\n",
        tests=(PASSWORDS,),
    ),
    Sabotage(
        name="hashes-of-rabbitmq-stay",
        why="weak hashes are kept for ever",
        path="broker/accounts/passwords.py",
        old='    return not digest.startswith("scrypt$") or bool(scram_iterations and not keys)\n',
        new='    return digest.startswith("$7$") or bool(scram_iterations and not keys)\n',
        tests=(PASSWORDS,),
    ),
    Sabotage(
        name="bindings-without-ends",
        why="a dry run says that a binding can be taken, and the import refuses it",
        path="polymq/management/plans.py",
        old="            lost.add((plan.section, plan.name))\n",
        new="            pass\n",
        tests=(DEFINITIONS,),
    ),
    Sabotage(
        name="dry-runs-do-not-look",
        why="a dry run promises what the redrive cannot do",
        path="polymq/admin/dead_letters.py",
        old="                sender.check(letter)\n",
        new="                pass\n",
        tests=(LETTERS,),
    ),
    Sabotage(
        name="names-of-numbers",
        why="a file with a mistake makes users that nobody meant",
        path="polymq/management/plans.py",
        old='            text_of(value, "user" if section in _OF_USERS else "name")\n',
        new='            value = {**value, "user": str(value.get("user")), "name": '
        'str(value.get("name"))}\n',
        tests=(DEFINITIONS,),
    ),
)
