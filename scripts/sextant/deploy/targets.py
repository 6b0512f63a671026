"""What files can be written for; a module of its own, so that the command line loads fast."""

from typing import Literal, get_args

Target = Literal["vllm", "sglang", "trtllm", "compose", "kubernetes", "production-stack", "kserve"]
"""An engine: the command alone; or a platform."""
TARGETS: tuple[Target, ...] = get_args(Target)
