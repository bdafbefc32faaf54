"""Interceptors, and the namespace that calls them around each of its operations."""

from gateway.interception.interceptor import (
    RECEIVES,
    Call,
    CallKind,
    Interceptor,
    InterceptorChain,
    SplittingInterceptor,
    WaitInterceptor,
)

__all__ = [
    "RECEIVES",
    "Call",
    "CallKind",
    "Interceptor",
    "InterceptorChain",
    "SplittingInterceptor",
    "WaitInterceptor",
]
