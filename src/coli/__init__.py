"""Run mixture-of-experts language models that do not fit the machine.

import coli
with coli.open("path/to/checkpoint", threads=2) as model:
    for token in model.generate(model.encode("Hello"), max_tokens=32):
        print(model.decode([token]), end="")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coli.engine.model import Model as Model
    from coli.engine.model import open_model as open

__version__ = "0.1.0"
__all__ = ["Model", "open"]


def __getattr__(name: str) -> Any:
    # Lazy: `import coli` costs nothing until a model is opened.
    if name == "open":
        from coli.engine.model import open_model

        return open_model
    if name == "Model":
        from coli.engine.model import Model

        return Model
    raise AttributeError(f"module 'coli' has no attribute {name!r}")
