"""Every posterior method, with each solver if it uses one, for the batteries."""

from diffem.linalg import SOLVERS

CONFIGURATIONS = {
    **{f"mmps {solver}": ("mmps", {"solver": solver, "iterations": 3}) for solver in SOLVERS},
    "mmps cg, tolerance": ("mmps", {"iterations": 50, "tolerance": 1e-6}),
    "sigma_t": ("sigma_t", {}),
    "sigma_x": ("sigma_x", {}),
    "identity": ("identity", {}),
    "identity gmres": ("identity", {"solver": "gmres", "iterations": 3}),
    "dps": ("dps", {}),
    "pigdm": ("pigdm", {}),
    "tmpd": ("tmpd", {}),
    "diffpir": ("diffpir", {}),
    "conditional": ("conditional", {"check": False}),
}
ANY_PRIOR = [name for name, (method, _) in CONFIGURATIONS.items() if method != "conditional"]
