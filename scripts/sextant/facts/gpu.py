"""Device types, their slices (MIG), GPU profiles, and the prices of providers that ship."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from sextant.base.errors import InputError
from sextant.base.resources import resource
from sextant.base.sheets import Row, check_fields, load_sheet, read_yaml
from sextant.pages.words import usd_words

GPUS = resource("gpus")  # the facts of devices that ship
GIB = 2**30
MAX_GPUS = 9999  # most devices of a profile that `<n>x<gpu_id>` names
MIG_PREFIX = "MIG-"  # of the UUID of an instance of a divided GPU
GpuId = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
Price = Annotated[float, Field(ge=0.0001, le=1e6)]
"""In USD per hour; 0 is refused: it would hide a price that nobody has filled in."""
PriceDate = Annotated[str, Field(pattern=r"^20\d\d(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?$")]
"""A year, a month or a day."""
NGpus = Annotated[int, Field(ge=1, le=MAX_GPUS)]
PositiveSize = Annotated[float, Field(gt=0, lt=1e9)]
_MAKERS = {"CDNA": "AMD", "Gaudi": "Intel", "Xe": "Intel", "TPU": "Google"}
"""Makers by how the names of their architectures begin."""


@dataclass(frozen=True)
class GPU:
    """resources/gpus/<gpu_id>.yaml: facts of one device type; units are in the key names."""

    gpu_id: GpuId  #: the file's name without .yaml
    kind: Literal["gpu", "accelerator", "cpu"]
    """gpu; accelerator (no CUDA or ROCm: Sextant starts no servers); cpu for cores as devices"""
    architecture: str  #: the maker's name of the architecture, e.g. Ampere
    memory_gib: PositiveSize  #: memory of one device in GiB
    memory_bandwidth_gb_s: PositiveSize  #: peak memory bandwidth of one device in GB/s
    dense_16bit_tflops: PositiveSize
    """peak rate in TFLOP/s without structured sparsity: bfloat16, or float16 if it has none"""
    interconnect_gb_s: PositiveSize
    """bandwidth to all peers in one direction in GB/s; data sheets of NVLink give both"""
    source: str  #: where the figures come from
    dense_fp8_tflops: PositiveSize | None = None
    """as dense_16bit_tflops for 8-bit floats; left out where the device has no units for them"""
    dense_int8_tflops: PositiveSize | None = None
    """as dense_16bit_tflops for 8-bit integers; left out where the device has no units for them"""
    dense_fp4_tflops: PositiveSize | None = None
    """as dense_16bit_tflops for 4-bit floats (NVFP4); left out where there are no units for them"""
    reserved_gib: PositiveSize = 0.5
    """GiB of memory_gib that no process sees: error correction and the driver keep them"""
    tdp_w: PositiveSize | None = None
    """most power in W that one device draws for long (TDP); left out if not published"""
    n_gpus_per_node: NGpus = 8
    """devices of one NVLink domain, or of one machine without; replicas of more use the network"""

    @property
    def maker(self) -> str:
        """Who makes the device, by its architecture; NVIDIA's have the names of scientists."""
        named = (maker for start, maker in _MAKERS.items() if self.architecture.startswith(start))
        return "CPU" if self.kind == "cpu" else next(named, "NVIDIA")

    def dense_tflops(self, precision: str) -> float:
        """Return the peak rate of products in a served precision, one of `llm.PRECISIONS`.

        It is the rate of 16 bits where the device has no faster units for a type, and for
        weight-only formats (INT4). MXFP4 weights are multiplied with 8-bit activations on devices
        with 4-bit units. fp32 is computed as TF32, at half the rate of 16 bits.
        """
        if precision == "fp32":
            return self.dense_16bit_tflops / 2
        rates = {
            "fp8": self.dense_fp8_tflops,
            "int8": self.dense_int8_tflops,
            "nvfp4": self.dense_fp4_tflops,
            "mxfp4": self.dense_fp8_tflops if self.dense_fp4_tflops else None,
        }
        return max(rates.get(precision) or 0.0, self.dense_16bit_tflops)


