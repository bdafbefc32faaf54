"""Two engines that push bytes at each other, for tests of the layers above."""

import attrs

from gateway.wire.amqp.engine import Engine
from gateway.wire.amqp.events import LinkAttached, NewLink, Terminus
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.sasl import OK, Credentials, SaslClient, SaslServer

ANONYMOUS = Credentials(mechanism="ANONYMOUS")


def new_server(accepts=lambda credentials: OK, **limits):
    return Engine(EngineOptions(container_id="server", **limits), sasl=SaslServer(accepts))


def new_client(credentials=ANONYMOUS, wake=lambda: None, **limits):
    options = EngineOptions(container_id="client", **limits)
    return Engine(options, sasl=SaslClient(credentials), wake=wake)


def take_all(engine):
    return b"".join(iter(lambda: engine.data_to_send(65536), b""))


@attrs.define(eq=False)
class Pair:
    """A client and a server; `pump` brings everything to the other side."""

    client: Engine = attrs.field(factory=new_client)
    server: Engine = attrs.field(factory=new_server)

    def pump(self):
        """Exchange all bytes; return the new events of the server, and those of the client."""
        while sent := (take_all(self.client), take_all(self.server)):
            if not any(sent):
                break
            self.server.feed(sent[0])
            self.client.feed(sent[1])
        return list(self.server.events()), list(self.client.events())

    def open(self, **how):
        self.client.open()
        self.pump()
        self.server.open(**how)
        self.pump()
        return self

    def attach(self, session=None, **fields):
        """A link that the server has not answered: the client's id, and the server's event."""
        session = session or self.client.begin()
        fields = {"source": Terminus(address="s"), "target": Terminus(address="t")} | fields
        fields = {"name": f"link-{session}", "we_send": True} | fields
        ours = self.client.attach(session, NewLink(**fields))
        events, _ = self.pump()
        (attached,) = [event for event in events if isinstance(event, LinkAttached)]
        return ours, attached

    def link(self, credit=100, max_message_size=0, **fields):
        """A link that can be used: the client's id and the server's."""
        ours, attached = self.attach(**fields)
        self.server.accept(attached.link, max_message_size=max_message_size)
        receiver = (self.client, ours) if attached.we_send else (self.server, attached.link)
        self.pump()
        receiver[0].grant(receiver[1], credit)
        self.pump()
        return ours, attached.link
