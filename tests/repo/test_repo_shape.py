"""The repository tests itself: rooms, sizes, wheel, light imports, fresh tables."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kvxfer", "transports", "adapters")
FILE_LINES_MAX = 520
FUNCTION_LINES_MAX = 70


def sources() -> list[Path]:
    return [p for top in PACKAGES for p in sorted((ROOT / top).rglob("*.py"))]


def test_no_file_is_too_long() -> None:
    long = {str(p.relative_to(ROOT)): n for p in sources() if (n := lines(p)) > FILE_LINES_MAX}
    assert long == {}


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_function_is_too_long() -> None:
    long = {}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                length = node.end_lineno - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = length
    assert long == {}


def test_every_module_says_what_it_owns() -> None:
    silent = [
        str(p.relative_to(ROOT))
        for p in sources()
        if not ast.get_docstring(ast.parse(p.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_core_imports_attrs_and_the_standard_library_alone() -> None:
    allowed = {"attrs", "kvxfer", *sys.stdlib_module_names}
    for path in sorted((ROOT / "kvxfer" / "core").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                assert name.split(".")[0] in allowed, f"{path.name} imports {name}"


@pytest.mark.parametrize(
    ("statement", "banned"),
    [
        ("import kvxfer", ("trio", "numpy", "torch", "cbor2")),
        ("import kvxfer.core.session", ("trio", "numpy", "torch", "cbor2")),
        ("import kvxfer.observe", ("prometheus_client", "opentelemetry", "trio")),
        ("import kvxfer_nixl", ("nixl", "torch", "trio")),
        ("import kvxfer_vllm", ("vllm", "torch", "nixl", "trio")),
        ("import kvxfer.cli", ("trio", "numpy", "rich")),
    ],
)
def test_imports_are_light(statement: str, banned: tuple[str, ...]) -> None:
    script = f"{statement}; import sys; print([m for m in {banned!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_wheel_holds_every_package_and_nothing_else(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=100,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = {n.split("/")[0] for n in zipfile.ZipFile(wheel).namelist()}
    tops = {n for n in names if not n.endswith(".dist-info")}
    folders = {p.parent.name for top in ("transports", "adapters") for p in top_packages(top)}
    assert tops == {"kvxfer", *folders}


def top_packages(top: str) -> list[Path]:
    return list((ROOT / top).glob("*/__init__.py"))


def test_listed_packages_are_the_folders() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    folders = {
        str(p.parent.relative_to(ROOT))
        for top in ("transports", "adapters")
        for p in top_packages(top)
    }
    assert listed == {"kvxfer", *folders}


def test_state_tables_of_the_specification_are_fresh() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "spec" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    text = generate.SPEC.read_text(encoding="utf-8")
    assert generate.rebuilt(text) == text


def test_no_link_is_tracked() -> None:
    """A link points at somebody's machine, an environment's for one."""
    listed = subprocess.run(
        ["git", "ls-files", "--stage"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("no git checkout here")
    assert [line for line in listed.stdout.splitlines() if line.startswith("120000")] == []
