"""Loading C libraries: what is refused and why, layouts, the interpreter lock, the C example."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.ops import COMPLETION, Memory
from kvxfer.transport.stubs import SLOTS
from kvxfer_capi import binding
from kvxfer_capi.ops import OPS

SPEC = Path(__file__).resolve().parents[2] / "spec"
Build = Callable[..., str]

LIBRARY = """
#include <stdlib.h>
#include <unistd.h>
#include "kvxfer_transport.h"
static int wait_fd = -1;
static uint64_t opened;
static int32_t lib_open(const kvxfer_option *o, uint64_t n, uint64_t *s) {{
    for (uint64_t i = 0; i < n; i++) wait_fd = atoi(o[i].value);
    *s = ++opened;
    return {open_status};
}}
static int32_t on_session(uint64_t s) {{ return s ? KVXFER_OK : KVXFER_CLOSED; }}
static int32_t on_two(uint64_t s, uint64_t h) {{ (void)h; return on_session(s); }}
static uint64_t lib_caps(uint64_t s) {{ (void)s; return {caps}; }}
static int32_t lib_register(uint64_t s, const kvxfer_memory *m, uint64_t *r) {{
    (void)m; *r = 1; return on_session(s);
}}
static int32_t lib_create(uint64_t s, uint64_t *p, kvxfer_bytes *b) {{
    *p = 7; b->data = "a\\0b"; b->size = 3; return on_session(s);
}}
static int32_t lib_connect(uint64_t s, uint64_t p, kvxfer_bytes b) {{
    (void)p; return b.size == 3 ? on_session(s) : KVXFER_PEER_BLOB;
}}
static int32_t lib_poll(uint64_t s, kvxfer_completion *r, uint64_t c, uint64_t *n) {{
    char byte;
    *n = 0;
    if (wait_fd >= 0 && read(wait_fd, &byte, 1) == 1 && c > 0) {{
        r[0].request = 11; r[0].peer = 7; r[0].status = byte == 'k' ? KVXFER_OK : 42; *n = 1;
    }}
    return on_session(s);
}}
static int32_t lib_send(uint64_t s, uint64_t p, kvxfer_bytes b) {{
    (void)p; (void)b; (void)s; return {send_status};
}}
static int32_t lib_notices(uint64_t s, kvxfer_notification *r, uint64_t c, uint64_t *n) {{
    *n = c < 2 ? c : 2;
    for (uint64_t i = 0; i < *n; i++) {{
        r[i].peer = 7; r[i].payload.data = "x\\0y"; r[i].payload.size = 3;
    }}
    return on_session(s);
}}
static const char *lib_error(uint64_t s) {{ (void)s; return "caf\\xc3\\xa9 \\xff"; }}
static kvxfer_transport table = {{
    .struct_size = {size}, .major = {major}, .minor = 9, .name = "tiny",
    .open = lib_open, .close = on_session, .caps = lib_caps,
    .register_region = lib_register, .deregister_region = on_two,
    .peer_create = lib_create, .peer_connect = lib_connect, .peer_destroy = on_two,
    .poll = lib_poll, .send_notification = lib_send,
    .poll_notifications = lib_notices, .last_error = {last_error},
}};
KVXFER_EXPORT const kvxfer_transport *{entry}(uint32_t major) {{
    return major == {speaks} ? &table : NULL;
}}
"""
GOOD = {
    "open_status": "KVXFER_OK",
    "caps": "KVXFER_CAP_MEM_DRAM",
    "send_status": "KVXFER_OK",
    "size": "sizeof table",
    "major": "1",
    "last_error": "lib_error",
    "entry": "kvxfer_transport_table",
    "speaks": "1",
}


@pytest.fixture
def build(tmp_path: Path, cma_build: Path) -> Build:
    """build(name=value...) compiles the tiny library with a change; gives its path."""
    del cma_build  # it skips where there is no compiler

    def make(**changes: str) -> str:
        source, library = tmp_path / "tiny.c", tmp_path / "libtiny.so"
        source.write_text(LIBRARY.format(**(GOOD | changes)))
        compiled(source, library, "-fPIC", "-shared")
        return str(library)

    return make


def compiled(source: Path, out: Path, *flags: str) -> None:
    command = ["cc", "-std=c11", f"-I{SPEC}", *flags, str(source), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def opened(path: str, **options: object) -> int:
    status, session = OPS.open({"library": path, **options})
    assert status == Status.OK, OPS.last_error(session)
    return session


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ({}, Status.OP_INVALID, "must be the path"),
        ({"library": 7}, Status.OP_INVALID, "must be the path"),
        ({"library": "/nowhere/at/all.so"}, Status.LIBRARY_MISSING, "/nowhere/at/all.so"),
        ({"library": __file__}, Status.LIBRARY_MISSING, "test_capi_library"),
        (None, Status.OP_INVALID, "options"),
    ],
)
def test_options_that_name_no_library(options, status, words) -> None:
    assert OPS.open(options) == (status, 0)
    assert words in OPS.last_error(0)


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"entry": "something_else"}, Status.LIBRARY_MISSING, "kvxfer_transport_table"),
        ({"speaks": "2"}, Status.LIBRARY_MISSING, "does not speak version 1"),
        ({"major": "3"}, Status.LIBRARY_MISSING, "3.9"),
        ({"last_error": "NULL"}, Status.SESSION_FAILED, "slots last_error are NULL"),
        ({"size": "64"}, Status.SESSION_FAILED, "are NULL"),
        ({"caps": "KVXFER_CAP_CANCEL"}, Status.SESSION_FAILED, "CANCEL without cancel"),
        ({"open_status": "KVXFER_NO_RESOURCE"}, Status.NO_RESOURCE, "café"),
        ({"open_status": "-77"}, Status.SESSION_FAILED, "café"),
    ],
)
def test_libraries_that_do_not_fit_are_refused_with_a_reason(build, changes, status, words) -> None:
    assert OPS.open({"library": build(**changes)}) == (status, 0)
    assert words in OPS.last_error(0)


def test_a_library_without_the_optional_slots_answers_unsupported(build) -> None:
    session = opened(build())
    column = np.array([8], dtype=np.uint64)
    assert OPS.caps(session) == Caps.MEM_DRAM
    assert OPS.post_write(session, 7, column, column, column, None) == (Status.UNSUPPORTED, 0)
    assert OPS.cancel(session, 1) == Status.UNSUPPORTED
    assert OPS.allocate_region(session, 8, "dram", 0) == (Status.UNSUPPORTED, 0, 0)
    assert OPS.wakeup_fd(session) == (Status.UNSUPPORTED, -1)
    assert "NULL" in OPS.last_error(session)
    assert OPS.close(session) == Status.OK
    assert OPS.close(session) == Status.CLOSED


def test_bytes_go_and_come_with_their_zeros(build) -> None:
    session = opened(build())
    assert OPS.peer_create(session) == (Status.OK, 7, b"a\0b")
    assert OPS.peer_connect(session, 7, b"a\0b") == Status.OK
    assert OPS.peer_connect(session, 7, b"ab") == Status.PEER_BLOB
    assert OPS.poll_notifications(session, 9) == (Status.OK, [(7, b"x\0y")] * 2)
    assert OPS.last_error(session) == "café \N{REPLACEMENT CHARACTER}"
    OPS.close(session)


def test_a_status_that_is_none_is_a_broken_library(build) -> None:
    session = opened(build(send_status="-12345"))
    assert OPS.send_notification(session, 7, b"x") == Status.SESSION_FAILED
    OPS.close(session)


def test_numbers_that_c_cannot_hold_stay_here(build) -> None:
    session = opened(build())
    for bad in (-1, 1 << 64, 1 << 80, "7", None, 1.5):
        assert OPS.peer_destroy(session, bad) == Status.OP_INVALID
        assert OPS.deregister_region(session, bad) == Status.OP_INVALID
    for memory in (
        Memory(base=-1, length=8),
        Memory(base=8, length=1 << 64),
        Memory(base=8, length=8, kind="tape"),
        Memory(base=8, length=8, device=1 << 31),
    ):
        assert OPS.register_region(session, memory) == (Status.OP_INVALID, 0)
        assert OPS.last_error(session)
    OPS.close(session)


def test_a_call_gives_the_interpreter_lock_up(build) -> None:
    """The library's poll reads a pipe that another Python thread writes. That thread cannot
    run before: nothing else gives the lock up here, however long it takes."""
    readable, writable = os.pipe()
    session = opened(build(), wait=readable)
    records = np.zeros(2, dtype=COMPLETION)
    inside = threading.Event()

    def write() -> None:
        assert inside.wait(30)
        os.write(writable, b"k")

    writer = threading.Thread(target=write)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        writer.start()
        inside.set()
        answer = OPS.poll(session, records)
    finally:
        sys.setswitchinterval(interval)
    writer.join(30)
    assert answer == (Status.OK, 1)
    assert records[0].tolist() == (11, 7, Status.OK)
    OPS.close(session)
    os.close(readable)
    os.close(writable)


STRUCTURES = {
    "kvxfer_option": binding.Option,
    "kvxfer_memory": binding.CMemory,
    "kvxfer_columns": binding.Columns,
    "kvxfer_strided": binding.CStrided,
    "kvxfer_bytes": binding.Bytes,
    "kvxfer_completion": binding.Completion,
    "kvxfer_notification": binding.Notification,
    "kvxfer_transport": binding.CTable,
}


@pytest.mark.usefixtures("cma_build")
def test_structures_are_laid_out_as_the_compiler_does(tmp_path) -> None:
    fields = [(c, name) for c, kind in STRUCTURES.items() for name, *_ in kind._fields_]
    lines = [f'printf("{c} {f} %zu\\n", offsetof({c}, {f}));' for c, f in fields]
    lines += [f'printf("{c} size %zu\\n", sizeof({c}));' for c in STRUCTURES]
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    head = '#include <stdio.h>\n#include "kvxfer_transport.h"\nint main(void) {\n'
    source.write_text(head + "\n".join(lines) + "\nreturn 0;\n}\n")
    compiled(source, program)
    shown = subprocess.run([program], capture_output=True, text=True, timeout=30, check=True)
    wanted = [f"{c} {f} {getattr(STRUCTURES[c], f).offset}" for c, f in fields]
    wanted += [f"{c} size {ctypes.sizeof(kind)}" for c, kind in STRUCTURES.items()]
    assert shown.stdout.splitlines() == wanted


def test_records_are_the_library_s() -> None:
    assert COMPLETION.itemsize == ctypes.sizeof(binding.Completion)
    assert COMPLETION.fields is not None
    for name, *_ in binding.Completion._fields_:
        assert COMPLETION.fields[name][1] == getattr(binding.Completion, name).offset


def test_every_slot_has_its_signature() -> None:
    assert tuple(binding.SIGNATURES) == SLOTS


def test_the_c_program_moves_memory_between_two_processes(cma_build: Path) -> None:
    done = subprocess.run(
        [cma_build / "push", cma_build / "libcma.so"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "'all of it' arrived, 0 of 1048576 bytes are wrong" in done.stdout
    assert "ended with 0" in done.stdout


def test_the_sample_knows_one_option(cma_library: str) -> None:
    assert OPS.open({"library": cma_library, "speed": 9}) == (Status.OP_INVALID, 0)
    assert "speed" in OPS.last_error(0)
    assert OPS.close(opened(cma_library, ptracer="any")) == Status.OK
