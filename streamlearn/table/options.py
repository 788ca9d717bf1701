"""What a table is made of: its optimizer, who gets a row, who loses it, and how rows are stored."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from msgspec import Meta

from streamlearn.errors import ConfigError
from streamlearn.features import TableSpec
from streamlearn.table.arguments import INT64_MAX, UINT64_MAX
from streamlearn.table.option_checks import Checked

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

# What the native core bounds, so that what it would refuse is refused in the words of this package.
_DIM_MAX = 4096
_CHUNK_ROWS, _SPARE_SHARE, _PARTS = 16, 16, 1024
_ROWS_MAX = 1 << 31
_RESERVED_BYTES_MAX = 1 << 44


class _Learning(Checked, frozen=True, tag_field="kind", kw_only=True):
    """What every optimizer has. The rate may be given by position, and all else by name.

    Attributes:
        rate: The learning rate; a schedule multiplies it from call to call.
        weight_decay: The share of a row, times the rate, that is taken off before each step of its own.
        clip_norm: The gradient of a key is shortened to this L2 norm; None never.
        clip_value: Each number of a gradient is brought within plus and minus this, before `clip_norm`.
    """

    rate: _Positive
    weight_decay: _NotNegative = 0.0
    clip_norm: _Positive | None = None
    clip_value: _Positive | None = None

    def state_width(self, dim: int) -> int:
        """Numbers of state that a row of `dim` numbers has."""
        raise NotImplementedError

    def numbers(self) -> list[float]:
        """The optimizer's numbers in the order the native core takes them."""
        raise NotImplementedError


class Sgd(_Learning, frozen=True, tag="sgd"):
    """Plain descent; rows have no state."""

    rate: _Positive

    def state_width(self, dim: int) -> int:
        """None: rows have no state."""
        return 0

    def numbers(self) -> list[float]:
        """The rate."""
        return [self.rate]


class Adagrad(_Learning, frozen=True, tag="adagrad"):
    """Each number has its own sum of squares: `w -= rate * g / (sqrt(sum) + epsilon)`, as in PyTorch.

    Attributes:
        initial_accumulator: What the sums begin at.
        epsilon: Keeps the divisor from zero.
    """

    rate: _Positive = 0.01
    initial_accumulator: _NotNegative = 0.1
    epsilon: _NotNegative = 1e-10

    def state_width(self, dim: int) -> int:
        """A sum for each number."""
        return dim

    def numbers(self) -> list[float]:
        """The rate, the initial accumulator, epsilon."""
        return [self.rate, self.initial_accumulator, self.epsilon]


class RowwiseAdagrad(_Learning, frozen=True, tag="rowwise_adagrad"):
    """A row has one sum, of the mean of squares: a sixteenth of Adagrad's memory for rows of 16, as in FBGEMM.

    Attributes:
        initial_accumulator: What the sum begins at.
        epsilon: Keeps the divisor from zero.
    """

    rate: _Positive = 0.01
    initial_accumulator: _NotNegative = 0.1
    epsilon: _NotNegative = 1e-10

    def state_width(self, dim: int) -> int:
        """One sum."""
        return 1

    def numbers(self) -> list[float]:
        """The rate, the initial accumulator, epsilon."""
        return [self.rate, self.initial_accumulator, self.epsilon]


class Adam(_Learning, frozen=True, tag="adam"):
    """Lazy Adam: a row has its own count of steps, and nothing happens to it between them.

    Attributes:
        beta1: How slowly the mean of gradients moves.
        beta2: How slowly the mean of their squares moves.
        epsilon: Keeps the divisor from zero.
    """

    rate: _Positive = 0.001
    beta1: _Share = 0.9
    beta2: _Share = 0.999
    epsilon: _Positive = 1e-7

    def state_width(self, dim: int) -> int:
        """A mean and a mean square for each number, and the count of steps."""
        return 2 * dim + 1

    def numbers(self) -> list[float]:
        """The rate, both betas, epsilon."""
        return [self.rate, self.beta1, self.beta2, self.epsilon]


class Ftrl(_Learning, frozen=True, tag="ftrl"):
    """FTRL-Proximal as in TensorFlow; its first step forgets the initial row, so declare `initial_range=0`.

    Attributes:
        l1: Rows whose gradients' sum stays within this are zero.
        l2: Pulls rows to zero; takes the place of `weight_decay`, which is refused.
        beta: Slows the first steps.
        initial_accumulator: What the sums of squares begin at.
    """

    rate: _Positive = 0.05
    l1: _NotNegative = 0.0
    l2: _NotNegative = 0.0
    beta: _NotNegative = 0.0
    initial_accumulator: _NotNegative = 0.1

    def __post_init__(self) -> None:
        """Refuse a weight decay, too.

        Raises:
            ConfigError: There is one, or a field is out of its bounds.
        """
        super().__post_init__()
        if self.weight_decay:
            self._refuse("weight_decay", "FTRL does not have weight decay", help="set `l2`, which pulls rows to zero")

    def state_width(self, dim: int) -> int:
        """A sum of squares and a linear term for each number."""
        return 2 * dim

    def numbers(self) -> list[float]:
        """The rate, l1, l2, beta, the initial accumulator."""
        return [self.rate, self.l1, self.l2, self.beta, self.initial_accumulator]


