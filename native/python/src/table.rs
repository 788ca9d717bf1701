//! Bindings of `streamlearn_table`: sets of tables, pins and exports.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use streamlearn_table::{
    Admit, Again, At, Embeddings, Expiry, Export, Initial, Optimizer, PARTS, Page, Pin, Push, RowType, Rows,
    Rule, SketchSettings, Table, TableError, TableSet, TableSettings, Use,
};

use crate::arrays::{flat, flat_out};

/// Creates an exception of a class in `streamlearn.errors`.
pub fn raise(py: Python<'_>, class: &str, message: &str, help: &str) -> PyErr {
    let exception = py.import("streamlearn.errors").and_then(|errors| {
        let keywords = PyDict::new(py);
        keywords.set_item("help", help)?;
        errors.getattr(class)?.call((message,), Some(&keywords))
    });
    exception.map_or_else(|error| error, PyErr::from_value)
}

/// Converts a table's error to a Python exception.
pub fn refuse(py: Python<'_>, error: &TableError) -> PyErr {
    let text = error.to_string();
    match error {
        TableError::Argument(_) => PyValueError::new_err(text),
        TableError::Memory(_) => {
            raise(py, "TableFull", &text, "give the process more memory, or lower rows_max")
        }
        TableError::Full { .. } => {
            let help =
                "raise rows_max, expire more keys, or retain fewer versions; discard what is not committed";
            raise(py, "TableFull", &text, help)
        }
        TableError::Twice { .. } => {
            raise(py, "VersionRefused", &text, "the version's files contradict their manifest")
        }
        TableError::Version(_) => raise(py, "VersionRefused", &text, ""),
        TableError::Busy(_) => {
            raise(py, "TableBusy", &text, "try again when the other operation has finished")
        }
    }
}

#[pyclass(frozen, name = "TableSet", module = "streamlearn._native")]
pub struct NativeSet {
    pub set: Arc<TableSet>,
}

#[pyclass(frozen, name = "TablePin", module = "streamlearn._native")]
pub struct NativePin {
    set: Arc<TableSet>,
    pin: Pin,
    #[pyo3(get)]
    version: u64,
}

#[pyclass(frozen, name = "TableExport", module = "streamlearn._native")]
struct NativeExport {
    set: Arc<TableSet>,
    export: Mutex<Option<Export>>,
}

/// The version to read: a pin, "newest" or "active".
#[derive(FromPyObject)]
pub enum Version<'py> {
    Pin(PyRef<'py, NativePin>),
    Name(String),
}

impl Version<'_> {
    /// The `At` for a reader of a set.
    pub fn at(&self, set: &Arc<TableSet>) -> PyResult<At> {
        match self {
            Self::Pin(pin) if Arc::ptr_eq(&pin.set, set) => Ok(pin.pin.at()),
            Self::Pin(pin) => {
                let text = format!("at: the pin holds version {} of another set of tables", pin.version);
                Err(PyValueError::new_err(text))
            }
            Self::Name(name) if name == "newest" => Ok(At::Newest),
            Self::Name(name) if name == "active" => Ok(At::Active),
            Self::Name(name) => Err(PyValueError::new_err(format!(
                "at: expected a pin, \"newest\" or \"active\", got {name:?}"
            ))),
        }
    }
}

/// Reads an attribute. A derived `FromPyObject` would raise a `TypeError` for a number out of range.
fn attribute<'py, T: FromPyObjectOwned<'py>>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<T> {
    object.getattr(name)?.extract().map_err(Into::into)
}

