"""Makes the .npy files beside it with NumPy: what people really have on their disks."""
import pathlib

import numpy as np
from numpy.lib import format as npy

here = pathlib.Path(__file__).parent
ramp = np.arange(24).reshape(2, 3, 4) / 4 - 2  # exact in every element type


def save(name, array, version=(1, 0)):
    with open(here / name, "wb") as file:
        npy.write_array(file, array, version)


for code in ("f2", "f4", "f8"):
    save(f"{code}.npy", ramp.astype(f"<{code}"))
save("v2.npy", ramp.astype("<f4"), (2, 0))
save("v3.npy", ramp.astype("<f4"), (3, 0))
words = (ramp.astype("<f4").view("<u4") >> 16).astype("<u2")
save("u2.npy", words)
save("bf16.npy", words.view("|V2"))
save("scalar.npy", np.float32(1.5))
save("vector.npy", ramp.ravel()[:1].astype("<f4"))
save("empty.npy", np.zeros((0, 4), "<f4"))
# and what is refused
save("fortran.npy", np.asfortranarray(ramp.astype("<f4")))
save("big_endian.npy", ramp.astype(">f4"))
save("int32.npy", ramp.astype("<i4"))
save("object.npy", np.array([{}, None], dtype=object))
save("structured.npy", np.zeros(2, [("a", "<f4"), ("b", "<f4")]))
