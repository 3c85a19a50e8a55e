import os

import numpy
import pytest

# Engines under test; UPWEAVE_TEST_ENGINE=reference runs the same tests where no other engine is built.
ENGINE = os.environ.get("UPWEAVE_TEST_ENGINE", "cpu")


@pytest.fixture
def engine():
    return ENGINE


@pytest.fixture
def random():
    return numpy.random.default_rng(7)
