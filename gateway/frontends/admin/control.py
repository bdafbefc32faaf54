"""
The control calls of operators over HTTP: `/v1/NAME` for each row of the table
(`wire/pairgate/control_calls`).

A call that reads needs the right to listen to every entity, each other one the right to manage
every entity, but where its row says less.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import attrs

from gateway.domain.errors import BrokerError, NotSupported
from gateway.domain.operators.control import Operator
from gateway.domain.operators.permissions import Permissions, Role
from gateway.frontends.admin.operators import (
    JSON,
    body_answer,
    check_json,
    is_operator,
    json_answer,
    operator_of,
    refused,
)
from gateway.frontends.auth import Authorizer
from gateway.wire.http.messages import Request, Response
from gateway.wire.pairgate.control_call import PREFIX, ControlCall
from gateway.wire.pairgate.control_calls import PERMISSIONS

Q = TypeVar("Q")
A = TypeVar("A")


def _always() -> bool:
    return True


@attrs.frozen
class Executor(Generic[Q, A]):
    """A part of this process that executes a control call."""

    call: ControlCall[Q, A]
    execute: Callable[[Q, Operator], Awaitable[A]]
    works: Callable[[], bool] = _always  # False: each request would be refused


def at_once(execute: Callable[[Q, Operator], A]) -> Callable[[Q, Operator], Awaitable[A]]:
    """Let a part that doesn't wait execute a call."""

    async def wait(request: Q, operator: Operator) -> A:  # noqa: ASYNC124 its caller awaits
        return execute(request, operator)

    return wait


@attrs.frozen(eq=False)
class ControlFrontend:
    """
    Answers the calls of the table. `executors` are those of this process; it refuses the other
    calls.
    """

    authorizer: Authorizer
    calls: Sequence[ControlCall[Any, Any]]
    executors: Sequence[Executor[Any, Any]]

    def takes(self, request: Request) -> bool:
        """True if the request is for a call, or for one that doesn't exist."""
        return self._call(request) is not None or (
            request.method == "POST" and request.path.startswith(PREFIX)
        )

    def check_head(self, request: Request) -> Response | None:
        """The refusal of a client without the right to do this, before its body is read."""
        try:
            self._operator(request)
        except BrokerError as error:
            return refused(error, self.authorizer)
        return None

    async def answer(self, request: Request) -> Response:
        """
        Execute a call that `takes` names; an order is in effect when this returns, unless it is
        cancelled.

        Raises:
            NotAuthorized: the client doesn't have the right.
            InvalidRequest: the request is malformed.
            NotSupported: this process doesn't execute that call.
            BrokerError: as the part that executes it.
        """
        operator, call = self._operator(request), self._call(request)
        if call is None:
            return json_answer(404, {"error": f"{request.path} not found"})
        # Commands of other versions tell no type. Browsers always tell the origin.
        is_old = request.path == call.old_path and request.headers.get("Origin") is None
        if not call.reads and not is_old:
            check_json(request)
        if call is PERMISSIONS:
            answer: Any = self._permissions(request, operator)
        else:
            answer = await self._execute(call, request, operator)
        return body_answer(200, JSON, call.build_answer(answer))

    def _call(self, request: Request) -> ControlCall[Any, Any] | None:
        return next((each for each in self.calls if each.is_at(request.method, request.path)), None)

    def _operator(self, request: Request) -> Operator:
        """The client, if it has the least right that such a request needs."""
        call = self._call(request)
        if call is None:
            return operator_of(self.authorizer, request)
        return operator_of(self.authorizer, request, call.least_right)

    async def _execute(
        self, call: ControlCall[Any, Any], request: Request, operator: Operator
    ) -> Any:
        found = next((each for each in self.executors if each.call is call), None)
        if found is None:
            raise NotSupported(call.why_not)
        order = call.parse(request.body, request.query)
        if call.right_of(order) is not call.least_right:
            operator_of(self.authorizer, request, call.right_of(order))
        return await found.execute(order, operator)

    def _permissions(self, request: Request, operator: Operator) -> Permissions:
        if not is_operator(self.authorizer, request):
            return Permissions(name=operator.name, role=Role.READER, actions=())
        working = [each.call for each in self.executors if each.works()]
        actions = tuple(each.name for each in self.calls if each in working and not each.reads)
        return Permissions(name=operator.name, role=Role.OPERATOR, actions=actions)
