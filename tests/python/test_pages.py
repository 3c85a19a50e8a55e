"""The pages and the examples run as printed."""

import pathlib
import subprocess
import sys

import pytest

from run_docs import run

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_python_page():
    assert run(ROOT / "docs/python.md") > 5


def test_pytorch_page():
    pytest.importorskip("torch")
    assert run(ROOT / "docs/pytorch.md") > 3


@pytest.mark.parametrize("name", ("unet3d_decoder", "dcgan_decoder", "vocoder"))
def test_example(name, tmp_path):
    """Small, and without torch.compile's default, which would compile for a minute; with its picture."""
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.png"
    done = subprocess.run([sys.executable, ROOT / "examples" / f"{name}.py", "--quick", "--plot", picture],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "eager" in done.stdout and "Upweave call(s) a forward" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
