"""Where was it seen, in the fields of the bug template? What no record holds is left as a blank to fill."""

from __future__ import annotations

from gradcheck_cli.records.environment import Environment
from gradcheck_cli.reporters.marks import code, escaped
from gradcheck_cli.reporters.plain_text import excerpt

BLANK = "(please fill in)"
NO_CONTAINER = "none seen"  # as compute/machine.py records it
_BARE = "no container was seen: bare metal or a virtual machine"
_IMAGE = "NVIDIA_PYTORCH_VERSION"  # set in NVIDIA's PyTorch containers: 26.06
# In the order of the template; then what it does not ask for and a maintainer does.
_DETAILS = {
    "PyTorch": "torch",
    "Python": "python",
    "Transformer Engine": "transformer_engine",
    "CUDA": "cuda",
    "CUDNN": "cudnn",
    "cuBLASLt": "cublaslt",
    "CUDA driver": "driver",
}
_LONGEST = 300


def overview(where: Environment) -> list[str]:
    """Location, method of install, and the container's commands."""
    image = _image(where)
    location = f"Docker, {code(image)}" if image else _location(where.container)
    how = where.installed.get("transformer_engine", "")
    installed = _told(how) if how else f"{BLANK}: pip install or from source, with the exact commands"
    docker = f"docker pull {image}; docker run --gpus all --rm -it {image}" if image else ""
    lines = [f"- Environment location: {location}", f"- Method of Transformer Engine install: {installed}"]
    if docker or where.container != NO_CONTAINER:
        lines.append(f"- Container: {code(docker) if docker else f'{BLANK}: docker pull IMAGE; docker run IMAGE'}")
    return lines


def _location(container: str) -> str:
    if not container:
        return f"{BLANK}: bare metal, Docker, or which cloud"
    return _BARE if container == NO_CONTAINER else f"in a container, {_told(container)}"


def _image(where: Environment) -> str:
    version = where.variables.get(_IMAGE, "")
    return f"nvcr.io/nvidia/pytorch:{version}-py3" if version else ""


def details(where: Environment) -> list[str]:
    """Every version that was loaded, then the variables that were set."""
    return [f"- OS version: {_told(where.system) if where.system else BLANK}", *_versions(where)]


def plain(where: Environment) -> list[str]:
    """Device, system and versions, for a template that asks for no more."""
    how = [f"- {escaped(name)}: installed by {_told(one)}" for name, one in where.installed.items()]
    system = [f"- OS: {_told(where.system)}"] * bool(where.system)
    container = [f"- container: {_told(where.container)}"] * bool(where.container)
    return [*device(where), *system, *container, *_versions(where), *how]


def _versions(where: Environment) -> list[str]:
    lines = [
        f"- {named} version: {_told(where.versions[name])}"
        for named, name in _DETAILS.items()
        if name in where.versions
    ]
    others = [name for name in where.versions if name not in _DETAILS.values()]
    lines += [f"- {escaped(name)} version: {_told(where.versions[name])}" for name in others]
    lines += [f"- {code(f'{name}={excerpt(value, _LONGEST)}')}" for name, value in where.variables.items()]
    return lines


def device(where: Environment) -> list[str]:
    """The GPU, or what stood in its place."""
    name = _told(where.device_name or where.device)
    if where.compute_capability is None:
        return [f"- no GPU: CPU, {name}"]
    return ["- GPU model: {} (sm_{}{})".format(name, *where.compute_capability)]


def _told(text: str) -> str:
    return escaped(excerpt(text, _LONGEST))