/// The rule of an `Optimizer` in `streamlearn.table.options`.
fn rule_of(optimizer: &Bound<'_, PyAny>) -> PyResult<Rule> {
    let number = |name| attribute::<f32>(optimizer, name);
    let tag: String = attribute(&optimizer.getattr("__struct_config__")?, "tag")?;
    let rate = number("rate")?;
    let kind = match tag.as_str() {
        "sgd" => Optimizer::Sgd { rate },
        "adagrad" => Optimizer::Adagrad {
            rate,
            initial_accumulator: number("initial_accumulator")?,
            epsilon: number("epsilon")?,
        },
        "rowwise_adagrad" => Optimizer::RowwiseAdagrad {
            rate,
            initial_accumulator: number("initial_accumulator")?,
            epsilon: number("epsilon")?,
        },
        "adam" => Optimizer::Adam {
            rate,
            beta1: number("beta1")?,
            beta2: number("beta2")?,
            epsilon: number("epsilon")?,
        },
        "ftrl" => Optimizer::Ftrl {
            rate,
            l1: number("l1")?,
            l2: number("l2")?,
            beta: number("beta")?,
            initial_accumulator: number("initial_accumulator")?,
        },
        other => return Err(PyValueError::new_err(format!("unknown optimizer {other:?}"))),
    };
    Ok(Rule {
        kind,
        weight_decay: number("weight_decay")?,
        clip_norm: attribute(optimizer, "clip_norm")?,
        clip_value: attribute(optimizer, "clip_value")?,
    })
}

/// The settings of a `TableOptions` in `streamlearn.table.options`.
fn settings_of(options: &Bound<'_, PyAny>) -> PyResult<TableSettings> {
    let spec = options.getattr("spec")?;
    let row_type = row_type_of(&attribute::<String>(options, "row_type")?)?;
    let range: f32 = attribute(&spec, "initial_range")?;
    if !(0.0..f32::INFINITY).contains(&range) {
        return Err(PyValueError::new_err(format!(
            "initial_range is {range}: a finite number of at least 0"
        )));
    }
    let admission = attribute::<Optional<'_>>(options, "admission")?.map(|admission| {
        let (width_counters, window_ms) =
            (attribute(&admission, "width_counters")?, attribute(&admission, "window_ms")?);
        Ok::<_, PyErr>(SketchSettings { width_counters, window_ms })
    });
    Ok(TableSettings {
        dim: attribute(&spec, "dim")?,
        row_type,
        rule: attribute::<Optional<'_>>(options, "optimizer")?.as_ref().map(rule_of).transpose()?,
        admission: admission.transpose()?,
        initial: Initial { seed: attribute(options, "seed")?, range },
        tick_ms: attribute(options, "tick_ms")?,
        rows_max: attribute(options, "rows_max")?,
    })
}

type Optional<'py> = Option<Bound<'py, PyAny>>;

/// The arguments of a push beside keys and gradients; `PushOptions` in `streamlearn.table.table`.
#[derive(FromPyObject)]
pub struct PushOptions<'py> {
    /// uint32[n], how often each key occurred; None: once.
    counts: Optional<'py>,
    /// Pairs `(end, threshold)` for runs of keys.
    admit: Vec<(usize, u32)>,
    /// Table time.
    pub now_ms: i64,
    /// The factor of the optimizer's rate.
    pub rate_scale: f32,
}

impl<'py> PushOptions<'py> {
    pub fn counts(&self) -> PyResult<Option<PyReadonlyArray1<'py, u32>>> {
        optional(self.counts.as_ref(), "counts", "uint32")
    }

    pub fn admit(&self) -> Vec<Admit> {
        self.admit.iter().map(|&(end, threshold)| Admit { end, threshold }).collect()
    }
}

/// Which keys leave a table; `Expiry` in `streamlearn.table.options`.
#[derive(FromPyObject)]
struct ExpiryRule {
    idle_ms: Option<i64>,
    count_min: u8,
    rare_idle_ms: i64,
    keys_max: Option<usize>,
}

/// Rows to put, as `floats` or as `numbers`, and what is stored beside them; `RowArrays` in
/// `streamlearn.table.table`.
#[derive(FromPyObject)]
struct RowArrays<'py> {
    /// float32[n * dim].
    floats: Optional<'py>,
    /// uint8, the rows as their type stores them.
    numbers: Optional<'py>,
    /// float32[n], the scales of `numbers`.
    scales: Optional<'py>,
    /// float32[n * state], the optimizer's state.
    state: Optional<'py>,
    /// uint32[n], last uses.
    ticks: Optional<'py>,
    /// uint8[n], counts of uses.
    counts: Optional<'py>,
}

