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

/// A class of `streamlearn.errors`, raised.
pub fn raise(py: Python<'_>, class: &str, message: &str, help: &str) -> PyErr {
    let made = py.import("streamlearn.errors").and_then(|errors| {
        let named = PyDict::new(py);
        named.set_item("help", help)?;
        errors.getattr(class)?.call((message,), Some(&named))
    });
    made.map_or_else(|error| error, PyErr::from_value)
}

/// A table's error as Python's.
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
            raise(py, "VersionRefused", &text, "the version's files are not what they say")
        }
        TableError::Version(_) => raise(py, "VersionRefused", &text, ""),
        TableError::Busy(_) => raise(py, "TableBusy", &text, "try again when that is done"),
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

/// Which version to read: a pin, or "newest", or "active".
#[derive(FromPyObject)]
pub enum Version<'py> {
    Pin(PyRef<'py, NativePin>),
    Name(String),
}

impl Version<'_> {
    /// What a reader of a set says.
    pub fn at(&self, set: &Arc<TableSet>) -> PyResult<At> {
        match self {
            Self::Pin(pin) if Arc::ptr_eq(&pin.set, set) => Ok(pin.pin.at()),
            Self::Pin(pin) => {
                let text = format!("at: the pin is of version {} of another set of tables", pin.version);
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

/// `(kind, numbers, weight_decay, clip_norm, clip_value)`.
type RuleTuple = (String, Vec<f32>, f32, Option<f32>, Option<f32>);
/// `(dim, row_type, rule, (width_counters, window_ms), (seed, range), tick_ms, rows_max)`.
type SettingsTuple = (usize, String, Option<RuleTuple>, Option<(u32, i64)>, (u64, f32), i64, usize);

fn rule_of((kind, numbers, weight_decay, clip_norm, clip_value): RuleTuple) -> PyResult<Rule> {
    let kind = match (kind.as_str(), &numbers[..]) {
        ("sgd", &[rate]) => Optimizer::Sgd { rate },
        ("adagrad", &[rate, initial_accumulator, epsilon]) => {
            Optimizer::Adagrad { rate, initial_accumulator, epsilon }
        }
        ("rowwise_adagrad", &[rate, initial_accumulator, epsilon]) => {
            Optimizer::RowwiseAdagrad { rate, initial_accumulator, epsilon }
        }
        ("adam", &[rate, beta1, beta2, epsilon]) => Optimizer::Adam { rate, beta1, beta2, epsilon },
        ("ftrl", &[rate, l1, l2, beta, initial_accumulator]) => {
            Optimizer::Ftrl { rate, l1, l2, beta, initial_accumulator }
        }
        (kind, numbers) => {
            let text = format!("unknown optimizer {kind:?} of {} numbers", numbers.len());
            return Err(PyValueError::new_err(text));
        }
    };
    Ok(Rule { kind, weight_decay, clip_norm, clip_value })
}

fn settings_of(settings: SettingsTuple) -> PyResult<TableSettings> {
    let (dim, row_type, rule, admission, (seed, range), tick_ms, rows_max) = settings;
    let row_type = row_type_of(&row_type)?;
    if !(0.0..f32::INFINITY).contains(&range) {
        return Err(PyValueError::new_err(format!(
            "initial_range is {range}: a finite number of at least 0"
        )));
    }
    let admission = admission.map(|(width_counters, window_ms)| SketchSettings { width_counters, window_ms });
    let rule = rule.map(rule_of).transpose()?;
    Ok(TableSettings { dim, row_type, rule, admission, initial: Initial { seed, range }, tick_ms, rows_max })
}

type Optional<'py> = Option<Bound<'py, PyAny>>;

/// The slice of an array there may be.
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
            let one = |(&tick, &count): (&u32, &u8)| Use { tick: tick % Use::TICKS, count };
            Ok(Some(ticks.iter().zip(counts).map(one).collect()))
        }
        (ticks, counts) => {
            let lengths = (ticks.map(<[u32]>::len), counts.map(<[u8]>::len));
            Err(PyValueError::new_err(format!("ticks and counts: {lengths:?} values, expected as many")))
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

/// What a call does that is not a query.
fn done<T>(py: Python<'_>, outcome: Result<T, TableError>) -> PyResult<T> {
    outcome.map_err(|error| refuse(py, &error))
}

#[pymethods]
impl NativeSet {
    #[new]
    fn new(py: Python<'_>, settings: Vec<SettingsTuple>) -> PyResult<Self> {
        let settings = settings.into_iter().map(settings_of).collect::<PyResult<Vec<_>>>()?;
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

    #[pyo3(signature = (table, keys, gradients, counts, admit, times, threads))]
    #[expect(clippy::too_many_arguments, reason = "private: the Python class is what people call")]
    fn push(
        &self,
        py: Python<'_>,
        table: usize,
        keys: &Bound<'_, PyAny>,
        gradients: &Bound<'_, PyAny>,
        counts: Optional<'_>,
        admit: Vec<(usize, u32)>,
        times: (i64, f32),
        threads: usize,
    ) -> PyResult<(usize, usize, usize)> {
        let table = self.table(table)?;
        let keys = flat::<u64>(keys, "keys", "uint64")?;
        let gradients = flat::<f32>(gradients, "gradients", "float32")?;
        let counts = optional::<u32>(counts.as_ref(), "counts", "uint32")?;
        let admit: Vec<Admit> = admit.into_iter().map(|(end, threshold)| Admit { end, threshold }).collect();
        let push = Push {
            keys: keys.as_slice()?,
            gradients: gradients.as_slice()?,
            counts: slice_of(&counts)?,
            admit: &admit,
            now_ms: times.0,
            rate_scale: times.1,
        };
        let outcome = py.detach(|| table.push(push, threads));
        done(py, outcome).map(|pushed| (pushed.learned, pushed.created, pushed.waiting))
    }

    #[pyo3(signature = (table, keys, rows, state, uses, refuse_twice, threads))]
    #[expect(clippy::too_many_arguments, reason = "private: the Python class is what people call")]
    fn put(
        &self,
        py: Python<'_>,
        table: usize,
        keys: &Bound<'_, PyAny>,
        rows: (Optional<'_>, Optional<'_>, Optional<'_>),
        state: Optional<'_>,
        uses: (Optional<'_>, Optional<'_>),
        refuse_twice: bool,
        threads: usize,
    ) -> PyResult<()> {
        let table = self.table(table)?;
        let keys = flat::<u64>(keys, "keys", "uint64")?;
        let floats = optional::<f32>(rows.0.as_ref(), "rows", "float32")?;
        let numbers = optional::<u8>(rows.1.as_ref(), "numbers", "uint8")?;
        let scales = optional::<f32>(rows.2.as_ref(), "scales", "float32")?;
        let state = optional::<f32>(state.as_ref(), "state", "float32")?;
        let ticks = optional::<u32>(uses.0.as_ref(), "ticks", "uint32")?;
        let counts = optional::<u8>(uses.1.as_ref(), "counts", "uint8")?;
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
        expiry: (Option<i64>, u8, i64, Option<usize>),
        now_ms: i64,
        budget_keys: usize,
    ) -> PyResult<(usize, usize, usize, usize)> {
        let table = self.table(table)?;
        let (idle_ms, count_min, rare_idle_ms, keys_max) = expiry;
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
        let found = PyDict::new(py);
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
            found.set_item(name, value)?;
        }
        Ok(found)
    }
}

type ChangeArrays<'py> = (
    Bound<'py, PyArray1<u64>>,
    Bound<'py, PyArray1<u8>>,
    Bound<'py, PyArray1<f32>>,
    Bound<'py, PyArray1<f32>>,
    Bound<'py, PyArray1<u32>>,
    Bound<'py, PyArray1<u8>>,
    Bound<'py, PyArray1<u64>>,
);

#[pymethods]
impl NativeExport {
    /// Let go of both versions now, whoever still knows of this.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.export.lock().expect("no holder panics").take()));
    }

    fn read<'py>(
        &self,
        py: Python<'py>,
        table: usize,
        begin: usize,
        end: usize,
    ) -> PyResult<ChangeArrays<'py>> {
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
        Ok((
            changes.keys.into_pyarray(py),
            changes.numbers.into_pyarray(py),
            changes.scales.into_pyarray(py),
            changes.state.into_pyarray(py),
            ticks.into_pyarray(py),
            counts.into_pyarray(py),
            changes.gone.into_pyarray(py),
        ))
    }
}

type WireArrays<'py> = (Bound<'py, PyArray1<u8>>, Bound<'py, PyArray1<f32>>);

/// Rows as they are stored on the wire: `(numbers, scales)`.
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
    module.add_class::<NativeExport>()
}
