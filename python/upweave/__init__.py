"""Transposed convolutions fused with everything around them.

    >>> import numpy as np, upweave
    >>> x = np.random.rand(2, 32, 8, 16, 16).astype("float32")
    >>> k = np.random.rand(32, 64, 4, 4, 4).astype("float32")
    >>> p = upweave.compile("conv_transpose kernel s2 p1 | layer_norm channel | gelu", input=x, kernel=k)
    >>> p(x, kernel=k).shape
    (2, 64, 16, 32, 32)
"""

from ._core import version as __version__
from ._documents import (
    conv_transpose2d_batchnorm_tanh_maxpool_groupnorm,
    conv_transpose3d_avgpool_clamp_softmax_multiply,
    conv_transpose3d_layernorm_gelu_scaling,
    conv_transpose3d_max_max_sum,
    conv_transpose3d_sum_layernorm_avgpool_gelu,
)
from ._lists import Entry, Operation, catalog, vocabulary
from ._picture import Explanation
from ._plan import Cost, Plan, Weights, compile

__all__ = [
    "Cost",
    "Entry",
    "Explanation",
    "Operation",
    "Plan",
    "Weights",
    "__version__",
    "catalog",
    "compile",
    "conv_transpose2d_batchnorm_tanh_maxpool_groupnorm",
    "conv_transpose3d_avgpool_clamp_softmax_multiply",
    "conv_transpose3d_layernorm_gelu_scaling",
    "conv_transpose3d_max_max_sum",
    "conv_transpose3d_sum_layernorm_avgpool_gelu",
    "vocabulary",
]