Optimizer = Sgd | Adagrad | RowwiseAdagrad | Adam | Ftrl


class Admission(Checked, frozen=True):
    """How it is counted how often a key without a row was seen.

    Attributes:
        window_ms: Table time a count is remembered for, at least; it is forgotten within twice that.
        width_counters: Counters of each of the 1,024 parts, a power of two; a byte of memory each. With one new key
            in a window for every 16 of them, fewer than one key in a hundred is admitted too early.
    """

    window_ms: _Milliseconds = 86_400_000
    width_counters: Annotated[int, Meta(ge=64, le=1 << 20)] = 4096

    def __post_init__(self) -> None:
        """Refuse a width that is no power of two, too.

        Raises:
            ConfigError: It is none, or a field is out of its bounds.
        """
        super().__post_init__()
        if self.width_counters & (self.width_counters - 1):
            self._refuse("width_counters", "expected a power of two")


class Expiry(Checked, frozen=True):
    """Which keys leave a table. Ages are table time, in whole ticks of the table.

    Attributes:
        idle_ms: Keys not used for longer than this leave; None never. Half a round of ticks bounds it, see
            `TableOptions.tick_ms`.
        count_min: Keys used less often than this leave when not used for longer than `rare_idle_ms` (counts stay at
            255).
        rare_idle_ms: See `count_min`; bounded as `idle_ms` is.
        keys_max: While there are more keys than this, some of those looked at leave, and never more than there are
            too many; None for no limit. It is approached and not kept to: keys are looked at some hundreds of one
            part at a time, and of these at most a quarter leave at once, those not used for longest among them. So it
            takes several calls, each of one round through the table at most, to shed more than a quarter of it;
            between calls a table may grow beyond; and where parts have few keys (tables of some thousands) who leaves
            is decided by whose turn it is rather than by age.
    """

    idle_ms: _Milliseconds | None = None
    count_min: Annotated[int, Meta(ge=0, le=255)] = 0
    rare_idle_ms: Annotated[int, Meta(ge=0, le=INT64_MAX)] = 0
    keys_max: Annotated[int, Meta(ge=1, le=INT64_MAX)] | None = None


class TableOptions(Checked, frozen=True):
    """One table.

    Attributes:
        spec: Its name, the length of its rows, and the range of rows never learned.
        rows_max: How many rows there may be, older images among them, and 16 more for each of the 1,024 parts, at most
            2^31 - 2^27 in all. Address space for these and a sixteenth more is reserved, and taken as it is used.
        optimizer: How rows learn; None for a table that only serves.
        row_type: How rows are stored; only float32 learns.
        admission: How keys without a row are counted; None gives every key a row at once.
        seed: Of the initial rows; the same in training and serving.
        tick_ms: Table time is kept with each row in ticks of this length, and 2^24 of them go round: 32 years of
            minutes. Ages are whole ticks, so it bounds how fine expiry is; they are told up to half a round, 16 years
            of minutes, so it bounds `Expiry.idle_ms` and `rare_idle_ms`; and a row not used for longer than that
            counts as used just now.
    """

    spec: TableSpec
    rows_max: Annotated[int, Meta(ge=1, le=_ROWS_MAX)]
    optimizer: Optimizer | None = None
    row_type: RowType = "float32"
    admission: Admission | None = None
    seed: Annotated[int, Meta(ge=0)] = 0
    tick_ms: _Milliseconds = 60_000

    def __post_init__(self) -> None:
        """Refuse a table that cannot be, too.

        Raises:
            ConfigError: A field is out of its bounds, contradicts another, or asks for more memory than can be.
        """
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
    """Bytes of the columns that stand beside each other in one reservation, as the native core makes it."""
    dim = options.spec.dim
    embedding_bytes = {"float32": 4 * dim, "float16": 2 * dim, "int8": 4 + dim}[options.row_type]
    state_width = 0 if options.optimizer is None else options.optimizer.state_width(dim)
    # A state of one number stands beside when and how often the row was used.
    words = -(-embedding_bytes // 8) + (0 if state_width == 1 else -(-state_width // 2))
    rows = min(options.rows_max + _PARTS * _CHUNK_ROWS, _ROWS_MAX - _ROWS_MAX // _SPARE_SHARE)
    spare = -(-(rows // _SPARE_SHARE) // _CHUNK_ROWS) * _CHUNK_ROWS
    return (rows + spare) * words * 8
