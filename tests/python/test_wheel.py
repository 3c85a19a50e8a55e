"""The wheels in UPWEAVE_WHEELS (tools/python-test names pip's and the one that tools/wheel makes of it) work on
machines that have nothing of what they were built with."""
import os
import re
import subprocess
import sys
import zipfile

import pytest

WHEELS = os.environ.get("UPWEAVE_WHEELS", "").split()
pytestmark = pytest.mark.skipif(not WHEELS, reason="UPWEAVE_WHEELS names no wheel")

# The C library, with the parts that glibc 2.34 made one, and the compiler's unwinder, which every process has once.
SYSTEM = re.compile(r"(libc|libm|libgcc_s|libpthread|libdl|ld-linux-[a-z0-9-]+)\.so\.[0-9]+")
BUILT_WITH = r"(libfmt|libhwy|libgomp|libomp)\.so"
CXX = r"libstdc\+\+\.so"

LOAD = """
import ctypes, importlib.util, sys
folder, *hidden = sys.argv[1:]
for library in hidden:
    try:
        ctypes.CDLL(library)
    except OSError:
        continue
    sys.exit(f"{library} can be loaded: the test shows nothing")
"""
# Without NumPy, whose own wheels want libstdc++.
PLAN = """
spec = importlib.util.spec_from_file_location("upweave._core", f"{folder}/upweave/_core.abi3.so")
core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)
shapes = {"input": (1, 16, 34, 34), "kernel": (16, 16, 3, 3)}
plan = core.Plan("conv_transpose kernel p2 | mul 0.5", False, {}, shapes, "f32", "cpu", "strict", "auto", 2)
assert plan.output_shape == (1, 16, 32, 32) and "conv_transpose" in plan.explain()
try:
    core.Plan("no_such_operation", False, {}, shapes, "f32", "cpu", "strict", "auto", 2)
    sys.exit("no_such_operation is one")
except ValueError as error:
    assert "no_such_operation" in str(error)
print("works")
"""
# Ones through a kernel of ones: 9 for each of 16 channels, but for the border, which is cut off.
RUN = """
import numpy
sys.path.insert(0, folder)
import upweave
assert upweave.__file__.startswith(folder)
x, kernel = numpy.ones((1, 16, 34, 34), "f"), numpy.ones((16, 16, 3, 3), "f")
plan = upweave.compile("conv_transpose kernel p2 | mul 0.5", input=x, kernel=kernel, algorithm="direct", threads=2)
assert (plan(x, kernel=kernel) == 72).all()
print("works")
"""


@pytest.fixture(params=WHEELS, ids=os.path.basename)
def unpacked(request, tmp_path):
    with zipfile.ZipFile(request.param) as wheel:
        wheel.extractall(tmp_path)
    return tmp_path


def objects(folder):
    return [path for path in folder.rglob("*") if re.search(r"\.so(\.|$)", path.name)]


def said(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_it_needs_the_c_library_only(unpacked):
    own = {path.name for path in objects(unpacked)}
    assert "_core.abi3.so" in own
    for path in objects(unpacked):
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", said("readelf", "-dW", path))
        assert needed
        assert [name for name in needed if name not in own and not SYSTEM.fullmatch(name)] == []


def test_the_module_shows_its_entry_only(unpacked):
    symbols = said("nm", "--dynamic", "--defined-only", "--format=posix", unpacked / "upweave" / "_core.abi3.so")
    assert [line.split()[0] for line in symbols.splitlines()] == ["PyInit__core"]


@pytest.mark.parametrize("libraries,program", [(BUILT_WITH, RUN), (f"{BUILT_WITH}|{CXX}", PLAN)], ids=["run", "load"])
def test_it_works_without_the_libraries_it_was_built_with(unpacked, libraries, program):
    """In a mount namespace where those libraries are empty files."""
    known = [line.strip() for line in said("/sbin/ldconfig", "-p").splitlines()]
    hidden = sorted({os.path.realpath(line.split("=> ")[1]) for line in known if re.match(libraries, line)})
    namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-eu", "-c"]
    mounts = "".join(f"mount --bind /dev/null {path}\n" for path in hidden)
    try:
        allowed = subprocess.run([*namespace, mounts], capture_output=True).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("this machine allows no mount namespace")
    command = [sys.executable, "-c", LOAD + program, str(unpacked), *hidden]
    run = subprocess.run([*namespace, mounts + 'exec "$@"', "sh", *command], capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout == "works\n", run.stderr


def test_the_portable_wheel_is_for_glibc_2_28_and_python_3_10():
    portable = WHEELS[-1]
    assert re.fullmatch(r"upweave-[0-9.]+-cp310-abi3-manylinux_2_28_[a-z0-9_]+\.whl", os.path.basename(portable))
    assert os.path.getsize(portable) < 8e6


def test_the_portable_wheel_asks_for_no_newer_glibc(tmp_path):
    with zipfile.ZipFile(WHEELS[-1]) as wheel:
        wheel.extractall(tmp_path)
    for path in objects(tmp_path):
        versions = re.findall(r"GLIBC_([0-9.]+)", said("readelf", "-VW", path))
        assert versions
        assert [v for v in versions if tuple(map(int, v.split("."))) > (2, 28)] == []
