"""
Control of the process over HTTP, for operators.

    GET /v1/control     what is in effect: pins, pauses, rate, and the states of entities
    POST /v1/ACTION     failover, failback, pause, resume, rate; reload, drain
                        (`wire/pairgate/control`)
    POST /v1/probe      probes troubled entities now (`wire/pairgate/probe`)
    GET /v1/permissions the actions that work for this client here (`domain/operators/permissions`)
    GET /v1/drill       the drill that is under way
    POST /v1/drill      begins a drill, /v1/end-drill ends it (`wire/pairgate/drill`)

Reading needs the right to listen to every entity, steering the right to manage every entity.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import attrs
import trio

from gateway.domain.access import Right
from gateway.domain.errors import BrokerError, NotSupported
from gateway.domain.operators.control import Action, ControlAnswer, ControlState, Operator, Order
from gateway.domain.operators.drill import DrillAnswer, DrillOrder, DrillState
from gateway.domain.operators.permissions import Permissions, Role
from gateway.domain.operators.probe import ACTION as PROBE
from gateway.domain.operators.probe import ProbeAnswer, ProbeOrder
from gateway.domain.operators.process import ProcessAction, ProcessAnswer, ProcessOrder
from gateway.frontends.admin.operators import (
    JSON,
    NOBODY,
    body_answer,
    check_json,
    check_right,
    is_operator,
    json_answer,
    operator_of,
    refused,
)
from gateway.frontends.auth import Authorizer
from gateway.wire.http.messages import Request, Response
from gateway.wire.pairgate import drill, permissions, probe
from gateway.wire.pairgate.control import (
    PREFIX,
    STATE_PATH,
    action_of,
    build_answer,
    parse_order,
    parse_process_order,
)

_OF_PAIR: Final = (Action.FAILOVER.value, Action.FAILBACK.value, PROBE, "redrive", "purge")
_OF_DRILLS: Final = tuple(path.removeprefix(PREFIX) for path in (drill.PATH, drill.END_PATH))
_OF_SYPHON: Final = (Action.PAUSE.value, Action.RESUME.value, Action.RATE.value)


class Controls(Protocol):
    """Executes orders, as `gateway.pairing.control.Control` does."""

    def execute(self, order: Order, operator: Operator) -> ControlAnswer: ...

    async def probe(self, order: ProbeOrder, operator: Operator) -> ProbeAnswer: ...

    def state(self, targets: Sequence[str] = ...) -> ControlState: ...


class Drilling(Protocol):
    """Begins and ends drills, as `gateway.pairing.drill.drills.Drills` does."""

    def begin(self, order: DrillOrder, operator: Operator) -> DrillAnswer: ...

    def end(self, operator: Operator) -> DrillAnswer: ...

    def state(self) -> DrillState: ...


class Steers(Protocol):
    """Executes orders to the process, as `gateway.app.process_control.ProcessControl` does."""

    async def execute(self, order: ProcessOrder, operator: Operator) -> ProcessAnswer: ...


@attrs.frozen
class ControlFrontend:
    """Answers the requests below `/v1/`."""

    authorizer: Authorizer
    control: Controls
    drills: Drilling | None = None  # None: this process has no pair
    process: Steers | None = None

    def takes(self, request: Request) -> bool:
        """True if the request is an order."""
        return request.method == "POST" and request.path.startswith(PREFIX)

    def check_head(self, request: Request) -> Response | None:
        """The refusal of a client that isn't an operator, before its body is read."""
        try:
            operator_of(self.authorizer, request)
        except BrokerError as error:
            return refused(error, self.authorizer)
        return None

    def answer(self, request: Request) -> Response | None:
        """
        The answer to a request that changes nothing; None if it is for another path.

        Raises:
            NotAuthorized: the client may not read the state.
        """
        if request.path not in {STATE_PATH, drill.PATH, permissions.PATH}:
            return None
        name = check_right(self.authorizer, request, Right.LISTEN, None)
        if request.path == permissions.PATH:
            return body_answer(200, JSON, permissions.build_permissions(self._may(name, request)))
        if request.path == drill.PATH:
            return body_answer(200, JSON, drill.build_answer(self._drills.state()))
        targets = request.query.get("targets")
        state = self.control.state() if targets is None else self.control.state(targets.split(","))
        return body_answer(200, JSON, build_answer(state))

    async def steer(self, request: Request) -> Response:
        """
        Execute an order; it is in effect when this returns, unless it is cancelled.

        Raises:
            NotAuthorized: the client isn't an operator.
            InvalidRequest: the order is malformed.
            NotSupported: this process has no pair, or no syphon.
        """
        await trio.lowlevel.checkpoint()
        operator = operator_of(self.authorizer, request)
        action = action_of(request.path)
        if action is None and request.path not in {drill.PATH, drill.END_PATH, probe.PATH}:
            return json_answer(404, {"error": f"{request.path} not found"})
        check_json(request)
        if action is not None:
            answer = build_answer(await self._execute(action, request, operator))
        elif request.path == probe.PATH:
            order = probe.parse_order(request.body)
            answer = probe.build_answer(await self.control.probe(order, operator))
        else:
            answer = drill.build_answer(self._drill(request, operator))
        return body_answer(200, JSON, answer)

    def _may(self, name: str, request: Request) -> Permissions:
        if not is_operator(self.authorizer, request):
            return Permissions(name=name, role=Role.READER, actions=())
        state = self.control.state(())
        drills = self.drills is not None and self.drills.state().allowed
        actions = (
            *(_OF_PAIR if state.has_pair else ()),
            *(_OF_SYPHON if state.has_syphon else ()),
            *(_OF_DRILLS if drills else ()),
            *(() if self.process is None else (each.value for each in ProcessAction)),
        )
        return Permissions(name=name or NOBODY, role=Role.OPERATOR, actions=actions)

    async def _execute(
        self, action: Action | ProcessAction, request: Request, operator: Operator
    ) -> ControlAnswer | ProcessAnswer:
        await trio.lowlevel.checkpoint()
        if isinstance(action, Action):
            return self.control.execute(parse_order(action, request.body), operator)
        order = parse_process_order(action, request.body)
        if self.process is None:
            raise NotSupported(f"this process knows no {action.value}")
        return await self.process.execute(order, operator)

    def _drill(self, request: Request, operator: Operator) -> DrillAnswer:
        if request.path == drill.PATH:
            return self._drills.begin(drill.parse_order(request.body), operator)
        drill.check_end(request.body)
        return self._drills.end(operator)

    @property
    def _drills(self) -> Drilling:
        if self.drills is None:
            raise NotSupported("this process has no pair, so there is nothing to drill")
        return self.drills