/// Borrows an optional array.
fn optional<'py, T: numpy::Element>(
    value: Option<&Bound<'py, PyAny>>,
    name: &str,
    types: &str,
) -> PyResult<Option<PyReadonlyArray1<'py, T>>> {
    value.map(|value| flat::<T>(value, name, types)).transpose()
}

fn slice_of<'a, T: numpy::Element>(array: &'a Option<PyReadonlyArray1<'_, T>>) -> PyResult<Option<&'a [T]>> {
    Ok(array.as_ref().map(|array| array.as_slice()).transpose()?)
}

fn uses_of(ticks: Option<&[u32]>, counts: Option<&[u8]>) -> PyResult<Option<Vec<Use>>> {
    match (ticks, counts) {
        (None, None) => Ok(None),
        (Some(ticks), Some(counts)) if ticks.len() == counts.len() => {
            let use_of = |(&tick, &count): (&u32, &u8)| Use { tick: tick % Use::TICKS, count };
            Ok(Some(ticks.iter().zip(counts).map(use_of).collect()))
        }
        (ticks, counts) => {
            let lengths = (ticks.map(<[u32]>::len), counts.map(<[u8]>::len));
            Err(PyValueError::new_err(format!(
                "ticks and counts: {lengths:?} values, expected equal numbers"
            )))
        }
    }
}

impl NativeSet {
    pub fn table(&self, table: usize) -> PyResult<&Table> {
        let tables = self.set.tables();
        tables.get(table).ok_or_else(|| PyIndexError::new_err(format!("table {table} of {}", tables.len())))
    }
}

fn parts_of(begin: usize, end: usize) -> PyResult<Range<usize>> {
    if begin > end || end > PARTS {
        return Err(PyValueError::new_err(format!("parts [{begin}, {end}) of {PARTS}")));
    }
    Ok(begin..end)
}

/// Converts the outcome of a call.
fn done<T>(py: Python<'_>, outcome: Result<T, TableError>) -> PyResult<T> {
    outcome.map_err(|error| refuse(py, &error))
}

#[pymethods]
impl NativeSet {
    #[new]
    fn new(py: Python<'_>, options: Vec<Bound<'_, PyAny>>) -> PyResult<Self> {
        let settings = options.iter().map(settings_of).collect::<PyResult<Vec<_>>>()?;
        Ok(Self { set: Arc::new(done(py, TableSet::new(&settings))?) })
    }

    #[pyo3(signature = (table, keys, at, out, threads))]
    fn lookup(
        &self,
        py: Python<'_>,
        table: usize,
        keys: &Bound<'_, PyAny>,
        at: Version<'_>,
        out: &Bound<'_, PyAny>,
        threads: usize,
    ) -> PyResult<()> {
        let (table, at) = (self.table(table)?, at.at(&self.set)?);
        let keys = flat::<u64>(keys, "keys", "uint64")?;
        let keys = keys.as_slice()?;
        let mut out = flat_out::<f32>(out, ("out", "float32"), keys.len() * table.settings.dim)?;
        let out = out.as_slice_mut()?;
        let outcome = py.detach(|| table.lookup(keys, at, out, threads));
        done(py, outcome)
    }

    #[pyo3(signature = (table, keys, gradients, options, threads))]
    fn push(
        &self,
        py: Python<'_>,
        table: usize,
        keys: &Bound<'_, PyAny>,
        gradients: &Bound<'_, PyAny>,
        options: PushOptions<'_>,
        threads: usize,
    ) -> PyResult<(usize, usize, usize)> {
        let table = self.table(table)?;
        let keys = flat::<u64>(keys, "keys", "uint64")?;
        let gradients = flat::<f32>(gradients, "gradients", "float32")?;
        let (counts, admit) = (options.counts()?, options.admit());
        let push = Push {
            keys: keys.as_slice()?,
            gradients: gradients.as_slice()?,
            counts: slice_of(&counts)?,
            admit: &admit,
            now_ms: options.now_ms,
            rate_scale: options.rate_scale,
        };
        let outcome = py.detach(|| table.push(push, threads));
        done(py, outcome).map(|pushed| (pushed.learned, pushed.created, pushed.waiting))
    }