@dataclass(frozen=True)
class Devices:
    """What a server runs on: the part of a GPU profile that a measurement depends on."""

    kind: str
    n_gpus: int
    memory_gib: float  # memory of one device
    reserved_gib: float = 0.0  # GiB of it that no process sees
    gpu_id: str = ""  # the type; "" where nothing depends on it
    interconnect_gb_s: float = 0.0  # between the devices, in one direction

    @property
    def seen_gib(self) -> float:
        """Memory of one device that a process sees, in GiB."""
        return self.memory_gib - self.reserved_gib

    @property
    def memory_bytes(self) -> float:
        """Memory of all devices together."""
        return self.n_gpus * self.memory_gib * GIB


@dataclass(frozen=True)
class GPUProfile:
    """`n_gpus` devices used by one replica, with a price."""

    gpu_profile_id: str
    gpu: GPU
    n_gpus: NGpus
    usd_per_hour: Annotated[float, Field(ge=0, le=1e6)] = math.nan  # price; nan: unknown
    gpu_model: str | None = None
    """The device type as a cluster's scheduler names it; no measurement depends on it."""
    price_source: str | None = None
    """Whose price it is, e.g. the provider and its region; None: not stated."""
    price_as_of: str | None = None  # date of the price, `YYYY`, `YYYY-MM` or `YYYY-MM-DD`

    @property
    def n_nodes(self) -> int:
        """The fewest nodes with that many devices: machines, or NVLink domains of several."""
        return -(-self.n_gpus // self.gpu.n_gpus_per_node)

    @property
    def devices(self) -> Devices:
        """What a server on this profile runs on."""
        gpu = self.gpu
        return Devices(
            gpu.kind,
            self.n_gpus,
            gpu.memory_gib,
            gpu.reserved_gib,
            gpu.gpu_id,
            gpu.interconnect_gb_s,
        )


def gpu_path(folder: str | Path, gpu_id: str) -> Path:
    """Return the file with the facts of a device type."""
    return Path(folder) / f"{gpu_id}.yaml"


@cache  # dozens of profiles share a device type
def load_gpu(folder: str | Path, gpu_id: str) -> GPU:
    """Read and check the facts of a device type."""
    path = gpu_path(folder, gpu_id)
    if not path.exists():
        fix = "write its facts; workflow/schemas/gpu.schema.yaml has the keys"
        raise InputError(f"no facts of GPU {gpu_id!r}", file=path, fix=fix)
    facts = read_yaml(path)
    check_fields(GPU, facts, path)
    if facts["gpu_id"] != gpu_id:
        problem = f"{facts['gpu_id']!r} does not match the name of the file"
        raise InputError(problem, file=path, field="gpu_id", fix=f"write {gpu_id}")
    return GPU(**facts)


def profile_of_id(profile_id: str, folder: str | Path = GPUS) -> GPUProfile:
    """Return the profile `<n>x<gpu_id>`, without a price; InputError if there is none."""
    match = re.fullmatch(r"([1-9][0-9]{0,3})x(.+)", profile_id)
    if match and Path(match[2]).name == match[2] and gpu_path(folder, match[2]).is_file():
        return GPUProfile(profile_id, load_gpu(folder, match[2]), int(match[1]))
    devices = ", ".join(sorted(path.stem for path in Path(folder).glob("*.yaml")))
    fix = f"write it as <n>x<gpu_id>, n up to {MAX_GPUS:,}, with one of {devices}"
    raise InputError(f"unknown GPU profile {profile_id!r}", fix=fix)


def profile_row(profile: GPUProfile) -> dict[str, Any]:
    """Return a profile as a row of `gpu_profiles.tsv` and of the store's table."""
    row = {"gpu_profile_id": profile.gpu_profile_id, "gpu_id": profile.gpu.gpu_id}
    more = ("n_gpus", "usd_per_hour", "price_source", "price_as_of")
    return row | {name: getattr(profile, name) for name in more}


def profile_from_row(row: dict[str, Any], gpu: GPU) -> GPUProfile:
    """Build a profile from its row in `gpu_profiles.tsv`."""
    names = ("n_gpus", "usd_per_hour", "gpu_model", "price_source", "price_as_of")
    return GPUProfile(row["gpu_profile_id"], gpu, **{n: row[n] for n in names if n in row})


MIG_NAME = "-MIG-"
_MIG_GPUS = ("A100", "A30", "H100", "H200", "B200", "B300", "GB200", "GB300", "RTX-PRO-6000")


def mig_slice(gpu: GPU, profile: str) -> GPU:
    """Return the slice of a GPU that a MIG profile names; InputError: there is no such slice.

    A GPU has seven compute slices and eight of memory and bandwidth (an A30: four and four). The
    slice `3g.20gb` of an A100-40GB has three compute slices, and the eighths of memory that come
    nearest to 20 GB (NVIDIA, Multi-Instance GPU User Guide).
    """
    match = re.fullmatch(r"([1-7])g\.([0-9]+)gb", profile)
    if not match or not gpu.gpu_id.startswith(_MIG_GPUS):
        problem = f"{gpu.gpu_id} has no MIG profile {profile!r}"
        fix = f"leave it empty, or write e.g. 3g.20gb for a GPU of {', '.join(_MIG_GPUS)}"
        raise InputError(problem, field="mig_profile", fix=fix)
    n_compute, n_memory = (4, 4) if gpu.gpu_id == "A30-24GB" else (7, 8)
    memory = round(int(match[2]) / gpu.memory_gib * n_memory)
    if not 1 <= memory <= n_memory or int(match[1]) > n_compute:
        whole = f"{gpu.memory_gib:g} GiB and {n_compute} compute slices"
        fix = "write the name that `nvidia-smi mig -lgip` prints"
        raise InputError(f"{profile} is not a slice of {whole}", field="mig_profile", fix=fix)
    compute = int(match[1]) / n_compute
    part = memory / n_memory
    rates = ("dense_16bit_tflops", "dense_fp8_tflops", "dense_int8_tflops", "dense_fp4_tflops")
    parts = {name: value * compute for name in rates if (value := getattr(gpu, name)) is not None}
    return replace(
        gpu,
        gpu_id=f"{gpu.gpu_id}{MIG_NAME}{profile}",
        memory_gib=gpu.memory_gib * part,
        reserved_gib=gpu.reserved_gib * part,
        memory_bandwidth_gb_s=gpu.memory_bandwidth_gb_s * part,
        tdp_w=None,
        **parts,
    )


def is_slice(gpu_id: str) -> bool:
    """Return whether an id is that of a slice."""
    return MIG_NAME in gpu_id


PRICES = resource("prices")
"""One file per provider, `<provider>.csv`; its README says where the prices were read."""
HOURS_PER_MONTH = 730
_ON_DEMAND = " on demand, "  # between provider and region where a price is said to be of a table


@dataclass(frozen=True, kw_only=True)
class PriceRow:
    """`sextant recommend --prices`: each row is the price of one GPU profile."""

    gpu_profile_id: str  #: a GPU profile, e.g. 2xA100-40GB
    usd_per_hour: Price
    """give the price of the whole profile in USD per hour, above 0: 0.0001 to 1,000,000"""
    as_of: PriceDate | None = None
    """date of the price, which answers say: YYYY, YYYY-MM or YYYY-MM-DD"""


@dataclass(frozen=True, kw_only=True)
class ProviderPriceRow:
    """resources/prices/<provider>.csv: each row is a machine to rent, at its price on demand."""

    instance: str  #: what the provider calls the machine, e.g. p5.48xlarge
    gpu_id: GpuId  #: a device type with a facts file resources/gpus/<gpu_id>.yaml
    n_gpus: NGpus  #: devices of the machine, 1 to 9,999
    region: str  #: where the price holds, as the provider calls it, or: all regions
    usd_per_hour: Price  #: price of the whole machine in USD per hour, above 0: 0.0001 to 1,000,000
    as_of: Annotated[PriceDate, Field(min_length=10)]
    """the day on which the source had this price: YYYY-MM-DD"""
    source: Annotated[str, Field(pattern="^https?://[^/]")]
    """the page that has the price, https://…"""


class PriceOrigin(NamedTuple):
    """Where prices come from, and from when they are."""

    source: str | None  # provider and region, or the user's file; None: not stated
    first: str | None  # oldest date, `YYYY`, `YYYY-MM` or `YYYY-MM-DD`; None: not stated
    last: str | None
    is_old: bool
    """Whether the oldest is more than a year before the newest price of the tables that ship.

    No clock is read, so that an answer stays the same."""


def providers() -> list[str]:
    """Return the names of the tables that ship."""
    return sorted(path.stem for path in PRICES.glob("*.csv"))


@cache
def load_prices(path: Path) -> list[Row]:
    """Read a provider's table; InputError: a wrong row, unknown device or machine twice."""
    rows = load_sheet(path, ProviderPriceRow, delimiter=",")
    seen: dict[tuple[str, str], int] = {}
    for row in rows:
        line = seen.setdefault((row["instance"], row["region"]), row.line)
        if line != row.line:
            problem = f"{row['instance']} in {row['region']} is already in line {line}"
            raise row.error(problem, "instance", "keep one of them")
        if not gpu_path(GPUS, row["gpu_id"]).is_file():
            fix = f"write its facts, {gpu_path(GPUS, row['gpu_id'])}, or correct the name"
            raise row.error(f"no facts of GPU {row['gpu_id']!r}", "gpu_id", fix)
    return rows


def priced(profile: GPUProfile, provider: str) -> GPUProfile | None:
    """Return a profile at its share of a provider's smallest fitting machines; None: no machine."""
    row = _machine(profile, provider)
    if row is None:
        return None
    return replace(
        profile,
        usd_per_hour=round(row["usd_per_hour"] * profile.n_gpus / row["n_gpus"], 6),
        price_source=f"{provider}{_ON_DEMAND}{row['region']}",
        price_as_of=row["as_of"],
    )


def cheapest(profile: GPUProfile, among: Iterable[str] = ()) -> GPUProfile | None:
    """Return a profile at its lowest price among providers, by default all; None if unsold."""
    offers = filter(None, (priced(profile, name) for name in among or providers()))
    return min(offers, key=lambda offer: offer.usd_per_hour, default=None)


def has_own_price(profile: GPUProfile) -> bool:
    """Return whether a profile has a price that is not from a table that ships."""
    provider, _, region = (profile.price_source or "").partition(_ON_DEMAND)
    regions = {row["region"] for row in _rows(provider)} if region else set()
    return not math.isnan(profile.usd_per_hour) and region not in regions


def offered_profiles(among: Iterable[str] = ()) -> dict[str, GPUProfile]:
    """Return the profiles that providers sell, at the lowest price.

    They are whole machines, and halves of them down to one GPU.
    """
    among = [*among] or providers()
    names = set()
    for row in (row for name in among for row in _rows(name)):
        n_gpus = row["n_gpus"]
        while n_gpus >= 1:
            names.add(f"{n_gpus}x{row['gpu_id']}")
            n_gpus //= 2
    offers = (cheapest(profile_of_id(name), among) for name in sorted(names))
    return {offer.gpu_profile_id: offer for offer in offers if offer is not None}


class Rental(NamedTuple):
    """What is rented at once for replicas: one machine, or all that one replica needs."""

    instance: str | None
    """The provider's name of the machine; None: replicas are rented one by one."""
    machines: int
    n_gpus: int  #: of these machines
    replicas: int  #: that fit on them
    usd_per_hour: float  #: of these machines

    def times(self, replicas: int) -> int:
        """Return how often it is rented for so many replicas."""
        return -(-replicas // self.replicas)


def rental(profile: GPUProfile) -> Rental:
    """Return the smallest machine to rent, or as many as one replica needs."""
    provider, _, region = (profile.price_source or "").partition(_ON_DEMAND)
    row = _machine(profile, provider) if provider in providers() else None
    if row is None or row["region"] != region:
        return Rental(None, 1, profile.n_gpus, 1, profile.usd_per_hour)
    machines = -(-profile.n_gpus // row["n_gpus"])
    n_gpus = machines * row["n_gpus"]
    usd_per_hour = machines * row["usd_per_hour"]
    return Rental(row["instance"], machines, n_gpus, n_gpus // profile.n_gpus, usd_per_hour)


def share_lines(profile: GPUProfile, replicas: int) -> list[str]:
    """Return a warning if a provider rents whole machines, and replicas leave some GPUs unused."""
    rented = rental(profile)
    times = rented.times(replicas)
    if rented.instance is None or replicas * profile.n_gpus == times * rented.n_gpus:
        return []
    provider = (profile.price_source or "").partition(_ON_DEMAND)[0]
    return [
        f"The price is that of the GPUs in use: {provider} rents them "
        f"{rented.n_gpus // rented.machines} at a time as {rented.instance}, "
        f"{times * rented.machines} of which cost {usd_words(times * rented.usd_per_hour)}. "
        "Others have to use the rest."
    ]


def _machine(profile: GPUProfile, provider: str) -> Row | None:
    """Return the smallest machine with the devices; of replicas on several nodes, with a node's."""
    gpu = profile.gpu
    n_gpus = min(profile.n_gpus, gpu.n_gpus_per_node)
    rows = [row for row in _rows(provider) if row["gpu_id"] == gpu.gpu_id]
    fitting = [row for row in rows if row["n_gpus"] >= n_gpus]
    return min(fitting, key=lambda row: (row["n_gpus"], row["usd_per_hour"]), default=None)


def _rows(provider: str) -> list[Row]:
    return load_prices(PRICES / f"{provider}.csv") if provider in providers() else []


@cache
def _newest() -> str:
    return max(str(row["as_of"]) for name in providers() for row in _rows(name))


def price_origins(prices: Iterable[tuple[str | None, str | None]]) -> list[PriceOrigin]:
    """Return where prices come from, `price_source, price_as_of`, one entry per source."""
    dates_of: dict[str, list[str]] = {}
    for source, as_of in sorted({(source or "", as_of or "") for source, as_of in prices}):
        dates_of.setdefault(source, []).extend([as_of] if as_of else [])
    origins = []
    for source, dates in dates_of.items():
        first, last = (dates[0], dates[-1]) if dates else (None, None)
        is_old = first is not None and _month(first) < _month(_newest()) - 12
        origins.append(PriceOrigin(source or None, first, last, is_old))
    return origins


def origin_line(origins: Iterable[PriceOrigin]) -> str:
    """Return a line that says where prices come from, and which are old."""
    parts = []
    for origin in origins:
        # A day is more than a reader has to know.
        months = dict.fromkeys(date[:7] for date in (origin.first, origin.last) if date)
        span = " to ".join(months) + (", old" if origin.is_old else "")
        parts.append(f"{origin.source or 'as given'} ({span or 'no date'})")
    return f"Prices: {'; '.join(parts)}."


def old_price_lines(origins: Iterable[PriceOrigin]) -> list[str]:
    """Return a warning for each source with old prices."""
    newer = f"--prices {' or '.join(providers())} has prices of {_newest()[:4]}"
    return [
        f"The prices are old: {origin.source or 'as given'}, {origin.first}. {newer}."
        for origin in origins
        if origin.is_old
    ]


def _month(date: str) -> int:
    """Return the month of a date as a number; a year alone counts as its last month."""
    year, month = (*map(int, date.split("-")[:2]), 12)[:2]
    return 12 * year + month


def token_prices(
    usd_per_hour: float, rate_rps: float, lengths: Sequence[float], input_share: float | None = None
) -> tuple[float, float]:
    """Return USD per million input and output tokens; the input bears `input_share`."""
    inputs, outputs = lengths
    share = inputs / (inputs + outputs) if input_share is None else input_share
    usd_per_request = usd_per_hour / 3600 / rate_rps
    of_input = 1e6 * share * usd_per_request / inputs
    return float(of_input), float(1e6 * (1 - share) * usd_per_request / outputs)


def might(profile: GPUProfile) -> tuple[float, float, float]:
    """Return memory (GiB), bandwidth (GB/s) and TFLOPS (16 bits) of all GPUs together."""
    gpu = profile.gpu
    n = profile.n_gpus
    return n * gpu.memory_gib, n * gpu.memory_bandwidth_gb_s, n * gpu.dense_16bit_tflops


def is_as_good(profile: GPUProfile, other: GPUProfile) -> bool:
    """Return whether a profile is of the same kind and has no less than another of anything.

    Compared are the number of GPUs and of nodes, and memory, bandwidth and FLOPS of one GPU.
    """
    if profile.n_gpus < other.n_gpus or profile.gpu.kind != other.gpu.kind:
        return False
    if profile.n_nodes > other.n_nodes:  # the network slows it down
        return False
    pairs = zip(might(profile), might(other), strict=True)
    return all(mine * other.n_gpus >= theirs * profile.n_gpus for mine, theirs in pairs)
