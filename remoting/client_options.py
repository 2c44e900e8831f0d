"""What producers and consumers have in common: where brokers are found, and as whom."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from polymq.remoting.signing import Credentials, credentials_from


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Where a client finds its brokers, and how it proves who it is.

    Attributes:
        name_servers: `host:port` between `;`. By default those of the environment's `NAMESRV_ADDR`.
        address_server: the URL of a list of name servers, used where `name_servers` is empty.
        tls: encrypt connections with this context.
        access_key, secret_key: sign every request, for a server that has users. Both or neither.
    """

    name_servers: str = ""
    address_server: str = ""
    tls: ssl.SSLContext | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)

    def credentials(self) -> Credentials | None:
        """What requests are signed with. Raises LocalProtocolError: one of the keys is missing."""
        return credentials_from(self.access_key, self.secret_key)