    #[pyo3(signature = (table, keys, rows, refuse_twice, threads))]
    fn put(
        &self,
        py: Python<'_>,
        table: usize,
        keys: &Bound<'_, PyAny>,
        rows: RowArrays<'_>,
        refuse_twice: bool,
        threads: usize,
    ) -> PyResult<()> {
        let table = self.table(table)?;
        let keys = flat::<u64>(keys, "keys", "uint64")?;
        let floats = optional::<f32>(rows.floats.as_ref(), "rows", "float32")?;
        let numbers = optional::<u8>(rows.numbers.as_ref(), "numbers", "uint8")?;
        let scales = optional::<f32>(rows.scales.as_ref(), "scales", "float32")?;
        let state = optional::<f32>(rows.state.as_ref(), "state", "float32")?;
        let ticks = optional::<u32>(rows.ticks.as_ref(), "ticks", "uint32")?;
        let counts = optional::<u8>(rows.counts.as_ref(), "counts", "uint8")?;
        let uses = uses_of(slice_of(&ticks)?, slice_of(&counts)?)?;
        let embeddings = match (slice_of(&floats)?, slice_of(&numbers)?) {
            (Some(floats), None) => Embeddings::Floats(floats),
            (None, Some(numbers)) => Embeddings::Wire(numbers, slice_of(&scales)?),
            _ => return Err(PyValueError::new_err("rows: expected either float32 rows or stored numbers")),
        };
        let rows = Rows { embeddings, state: slice_of(&state)?, uses: uses.as_deref() };
        let (keys, again) = (keys.as_slice()?, if refuse_twice { Again::Refused } else { Again::Replaces });
        let outcome = py.detach(|| table.put(keys, rows, again, threads));
        done(py, outcome)
    }

    fn remove(
        &self,
        py: Python<'_>,
        table: usize,
        keys: &Bound<'_, PyAny>,
        refuse_twice: bool,
        threads: usize,
    ) -> PyResult<usize> {
        let table = self.table(table)?;
        let keys = flat::<u64>(keys, "keys", "uint64")?;
        let (keys, again) = (keys.as_slice()?, if refuse_twice { Again::Refused } else { Again::Replaces });
        let outcome = py.detach(|| table.remove(keys, again, threads));
        done(py, outcome)
    }

    fn expire(
        &self,
        py: Python<'_>,
        table: usize,
        expiry: ExpiryRule,
        now_ms: i64,
        budget_keys: usize,
    ) -> PyResult<(usize, usize, usize, usize)> {
        let table = self.table(table)?;
        let ExpiryRule { idle_ms, count_min, rare_idle_ms, keys_max } = expiry;
        let expiry = Expiry { idle_ms, count_min, rare_idle_ms, keys_max };
        let outcome = py.detach(|| table.expire(&expiry, now_ms, budget_keys));
        done(py, outcome).map(|expired| (expired.scanned, expired.idle, expired.rare, expired.over))
    }

