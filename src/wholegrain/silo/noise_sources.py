"""Sources of noise by name."""

from wholegrain import _check
from wholegrain.silo.noise import NoiseSource, SeededNoise
from wholegrain.silo.secure_noise import SecureNoise


def noise_source(name: str, seed: int, compiled: bool = False) -> NoiseSource:
    """`secure` for a release; `seeded` for a simulation that can be repeated, in C where a run is `compiled`."""
    _check.one_of("noise", name, ("secure", "seeded"))
    return SecureNoise() if name == "secure" else SeededNoise(seed, in_c=compiled)
