"""Options of a table: its optimizer, the admission and expiry of keys, and how rows are stored."""

from __future__ import annotations

import math
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

import msgspec
from msgspec import Meta

from streamlearn.errors import ConfigError
from streamlearn.features import TableSpec
from streamlearn.struct_decoder import from_plain
from streamlearn.table.arguments import INT64_MAX, UINT64_MAX

__all__ = [
    "Adagrad",
    "Adam",
    "Admission",
    "Expiry",
    "Ftrl",
    "Optimizer",
    "RowType",
    "RowwiseAdagrad",
    "Sgd",
    "TableOptions",
]

RowType = Literal["float32", "float16", "int8"]

_Positive = Annotated[float, Meta(gt=0)]
_Share = Annotated[float, Meta(ge=0, lt=1)]
_NotNegative = Annotated[float, Meta(ge=0)]
_Milliseconds = Annotated[int, Meta(gt=0, le=INT64_MAX)]

# The native core has the same bounds; checking them here gives errors in the words of this package.
_DIM_MAX = 4096
_CHUNK_ROWS, _SPARE_SHARE, _PARTS = 16, 16, 1024
_ROWS_MAX = 1 << 31
_RESERVED_BYTES_MAX = 1 << 44
_FLOAT32_MAX = (2 - 2**-23) * 2.0**127


