"""
Control of the process over HTTP, for operators.

    GET /v1/control     what is in effect: pins, pauses, rate, and the states of entities
    POST /v1/ACTION     failover, failback, pause, resume, rate; reload, drain
                        (`wire/pairgate/control`)
    GET /v1/drill       the drill that is under way
    POST /v1/drill      begins a drill, /v1/end-drill ends it (`wire/pairgate/drill`)

Reading needs the right to listen to every entity, steering the right to manage every entity.
"""

from collections.abc import Sequence
from typing import Protocol

import attrs
import trio

from gateway.domain.access import Right
from gateway.domain.errors import BrokerError, NotSupported
from gateway.domain.operators.control import Action, ControlAnswer, ControlState, Operator, Order
from gateway.domain.operators.drill import DrillAnswer, DrillOrder, DrillState
from gateway.domain.operators.process import ProcessAction, ProcessAnswer, ProcessOrder
from gateway.frontends.admin.operators import (
    JSON,
    body_answer,
    check_json,
    check_right,
    json_answer,
    operator_of,
    refused,
)
from gateway.frontends.auth import Authorizer
from gateway.wire.http.messages import Request, Response
from gateway.wire.pairgate import drill
from gateway.wire.pairgate.control import (
    PREFIX,
    STATE_PATH,
    action_of,
    build_answer,
    parse_order,
    parse_process_order,
)


class Controls(Protocol):
    """Executes orders, as `gateway.pairing.control.Control` does."""

    def execute(self, order: Order, operator: Operator) -> ControlAnswer: ...

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
            return refused(error)
        return None

    def answer(self, request: Request) -> Response | None:
        """
        The answer to a request that changes nothing; None if it is for another path.

        Raises:
            NotAuthorized: the client may not read the state.
        """
        if request.path not in {STATE_PATH, drill.PATH}:
            return None
        check_right(self.authorizer, request, Right.LISTEN, None)
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
        drills = request.path in {drill.PATH, drill.END_PATH}
        if action is None and not drills:
            return json_answer(404, {"error": f"{request.path} not found"})
        check_json(request)
        if action is None:
            return body_answer(200, JSON, drill.build_answer(self._drill(request, operator)))
        return body_answer(200, JSON, build_answer(await self._execute(action, request, operator)))

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
