"""pytest plug-in that puts our connector into vLLM's own tests; loaded with `-p`.

Owns what is changed in them: three defaults of the function that makes their
configuration (the module to load the class from, its name, the model's folder, and the
role: ours keeps to it, vLLM's does not), a stand-in for a module of fakes, and the marks
of `selection.toml`. Invariant: no line of a test is changed, and an entry of the
selection that fits no test is an error.
"""

from __future__ import annotations

import inspect
import os
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import pytest

UNIT = "tests.v1.kv_connector.unit"
SELECTION = Path(__file__).with_name("selection.toml")
CONNECTOR = "KVXFER_UPSTREAM_CONNECTOR"
MODEL = "KVXFER_UPSTREAM_MODEL"
MODULE = "kvxfer_vllm"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cpu_test: vLLM's own mark")
    _stand_in_for_fakes()
    from tests.v1.kv_connector.unit import utils

    _change_defaults(
        utils.create_vllm_config,
        kv_connector=os.environ[CONNECTOR],
        kv_connector_module_path=MODULE,
        kv_role="kv_both",
        model=os.environ[MODEL],
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    listed = tomllib.loads(SELECTION.read_text())["files"]
    for file in {item.path.name for item in items}:
        here = {item.name: item for item in items if item.path.name == file}
        for name, why in listed[file].get("refused", {}).items():
            _item(here, file, name).add_marker(pytest.mark.xfail(strict=True, reason=why))
        for name, why in listed[file].get("internals", {}).items():
            _item(here, file, name).add_marker(pytest.mark.skip(reason=why))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """The tests' own fixture of this name needs a process group that no test here uses."""
    assert "dist_init" not in getattr(item, "fixturenames", ())


def _item(here: dict[str, pytest.Item], file: str, name: str) -> pytest.Item:
    if name not in here:
        raise pytest.UsageError(f"selection.toml: {file} has no test {name}")
    return here[name]


def _change_defaults(function: Any, **changes: object) -> None:
    parameters = inspect.signature(function).parameters
    unknown = sorted(set(changes) - set(parameters))
    if unknown:
        raise pytest.UsageError(f"create_vllm_config has no parameter {unknown}")
    function.__defaults__ = tuple(changes.get(n, p.default) for n, p in parameters.items())


def _stand_in_for_fakes() -> None:
    """Tests of the read-back import two fakes of vLLM's worker; those that use them are skipped.

    The module that has them imports half of vLLM's test tree.
    """
    stand_in = types.ModuleType(f"{UNIT}.test_nixl_connector")
    fakes = {"FakeNixlConnectorWorker": {"REMOTE_ENGINE_ID": "remote"}, "FakeNixlWrapper": {}}
    for name, members in fakes.items():
        setattr(stand_in, name, type(name, (), dict(members)))
    sys.modules[stand_in.__name__] = stand_in