class _Checked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings whose fields match their annotations, and whose floats fit float32."""

    def __post_init__(self) -> None:
        """Check every field; the first one with a wrong type or value raises a `ConfigError`."""
        for name, kind in _kinds(type(self)).items():
            value = getattr(self, name)
            try:
                from_plain(value, kind)
            except msgspec.ValidationError as error:
                self._refuse(name, str(error).replace("Expected", "expected"))
            if isinstance(value, float) and not abs(value) <= _FLOAT32_MAX:
                self._refuse(name, "float32 cannot hold it")

    def _title(self) -> str:
        return type(self).__name__

    def _refuse(self, name: str, why: str, *, help: str = "") -> None:
        message = f"{self._title()}: {name} is {getattr(self, name)!r}: {why}"
        raise ConfigError(message, help=help or f"see streamlearn.table.{type(self).__name__}")


class _Learning(_Checked, frozen=True, tag_field="kind", kw_only=True):
    """The fields of every optimizer. The rate may be positional, all others are keyword-only.

    Attributes:
        rate: The learning rate; the caller's schedule multiplies it.
        weight_decay: The share of a row, times the rate, that each of its updates subtracts first.
        clip_norm: The maximum L2 norm of a key's gradient; None for no limit.
        clip_value: The bound of each number of a gradient, applied before `clip_norm`.
    """

    rate: _Positive
    weight_decay: _NotNegative = 0.0
    clip_norm: _Positive | None = None
    clip_value: _Positive | None = None
    # Numbers of state for each number of a row, and for the row.
    state: ClassVar[tuple[int, int]] = (0, 0)

    def state_width(self, dim: int) -> int:
        """Return how many numbers of state a row of `dim` numbers has."""
        return self.state[0] * dim + self.state[1]


class Sgd(_Learning, frozen=True, tag="sgd"):
    """Plain gradient descent; rows have no state."""

    rate: _Positive


class Adagrad(_Learning, frozen=True, tag="adagrad"):
    """Keeps a sum of squares for each number: `w -= rate * g / (sqrt(sum) + epsilon)`, as in PyTorch.

    `initial_accumulator` is the first value of the sums; `epsilon` keeps the divisor from zero.
    """

    rate: _Positive = 0.01
    initial_accumulator: _NotNegative = 0.1
    epsilon: _NotNegative = 1e-10
    state: ClassVar[tuple[int, int]] = (1, 0)  # a sum


class RowwiseAdagrad(_Learning, frozen=True, tag="rowwise_adagrad"):
    """Keeps one sum of mean squares for each row, as in FBGEMM: for rows of 16, a sixteenth of Adagrad's state.

    The fields are those of `Adagrad`.
    """

    rate: _Positive = 0.01
    initial_accumulator: _NotNegative = 0.1
    epsilon: _NotNegative = 1e-10
    state: ClassVar[tuple[int, int]] = (0, 1)  # a sum


class Adam(_Learning, frozen=True, tag="adam"):
    """Lazy Adam: each row counts its own steps, and does not change between them.

    `beta1` and `beta2` are the decay rates of the mean gradient and the mean square; `epsilon` keeps the divisor from
    zero.
    """

    rate: _Positive = 0.001
    beta1: _Share = 0.9
    beta2: _Share = 0.999
    epsilon: _Positive = 1e-7
    state: ClassVar[tuple[int, int]] = (2, 1)  # a mean and a mean square; the count of steps


class Ftrl(_Learning, frozen=True, tag="ftrl"):
    """FTRL-Proximal as in TensorFlow; its first step forgets the initial row, so declare `initial_range=0`.

    Attributes:
        l1: Rows whose summed gradient stays within this are zero.
        l2: Pulls rows to zero; use it in place of `weight_decay`, which is refused.
        beta: Slows the first steps.
        initial_accumulator: The first value of the sums of squares.
    """

    rate: _Positive = 0.05
    l1: _NotNegative = 0.0
    l2: _NotNegative = 0.0
    beta: _NotNegative = 0.0
    initial_accumulator: _NotNegative = 0.1
    state: ClassVar[tuple[int, int]] = (2, 0)  # a sum of squares and a linear term

    def __post_init__(self) -> None:
        """Check the fields, and that `weight_decay` is 0; raises a `ConfigError`."""
        super().__post_init__()
        if self.weight_decay:
            self._refuse("weight_decay", "FTRL does not have weight decay", help="set `l2`, which pulls rows to zero")


Optimizer = Sgd | Adagrad | RowwiseAdagrad | Adam | Ftrl


class Admission(_Checked, frozen=True):
    """How occurrences of keys without a row are counted.

    Attributes:
        window_ms: The table time for which a count is remembered, at least; it is forgotten within twice that.
        width_counters: Counters of each of the 1,024 parts, a power of two, one byte each. With one new key in a
            window for every 16 of them, fewer than one key in a hundred is admitted too early.
    """

    window_ms: _Milliseconds = 86_400_000
    width_counters: Annotated[int, Meta(ge=64, le=1 << 20)] = 4096

    def __post_init__(self) -> None:
        """Check the fields, and that the width is a power of two; raises a `ConfigError`."""
        super().__post_init__()
        if self.width_counters & (self.width_counters - 1):
            self._refuse("width_counters", "expected a power of two")


class Expiry(_Checked, frozen=True):
    """Which keys leave a table. Ages are table time, in whole ticks of the table.

    Attributes:
        idle_ms: Keys unused for longer than this leave; None for never. At most half the range of ticks, see
            `TableOptions.tick_ms`.
        count_min: Keys used fewer times than this leave once unused for longer than `rare_idle_ms`. Counts stop at
            255.
        rare_idle_ms: See `count_min`; bounded as `idle_ms` is.
        keys_max: While there are more keys than this, some of the keys that a call checks leave, but never more than
            the excess; None for no limit. The limit is approached, not enforced. A call checks some hundreds of keys
            of one part at a time, and of these at most a quarter leave, the longest unused first. So it takes several
            calls, each of at most one pass over the table, to remove more than a quarter of the keys, and a table may
            grow beyond the limit between calls. Where parts have few keys (tables of some thousands), the order of
            the checks decides which keys leave, rather than their age.
    """

    idle_ms: _Milliseconds | None = None
    count_min: Annotated[int, Meta(ge=0, le=255)] = 0
    rare_idle_ms: Annotated[int, Meta(ge=0, le=INT64_MAX)] = 0
    keys_max: Annotated[int, Meta(ge=1, le=INT64_MAX)] | None = None


class TableOptions(_Checked, frozen=True):
    """The options of one table.

    Attributes:
        spec: The name, the length of rows, and the range of initial rows.
        rows_max: How many rows there may be, including older images, and 32 more for each of the 1,024 parts, at most
            2^31 - 2^27 in all. Address space for these and a sixteenth more is reserved; memory is used as needed.
        optimizer: How rows learn; None for a table that only serves.
        row_type: How rows are stored; only float32 rows learn.
        admission: How keys without a row are counted; None gives every key a row at once.
        seed: The seed of initial rows; the same in training and serving.
        tick_ms: The unit in which each row stores table time. 2^24 ticks, 32 years of minutes, make a full range, so
            ages are known up to half of it, which bounds `Expiry.idle_ms` and `rare_idle_ms`; a row unused for longer
            counts as just used. Expiry is no finer than a tick.
    """

    spec: TableSpec
    rows_max: Annotated[int, Meta(ge=1, le=_ROWS_MAX)]
    optimizer: Optimizer | None = None
    row_type: RowType = "float32"
    admission: Admission | None = None
    seed: Annotated[int, Meta(ge=0)] = 0
    tick_ms: _Milliseconds = 60_000

    def __post_init__(self) -> None:
        """Check the fields against their bounds and each other, and the memory they need; raises a `ConfigError`."""
        _check_spec(self.spec)
        super().__post_init__()
        if self.seed > UINT64_MAX:
            self._refuse("seed", f"expected at most {UINT64_MAX}")
        if self.optimizer is not None and self.row_type != "float32":
            help = "remove the optimizer, or store rows as float32"
            self._refuse("row_type", "a table with an optimizer stores float32 rows: training needs them", help=help)
        reserved_bytes = _reserved_bytes(self)
        if reserved_bytes > _RESERVED_BYTES_MAX:
            why = f"that takes {reserved_bytes} bytes of address space; a table may take {_RESERVED_BYTES_MAX}"
            self._refuse("rows_max", why, help="lower rows_max, or make the rows narrower")

    def _title(self) -> str:
        return f"options of table {self.spec.name!r}"


@cache
def _kinds(kind: type[_Checked]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in kind.__struct_fields__}


def _check_spec(spec: Any) -> None:
    if not isinstance(spec, TableSpec):
        message = f"TableOptions: spec is {spec!r}: expected a TableSpec"
        raise ConfigError(message, help='give `TableSpec("videos", dim=16, initial_range=0.05)`')
    title = f"TableSpec {spec.name!r}"
    if type(spec.dim) is not int or not 1 <= spec.dim <= _DIM_MAX:
        message = f"{title}: dim is {spec.dim!r}: expected a whole number from 1 to {_DIM_MAX}"
        raise ConfigError(message, help="see streamlearn.features.TableSpec")
    if type(spec.initial_range) not in (int, float) or not 0 <= spec.initial_range < math.inf:
        message = f"{title}: initial_range is {spec.initial_range!r}: expected a finite number of at least 0"
        raise ConfigError(message, help="see streamlearn.features.TableSpec")


def _reserved_bytes(options: TableOptions) -> int:
    """Return the bytes of the columns that share one reservation, as the native core makes it."""
    dim = options.spec.dim
    embedding_bytes = {"float32": 4 * dim, "float16": 2 * dim, "int8": 4 + dim}[options.row_type]
    state_width = 0 if options.optimizer is None else options.optimizer.state_width(dim)
    # A state of one number is stored beside the row's last use and count.
    words = -(-embedding_bytes // 8) + (0 if state_width == 1 else -(-state_width // 2))
    rows = min(options.rows_max + _PARTS * 2 * _CHUNK_ROWS, _ROWS_MAX - _ROWS_MAX // _SPARE_SHARE)
    spare = -(-(rows // _SPARE_SHARE) // _CHUNK_ROWS) * _CHUNK_ROWS
    return (rows + spare) * words * 8