    fn hands<'py>(
        &self,
        py: Python<'py>,
        table: usize,
        begin: usize,
        end: usize,
    ) -> PyResult<(usize, Bound<'py, PyArray1<u64>>)> {
        let (next_part, hands) = self.table(table)?.hands(parts_of(begin, end)?);
        Ok((next_part, hands.into_pyarray(py)))
    }

    fn set_hands(
        &self,
        table: usize,
        begin: usize,
        next_part: usize,
        hands: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let hands = flat::<u64>(hands, "hands", "uint64")?;
        let parts = parts_of(begin, begin.saturating_add(hands.as_slice()?.len()))?;
        self.table(table)?.set_hands(parts, next_part, hands.as_slice()?);
        Ok(())
    }

    fn take_pages<'py>(
        &self,
        py: Python<'py>,
        table: usize,
        begin: usize,
        end: usize,
        changed_only: bool,
    ) -> PyResult<Vec<(usize, Bound<'py, PyBytes>)>> {
        let (table, parts) = (self.table(table)?, parts_of(begin, end)?);
        let pages = py.detach(|| table.take_pages(parts, changed_only));
        Ok(pages.into_iter().map(|page| (page.part, PyBytes::new(py, &page.bytes))).collect())
    }

    fn put_page(&self, py: Python<'_>, table: usize, part: usize, bytes: &[u8]) -> PyResult<()> {
        let outcome = self.table(table)?.put_page(&Page { part, bytes: bytes.to_vec() });
        done(py, outcome)
    }

    fn clear_pages(&self, table: usize) -> PyResult<()> {
        self.table(table)?.clear_pages();
        Ok(())
    }

    fn seal(&self, py: Python<'_>, version: u64) -> PyResult<()> {
        let outcome = py.detach(|| self.set.seal(version));
        done(py, outcome)
    }

    fn commit(&self, py: Python<'_>, version: u64) -> PyResult<()> {
        done(py, self.set.commit(version))
    }

    fn abandon(&self, py: Python<'_>, version: u64) -> PyResult<()> {
        let outcome = py.detach(|| self.set.abandon(version));
        done(py, outcome)
    }

    fn discard(&self, py: Python<'_>, threads: usize) -> PyResult<()> {
        let outcome = py.detach(|| self.set.discard(threads));
        done(py, outcome)
    }

    fn activate(&self, py: Python<'_>, version: u64) -> PyResult<()> {
        done(py, self.set.activate(version))
    }

    fn retire(&self, py: Python<'_>, version: u64, wait_ms_max: u64, threads: usize) -> PyResult<usize> {
        let outcome = py.detach(|| self.set.retire(version, wait_ms_max, threads));
        done(py, outcome)
    }

    fn sweep(&self, py: Python<'_>, wait_ms_max: u64, threads: usize) -> PyResult<usize> {
        let outcome = py.detach(|| self.set.sweep(wait_ms_max, threads));
        done(py, outcome)
    }

    fn begin_staging(&self, py: Python<'_>, parent: Option<u64>) -> PyResult<()> {
        let outcome = py.detach(|| self.set.begin_staging(parent));
        done(py, outcome)
    }

    fn end_staging(&self, py: Python<'_>, version: u64) -> PyResult<()> {
        let outcome = py.detach(|| self.set.end_staging(version));
        done(py, outcome)
    }

    fn drop_staging(&self, py: Python<'_>, threads: usize) -> PyResult<()> {
        let outcome = py.detach(|| self.set.drop_staging(threads));
        done(py, outcome)
    }

    fn pin(&self, py: Python<'_>, version: u64) -> PyResult<NativePin> {
        let pin = done(py, self.set.pin(version))?;
        Ok(NativePin { set: self.set.clone(), pin, version })
    }

    fn changed(&self, py: Python<'_>, since: Option<u64>, upto: u64) -> PyResult<NativeExport> {
        let export = done(py, self.set.changed(since, upto))?;
        Ok(NativeExport { set: self.set.clone(), export: Mutex::new(Some(export)) })
    }

    #[getter]
    fn retained(&self) -> Vec<u64> {
        self.set.retained()
    }

    #[getter]
    fn sealed(&self) -> Option<u64> {
        self.set.sealed()
    }

    #[getter]
    fn active(&self) -> Option<u64> {
        self.set.active()
    }

    #[getter]
    fn retiring(&self) -> usize {
        self.set.retiring()
    }

    fn size<'py>(&self, py: Python<'py>, table: usize) -> PyResult<Bound<'py, PyDict>> {
        let table = self.table(table)?;
        let size = py.detach(|| table.size());
        let sizes = PyDict::new(py);
        for (name, value) in [
            ("keys", size.parts.keys),
            ("gone", size.parts.gone),
            ("rows", size.rows),
            ("images", size.parts.images),
            ("slots", size.parts.slots),
            ("free_rows", size.parts.free_rows),
            ("waiting_rows", size.parts.waiting_rows),
            ("embedding_bytes", size.embedding_bytes),
            ("state_bytes", size.state_bytes),
            ("use_bytes", size.use_bytes),
            ("index_bytes", size.index_bytes),
            ("images_bytes", size.images_bytes),
            ("touched_bytes", size.parts.touched_bytes),
            ("sketch_bytes", size.parts.sketch_bytes),
            ("bytes", size.bytes()),
        ] {
            sizes.set_item(name, value)?;
        }
        Ok(sizes)
    }
}

