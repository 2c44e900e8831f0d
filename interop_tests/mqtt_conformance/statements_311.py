"""The 141 normative statements of MQTT 3.1.1 (OASIS Standard, 29 October 2014, appendix B)."""

from __future__ import annotations

from typing import Final

from interop_tests.mqtt_conformance.statements import Concerns, Statement, marker, table

SERVER, CLIENT, BOTH = Concerns.SERVER, Concerns.CLIENT, Concerns.BOTH

STATEMENTS: Final = table(
    # --- 1.5 and 2 Data representation and format of packets ---------------------------------
    Statement(
        "MQTT-1.5.3-1",
        BOTH,
        "Text is well-formed UTF-8, without surrogates; other text closes.",
    ),
    Statement("MQTT-1.5.3-2", BOTH, "Text has no character U+0000; it closes."),
    Statement("MQTT-1.5.3-3", BOTH, "U+FEFF within a text is a character and stays there."),
    Statement("MQTT-2.2.2-1", BOTH, "Reserved flags of the fixed header have their listed value."),
    Statement("MQTT-2.2.2-2", BOTH, "Invalid flags close."),
    Statement(
        "MQTT-2.3.1-1",
        BOTH,
        "SUBSCRIBE, UNSUBSCRIBE and PUBLISH above QoS 0 have a packet identifier that is not 0.",
    ),
    Statement(
        "MQTT-2.3.1-2",
        CLIENT,
        "A new packet of these gets a packet identifier that is free.",
    ),
    Statement(
        "MQTT-2.3.1-3",
        CLIENT,
        "A packet that is sent again has the same packet identifier.",
    ),
    Statement("MQTT-2.3.1-4", SERVER, "Both hold for a server that sends PUBLISH above QoS 0."),
    Statement("MQTT-2.3.1-5", BOTH, "A PUBLISH of QoS 0 has no packet identifier."),
    Statement(
        "MQTT-2.3.1-6",
        BOTH,
        "PUBACK, PUBREC and PUBREL have the PUBLISH's packet identifier.",
    ),
    Statement("MQTT-2.3.1-7", SERVER, "SUBACK and UNSUBACK have the request's packet identifier."),
    # --- 3.1 CONNECT -------------------------------------------------------------------------
    Statement("MQTT-3.1.0-1", CLIENT, "The first packet on a connection is CONNECT."),
    Statement("MQTT-3.1.0-2", SERVER, "A second CONNECT is a violation and closes."),
    Statement(
        "MQTT-3.1.2-1",
        SERVER,
        "Under another protocol name, CONNECT is not processed by this standard.",
    ),
    Statement("MQTT-3.1.2-2", SERVER, "An unknown protocol level gets CONNACK 1, and is closed."),
    Statement("MQTT-3.1.2-3", SERVER, "The reserved connect flag is checked to be 0; it closes."),
    Statement(
        "MQTT-3.1.2-4",
        BOTH,
        "Clean Session 0 goes on with the session, makes a new one where there is none, and "
        "stores it after the connection.",
    ),
    Statement(
        "MQTT-3.1.2-5",
        SERVER,
        "While the client is away, messages of QoS 1 and 2 are stored for it.",
    ),
    Statement(
        "MQTT-3.1.2-6",
        BOTH,
        "Clean Session 1 discards the session; the new one lasts as long as the connection.",
    ),
    Statement("MQTT-3.1.2.7", SERVER, "Retained messages stay when a session ends."),
    Statement(
        "MQTT-3.1.2-8",
        SERVER,
        "A will is stored, and published when the connection closes without DISCONNECT.",
    ),
    Statement("MQTT-3.1.2-9", CLIENT, "Will Flag 1: will topic and message are there."),
    Statement(
        "MQTT-3.1.2-10",
        SERVER,
        "A will that was published, or ended by DISCONNECT, is gone.",
    ),
    Statement(
        "MQTT-3.1.2-11",
        CLIENT,
        "Will Flag 0: QoS, retain and fields of a will are not there.",
    ),
    Statement("MQTT-3.1.2-12", SERVER, "Will Flag 0: no will is published."),
    Statement("MQTT-3.1.2-13", CLIENT, "Will Flag 0: Will QoS is 0."),
    Statement("MQTT-3.1.2-14", CLIENT, "Will Flag 1: Will QoS is 0, 1 or 2."),
    Statement("MQTT-3.1.2-15", CLIENT, "Will Flag 0: Will Retain is 0."),
    Statement("MQTT-3.1.2-16", SERVER, "Will Retain 0: the will is not retained."),
    Statement("MQTT-3.1.2-17", SERVER, "Will Retain 1: the will is retained."),
    Statement("MQTT-3.1.2-18", CLIENT, "User Name Flag 0: there is no user name."),
    Statement("MQTT-3.1.2-19", CLIENT, "User Name Flag 1: there is a user name."),
    Statement("MQTT-3.1.2-20", CLIENT, "Password Flag 0: there is no password."),
    Statement("MQTT-3.1.2-21", CLIENT, "Password Flag 1: there is a password."),
    Statement("MQTT-3.1.2-22", CLIENT, "There is no password without a user name."),
    Statement("MQTT-3.1.2-23", CLIENT, "A client with nothing to say sends PINGREQ in time."),
    Statement(
        "MQTT-3.1.2-24",
        SERVER,
        "A client that is silent for 1.5 keep-alive periods is closed.",
    ),
    Statement("MQTT-3.1.3-1", CLIENT, "The payload's fields are in their order."),
    Statement("MQTT-3.1.3-2", BOTH, "The client identifier identifies the session."),
    Statement("MQTT-3.1.3-3", CLIENT, "The client identifier is there, as the first field."),
    Statement("MQTT-3.1.3-4", CLIENT, "The client identifier is UTF-8 text."),
    Statement(
        "MQTT-3.1.3-5",
        SERVER,
        "Client identifiers of 1 to 23 letters and digits are allowed.",
    ),
    Statement(
        "MQTT-3.1.3-6",
        SERVER,
        "A client with an empty identifier gets a unique one, if it may connect.",
    ),
    Statement("MQTT-3.1.3-7", CLIENT, "An empty client identifier needs Clean Session 1."),
    Statement(
        "MQTT-3.1.3-8",
        SERVER,
        "An empty one with Clean Session 0 gets CONNACK 2, and is closed.",
    ),
    Statement("MQTT-3.1.3-9", SERVER, "A refused client identifier gets CONNACK 2, and is closed."),
    Statement("MQTT-3.1.3-10", CLIENT, "The will topic is UTF-8 text."),
    Statement("MQTT-3.1.3-11", CLIENT, "The user name is UTF-8 text."),
    Statement("MQTT-3.1.4-1", SERVER, "A CONNECT of the wrong format closes, without CONNACK."),
    Statement(
        "MQTT-3.1.4-2",
        SERVER,
        "A connection whose client identifier comes again is closed.",
    ),
    Statement("MQTT-3.1.4-3", SERVER, "Clean Session is processed."),
    Statement("MQTT-3.1.4-4", SERVER, "A CONNECT that is accepted gets CONNACK 0."),
    Statement("MQTT-3.1.4-5", SERVER, "Nothing behind a rejected CONNECT is processed."),
    # --- 3.2 CONNACK -------------------------------------------------------------------------
    Statement("MQTT-3.2.0-1", SERVER, "The first packet from the server is CONNACK."),
    Statement("MQTT-3.2.2-1", SERVER, "Clean Session 1: Session Present 0 and code 0."),
    Statement("MQTT-3.2.2-2", SERVER, "Clean Session 0 and a session: Session Present 1."),
    Statement("MQTT-3.2.2-3", SERVER, "No session: Session Present 0 and code 0."),
    Statement("MQTT-3.2.2-4", SERVER, "A code other than 0 comes with Session Present 0."),
    Statement("MQTT-3.2.2-5", SERVER, "A code other than 0 closes."),
    Statement("MQTT-3.2.2-6", SERVER, "Where no code fits, the server closes without CONNACK."),
    # --- 3.3 PUBLISH -------------------------------------------------------------------------
    Statement("MQTT-3.3.1-1", BOTH, "A PUBLISH that is sent again has DUP 1."),
    Statement("MQTT-3.3.1-2", BOTH, "A PUBLISH of QoS 0 has DUP 0."),
    Statement(
        "MQTT-3.3.1-3",
        SERVER,
        "DUP to a subscriber does not depend on the publisher's DUP.",
    ),
    Statement("MQTT-3.3.1-4", BOTH, "There is no QoS 3; it closes."),
    Statement(
        "MQTT-3.3.1-5",
        SERVER,
        "RETAIN 1 stores the message and its QoS for later subscribers.",
    ),
    Statement(
        "MQTT-3.3.1-6",
        SERVER,
        "A new subscription gets the last retained message of each topic.",
    ),
    Statement("MQTT-3.3.1-7", SERVER, "RETAIN 1 with QoS 0 discards the former retained message."),
    Statement("MQTT-3.3.1-8", SERVER, "What comes because of a new subscription has RETAIN 1."),
    Statement("MQTT-3.3.1-9", SERVER, "What comes to an established subscription has RETAIN 0."),
    Statement(
        "MQTT-3.3.1-10",
        SERVER,
        "An empty payload with RETAIN 1 is delivered, and removes the retained message.",
    ),
    Statement("MQTT-3.3.1-11", SERVER, "An empty message is not retained."),
    Statement("MQTT-3.3.1-12", SERVER, "RETAIN 0 leaves the retained message as it is."),
    Statement("MQTT-3.3.2-1", BOTH, "The topic name is the first field, and UTF-8 text."),
    Statement("MQTT-3.3.2-2", BOTH, "A topic name has no wildcards."),
    Statement("MQTT-3.3.2-3", SERVER, "The topic name matches the subscription's filter."),
    Statement("MQTT-3.3.4-1", BOTH, "A PUBLISH is answered as its QoS asks."),
    Statement(
        "MQTT-3.3.5-1",
        SERVER,
        "Of overlapping subscriptions, the highest QoS is respected.",
    ),
    Statement(
        "MQTT-3.3.5-2",
        SERVER,
        "A PUBLISH that is not allowed is acknowledged all the same, or closes.",
    ),
    # --- 3.6 PUBREL, 3.8 SUBSCRIBE, 3.9 SUBACK -----------------------------------------------
    Statement("MQTT-3.6.1-1", BOTH, "PUBREL has the flags 0010, and closes with others."),
    Statement("MQTT-3.8.1-1", BOTH, "SUBSCRIBE has the flags 0010, and closes with others."),
    Statement("MQTT-3.8.3-1", CLIENT, "Topic filters are UTF-8 text."),
    Statement(
        "MQTT-3.8.3-2",
        SERVER,
        "A server without wildcards rejects filters that have them.",
        "does not apply: the server supports wildcards",
    ),
    Statement("MQTT-3.8.3-3", CLIENT, "SUBSCRIBE has at least one filter."),
    Statement("MQTT-3-8.3-4", SERVER, "Reserved bits of the requested QoS, and QoS 3, close."),
    Statement("MQTT-3.8.4-1", SERVER, "SUBSCRIBE is answered with SUBACK."),
    Statement("MQTT-3.8.4-2", SERVER, "SUBACK has the packet identifier of SUBSCRIBE."),
    Statement(
        "MQTT-3.8.4-3",
        SERVER,
        "The same filter again replaces the subscription, sends retained messages again, and "
        "interrupts nothing.",
    ),
    Statement(
        "MQTT-3.8.4-4",
        SERVER,
        "Several filters are as several SUBSCRIBEs, with one SUBACK.",
    ),
    Statement(
        "MQTT-3.8.4-5",
        SERVER,
        "SUBACK has a code for each filter: the granted QoS, or that it failed.",
    ),
    Statement(
        "MQTT-3.8.4-6",
        SERVER,
        "Messages come with the lower of the publisher's QoS and the granted one.",
    ),
    Statement("MQTT-3.9.3-1", SERVER, "The codes are in the order of the filters."),
    Statement("MQTT-3.9.3-2", SERVER, "The codes are 0, 1, 2 and 0x80."),
    # --- 3.10 UNSUBSCRIBE, 3.12 PINGREQ, 3.14 DISCONNECT -------------------------------------
    Statement("MQTT-3.10.1-1", BOTH, "UNSUBSCRIBE has the flags 0010, and closes with others."),
    Statement("MQTT-3.10.3-1", CLIENT, "Topic filters are UTF-8 text."),
    Statement("MQTT-3.10.3-2", CLIENT, "UNSUBSCRIBE has at least one filter."),
    Statement(
        "MQTT-3.10.4-1",
        SERVER,
        "Filters are compared character by character; an equal one is deleted.",
    ),
    Statement("MQTT-3.10.4-2", SERVER, "Nothing new is queued for the client."),
    Statement("MQTT-3.10.4-3", SERVER, "Deliveries that have begun are completed."),
    Statement(
        "MQTT-3.10.4-4",
        SERVER,
        "UNSUBACK answers, with the packet identifier of UNSUBSCRIBE.",
    ),
    Statement("MQTT-3.10.4-5", SERVER, "UNSUBACK comes also if nothing was deleted."),
    Statement(
        "MQTT-3.10.4-6",
        SERVER,
        "Several filters are as several UNSUBSCRIBEs, with one UNSUBACK.",
    ),
    Statement("MQTT-3.12.4-1", SERVER, "PINGREQ is answered with PINGRESP."),
    Statement(
        "MQTT-3.14.1-1",
        SERVER,
        "Reserved flags of DISCONNECT are checked; others than 0 close.",
    ),
    Statement("MQTT-3.14.4-1", CLIENT, "A client closes after DISCONNECT."),
    Statement("MQTT-3.14.4-2", CLIENT, "A client sends nothing after DISCONNECT."),
    Statement("MQTT-3.14.4-3", SERVER, "DISCONNECT discards the will."),
    # --- 4 Operation -------------------------------------------------------------------------
    Statement("MQTT-4.1.0-1", BOTH, "The session is stored as long as it lasts."),
    Statement("MQTT-4.1.0-2", BOTH, "A session lasts at least as long as its connection."),
    Statement("MQTT-4.3.1-1", BOTH, "QoS 0 is sent with QoS 0 and DUP 0."),
    Statement(
        "MQTT-4.3.2-1",
        BOTH,
        "QoS 1, sender: a free packet identifier, DUP 0, and unacknowledged until PUBACK.",
    ),
    Statement(
        "MQTT-4.3.2-2",
        BOTH,
        "QoS 1, receiver: PUBACK; after it the same packet identifier is a new message.",
    ),
    Statement(
        "MQTT-4.3.3-1",
        BOTH,
        "QoS 2, sender: a free packet identifier, DUP 0, PUBREL after PUBREC, and no PUBLISH "
        "after PUBREL.",
    ),
    Statement(
        "MQTT-4.3.3-2",
        BOTH,
        "QoS 2, receiver: PUBREC, no second delivery before PUBREL, PUBCOMP, and then a new "
        "message.",
    ),
    Statement(
        "MQTT-4.4.0-1",
        BOTH,
        "What is unacknowledged is sent again when the session goes on, with its packet "
        "identifier.",
    ),
    Statement(
        "MQTT-4.5.0-1",
        SERVER,
        "A message is added to the sessions whose subscriptions match.",
    ),
    Statement("MQTT-4.5.0-2", CLIENT, "A client acknowledges whatever it does with a message."),
    Statement("MQTT-4.6.0-1", CLIENT, "A client sends again in the order of the first time."),
    Statement("MQTT-4.6.0-2", CLIENT, "A client sends PUBACKs in the order of the messages."),
    Statement("MQTT-4.6.0-3", CLIENT, "A client sends PUBRECs in the order of the messages."),
    Statement("MQTT-4.6.0-4", CLIENT, "A client sends PUBRELs in the order of the PUBRECs."),
    Statement("MQTT-4.6.0-5", SERVER, "By default every topic is ordered."),
    Statement(
        "MQTT-4.6.0-6",
        SERVER,
        "On an ordered topic the server follows the rules of clients, and keeps a "
        "publisher's order.",
    ),
    Statement("MQTT-4.7.1-1", BOTH, "Wildcards are for filters, not for topic names."),
    Statement("MQTT-4.7.1-2", CLIENT, "# is a level of its own, and the last one."),
    Statement("MQTT-4.7.1-3", CLIENT, "+ is a level of its own, at any position."),
    Statement(
        "MQTT-4.7.2-1",
        SERVER,
        "A filter that begins with a wildcard matches no topic that begins with $.",
    ),
    Statement("MQTT-4.7.3-1", BOTH, "Topic names and filters have at least one character."),
    Statement("MQTT-4.7.3-2", BOTH, "Topic names and filters have no U+0000."),
    Statement(
        "MQTT-4.7.3-3",
        BOTH,
        "Topic names and filters have at most 65,535 bytes.",
        "the field's length has two bytes: nobody can send a longer one",
    ),
    Statement(
        "MQTT-4.7.3-4",
        SERVER,
        "Names and filters are compared as they are, without normalization.",
    ),
    Statement("MQTT-4.8.0-1", BOTH, "A violation of the protocol closes."),
    Statement(
        "MQTT-4.8.0-2",
        BOTH,
        "A transient error closes the connection that it concerns.",
        "a client cannot cause such an error; tests/durability has failing disks",
    ),
    # --- 6 and 7 WebSocket and conformance ---------------------------------------------------
    Statement("MQTT-6.0.0-1", BOTH, "Packets are in binary frames; others close."),
    Statement("MQTT-6.0.0-2", BOTH, "Packets need not be aligned with frames."),
    Statement("MQTT-6.0.0-3", CLIENT, "A client offers the subprotocol mqtt."),
    Statement("MQTT-6.0.0-4", SERVER, "The server selects the subprotocol mqtt."),
    Statement(
        "MQTT-7.0.0-1",
        SERVER,
        "A server that connects to other servers conforms as a client, too.",
        "does not apply: the server opens no MQTT connections",
    ),
    Statement(
        "MQTT-7.0.0-2",
        BOTH,
        "No extension is required of the other side.",
        "every test shows it: none uses an extension",
    ),
    Statement(
        "MQTT-7.1.1-1",
        SERVER,
        "A server supports a transport that is an ordered stream of bytes.",
    ),
    Statement("MQTT-7.1.2-1", CLIENT, "A client supports such a transport."),
)

shows = marker(STATEMENTS)
