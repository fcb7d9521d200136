"""Simulated NVML calls about events: sets, who is in them, and waiting."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpuplugin.sim.abi import Code, Failed, fill, number, put, put_handle
from gpuplugin.sim.nvml_session import POLL_SECONDS, EventSet, Key, Look, gpu_call, library_call

if TYPE_CHECKING:
    from gpuplugin.sim.nvml_session import Session
    from gpuplugin.sim.snapshot import EventRecord, GpuRecord

XID_CRITICAL_ERROR = 0x8
_NO_INSTANCE = 0xFFFFFFFF


@library_call("nvmlEventSetCreate")
def _create(look: Look, out: Any) -> None:
    session = look.session
    newest = max((event.seq for event in look.now.events), default=0)
    handle = session.handle_of(Key("events", f"{session.new_number()}"))
    session.event_sets[handle] = EventSet(newest, set())
    put_handle(out, handle)


@library_call("nvmlEventSetFree")
def _free(look: Look, value: Any) -> None:
    session, events = look.session, _event_set(look.session, value)
    with session.changed:
        del session.event_sets[session.handle_of(session.key_of(value, "events"))]
        events.ended = Code.INVALID_ARGUMENT
        session.changed.notify_all()


@gpu_call("nvmlDeviceGetSupportedEventTypes")
def _supported(_look: Look, _gpu: GpuRecord, out: Any) -> None:
    put(out, XID_CRITICAL_ERROR)


@gpu_call("nvmlDeviceRegisterEvents")
def _register(look: Look, gpu: GpuRecord, types: Any, value: Any) -> None:
    if number(types) & ~XID_CRITICAL_ERROR:
        raise Failed(Code.NOT_SUPPORTED)
    _event_set(look.session, value).gpus.add(gpu.uuid)


@library_call("nvmlEventSetWait", "nvmlEventSetWait_v2")
def _wait(look: Look, value: Any, out: Any, milliseconds: Any) -> None:
    session = look.session
    events = _event_set(session, value)
    deadline = time.monotonic() + number(milliseconds) / 1000
    with session.changed:
        while (found := _next(session, events)) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Failed(Code.TIMEOUT)
            session.changed.wait(min(left, POLL_SECONDS))
            if events.ended is not None:
                raise Failed(events.ended)
    gpu, event = found
    fill(
        out,
        device=session.handle_of(Key("gpu", gpu)),
        eventType=XID_CRITICAL_ERROR,
        eventData=event.xid,
        gpuInstanceId=_NO_INSTANCE if event.gi is None else event.gi,
        computeInstanceId=_NO_INSTANCE if event.ci is None else event.ci,
    )


def _next(session: Session, events: EventSet) -> tuple[str, EventRecord] | None:
    now = session.now()
    if not now.events or now.events[-1].seq <= events.delivered:
        return None
    uuids = {gpu.index: gpu.uuid for gpu in now.gpus}
    for event in now.events:
        if event.seq > events.delivered:
            events.delivered = event.seq
            if uuids.get(event.gpu) in events.gpus:
                return uuids[event.gpu], event
    return None


def _event_set(session: Session, value: Any) -> EventSet:
    try:
        return session.event_sets[session.handle_of(session.key_of(value, "events"))]
    except KeyError:
        raise Failed(Code.INVALID_ARGUMENT) from None