/// The changes of some parts of a table.
#[pyclass(frozen, get_all, name = "ExportedRows", module = "streamlearn._native")]
struct NativeRows {
    keys: Py<PyArray1<u64>>,
    /// The rows as their type stores them.
    numbers: Py<PyArray1<u8>>,
    /// The scales of int8 numbers, one a row.
    scales: Py<PyArray1<f32>>,
    /// The optimizer's state.
    state: Py<PyArray1<f32>>,
    /// Last uses.
    ticks: Py<PyArray1<u32>>,
    /// Counts of uses.
    counts: Py<PyArray1<u8>>,
    /// Removed keys.
    gone: Py<PyArray1<u64>>,
}

#[pymethods]
impl NativeExport {
    /// Releases both versions now, even if other references to this export exist.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.export.lock().expect("no holder panics").take()));
    }

    fn read(&self, py: Python<'_>, table: usize, begin: usize, end: usize) -> PyResult<NativeRows> {
        let tables = self.set.tables();
        let table = tables.get(table).ok_or_else(|| PyIndexError::new_err(format!("table {table}")))?;
        let parts = parts_of(begin, end)?;
        let outcome = py.detach(|| {
            let export = self.export.lock().expect("no holder panics");
            export.as_ref().map(|export| export.read(table, parts))
        });
        let outcome = outcome.ok_or_else(|| PyValueError::new_err("the export is closed"))?;
        let changes = done(py, outcome)?;
        let (ticks, counts): (Vec<u32>, Vec<u8>) =
            changes.uses.iter().map(|used| (used.tick, used.count)).unzip();
        Ok(NativeRows {
            keys: changes.keys.into_pyarray(py).unbind(),
            numbers: changes.numbers.into_pyarray(py).unbind(),
            scales: changes.scales.into_pyarray(py).unbind(),
            state: changes.state.into_pyarray(py).unbind(),
            ticks: ticks.into_pyarray(py).unbind(),
            counts: counts.into_pyarray(py).unbind(),
            gone: changes.gone.into_pyarray(py).unbind(),
        })
    }
}

type WireArrays<'py> = (Bound<'py, PyArray1<u8>>, Bound<'py, PyArray1<f32>>);

/// Rows in wire format: `(numbers, scales)`.
#[pyfunction]
fn encode_rows<'py>(
    py: Python<'py>,
    rows: &Bound<'py, PyAny>,
    dim: usize,
    row_type: &str,
) -> PyResult<WireArrays<'py>> {
    let rows = flat::<f32>(rows, "rows", "float32")?;
    let rows = rows.as_slice()?;
    if dim == 0 || rows.len() % dim != 0 {
        return Err(PyValueError::new_err(format!(
            "rows: {} floats do not make whole rows of {dim}",
            rows.len()
        )));
    }
    let row_type = row_type_of(row_type)?;
    let (numbers, scales) = py.detach(|| {
        let (mut stored, width) = (vec![0; row_type.row_bytes(dim)], dim * row_type.number_bytes());
        let (mut numbers, mut scales) = (vec![0; rows.len() / dim * width], Vec::new());
        for (row, into) in rows.chunks_exact(dim).zip(numbers.chunks_exact_mut(width)) {
            row_type.encode(row, &mut stored);
            scales.extend(row_type.to_wire(&stored, into));
        }
        (numbers, scales)
    });
    Ok((numbers.into_pyarray(py), scales.into_pyarray(py)))
}

fn row_type_of(name: &str) -> PyResult<RowType> {
    match name {
        "float32" => Ok(RowType::F32),
        "float16" => Ok(RowType::F16),
        "int8" => Ok(RowType::I8),
        other => Err(PyValueError::new_err(format!("unknown row type {other:?}"))),
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("TABLE_PARTS", PARTS)?;
    module.add_function(wrap_pyfunction!(encode_rows, module)?)?;
    module.add_class::<NativeSet>()?;
    module.add_class::<NativePin>()?;
    module.add_class::<NativeExport>()?;
    module.add_class::<NativeRows>()
}
