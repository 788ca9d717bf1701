//! Bindings of `scan` and of what a node knows of the items of a version: vectors in blocks, ids, and features.

use std::sync::Arc;

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use streamlearn_scan::{Blocks, Changes, Excluded, ScanError, Search, Training, encode};
use streamlearn_serve::request::Values;
use streamlearn_serve::versions::item_features::{ColumnForm, ItemFeatures};
use streamlearn_serve::versions::item_index::ItemIndex;
use streamlearn_serve::versions::raw_ids::{RawId, RawIds};

use crate::arrays::flat;
use crate::serve::NativeFront;

/// The keys and scores that a search found, and the end of each user's.
type Found<'py> = (Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<f32>>, Bound<'py, PyArray1<i64>>);
/// Rows as int8 values, and their scales.
type Encoded<'py> = (Bound<'py, PyArray2<i8>>, Bound<'py, PyArray1<f32>>);

/// `VersionItems.found` in `streamlearn.serving.item_indexes`.
pub type VersionItems<'py> = (PyRef<'py, NativeBlocks>, PyRef<'py, NativeRawIds>, Option<i64>, Option<usize>);

/// Returns the items of a version with this identity.
pub fn index_of((blocks, ids, as_of_ms, probes): VersionItems<'_>, identity: u64) -> ItemIndex {
    ItemIndex { blocks: blocks.blocks.clone(), ids: ids.ids.clone(), as_of_ms, probes, identity }
}

/// More move centroids hardly any further.
const TRAINING_ROUNDS: usize = 8;

fn wrong(error: ScanError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The vectors of a version's items.
#[pyclass(frozen, name = "Blocks", module = "streamlearn._native")]
pub struct NativeBlocks {
    pub blocks: Arc<Blocks>,
}

#[pymethods]
impl NativeBlocks {
    #[new]
    fn new(dim: usize) -> PyResult<Self> {
        Ok(Self { blocks: Arc::new(Blocks::new(dim).map_err(wrong)?) })
    }

    fn __len__(&self) -> usize {
        self.blocks.len()
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.blocks.bytes()
    }

    /// The number of cells; 0 without.
    #[getter]
    fn cells(&self) -> usize {
        self.blocks.cells().map_or(0, |cells| cells.count())
    }

    /// The same rows in cells.
    fn in_cells(&self, py: Python<'_>, cells: usize) -> PyResult<Self> {
        let training = Training { cells, rounds: TRAINING_ROUNDS, seed: 0 };
        let blocks = py.detach(|| self.blocks.in_cells(&training)).map_err(wrong)?;
        Ok(Self { blocks: Arc::new(blocks) })
    }

    fn apply(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: PyReadonlyArray2<'_, i8>,
        scales: &Bound<'_, PyAny>,
        removed: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let (keys, removed) =
            (flat::<u64>(keys, "keys", "uint64")?, flat::<u64>(removed, "removed", "uint64")?);
        let scales = flat::<f32>(scales, "scales", "float32")?;
        let changes = Changes {
            keys: keys.as_slice()?,
            values: values.as_slice()?,
            scales: scales.as_slice()?,
            removed: removed.as_slice()?,
        };
        let blocks = py.detach(|| self.blocks.apply(&changes)).map_err(wrong)?;
        Ok(Self { blocks: Arc::new(blocks) })
    }

    /// `excluded` has keys for each user, or is empty.
    #[pyo3(signature = (users, k, excluded=Vec::new(), allowed=None, threads=1, probes=None))]
    #[expect(clippy::too_many_arguments, reason = "private: the Python class is what people call")]
    fn search<'py>(
        &self,
        py: Python<'py>,
        users: PyReadonlyArray2<'_, f32>,
        k: usize,
        excluded: Vec<Bound<'py, PyAny>>,
        allowed: Option<Bound<'py, PyAny>>,
        threads: usize,
        probes: Option<usize>,
    ) -> PyResult<Found<'py>> {
        if users.shape()[1] != self.blocks.dim() {
            let text = format!("users: expected {} columns, got {}", self.blocks.dim(), users.shape()[1]);
            return Err(PyValueError::new_err(text));
        }
        let (mut keys, mut ends) = (Vec::new(), Vec::new());
        for of_user in &excluded {
            keys.extend_from_slice(flat::<u64>(of_user, "excluded", "uint64")?.as_slice()?);
            ends.push(keys.len());
        }
        let allowed = allowed.map(|allowed| flat::<u64>(&allowed, "allowed", "uint64")).transpose()?;
        let allowed = allowed.as_ref().map(|allowed| allowed.as_slice()).transpose()?;
        let excluded = Excluded { keys: &keys, ends: &ends };
        let (search, users) =
            (Search { excluded, allowed, threads, probes, ..Search::new(k) }, users.as_slice()?);
        let top = py.detach(|| self.blocks.search(users, &search)).map_err(wrong)?;
        let ends = top.ends.into_iter().map(|end| end as i64).collect();
        Ok((
            PyArray1::from_vec(py, top.keys),
            PyArray1::from_vec(py, top.scores),
            PyArray1::from_vec(py, ends),
        ))
    }
}

/// The ids of a version's items.
#[pyclass(frozen, name = "RawIds", module = "streamlearn._native")]
pub struct NativeRawIds {
    pub ids: Arc<RawIds>,
}

#[pymethods]
impl NativeRawIds {
    #[new]
    fn new(is_text: bool) -> Self {
        Self { ids: Arc::new(RawIds::new(is_text)) }
    }

    fn __len__(&self) -> usize {
        self.ids.len()
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.ids.bytes()
    }

    /// `ids` are int64, or the offsets and bytes of texts.
    fn apply(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        ids: &Bound<'_, PyAny>,
        removed: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let (keys, removed) =
            (flat::<u64>(keys, "keys", "uint64")?, flat::<u64>(removed, "removed", "uint64")?);
        let (keys, removed) = (keys.as_slice()?, removed.as_slice()?);
        let differs =
            || PyValueError::new_err(format!("there is not one id for each of {} keys", keys.len()));
        let next = if self.ids.is_text() {
            let (offsets, data): (Bound<'_, PyAny>, Bound<'_, PyAny>) = ids.extract()?;
            let (offsets, data) =
                (flat::<i64>(&offsets, "ids", "int64")?, flat::<u8>(&data, "ids", "uint8")?);
            let (offsets, data) = (offsets.as_slice()?, std::str::from_utf8(data.as_slice()?)?);
            let text =
                |pair: &[i64]| data.get(usize::try_from(pair[0]).ok()?..usize::try_from(pair[1]).ok()?);
            let texts: Option<Vec<&str>> = offsets.windows(2).map(text).collect();
            let texts = texts.filter(|texts| texts.len() == keys.len()).ok_or_else(differs)?;
            let texts = texts.into_iter().map(RawId::Text);
            py.detach(|| self.ids.apply(keys.iter().copied().zip(texts), removed))
        } else {
            let ids = flat::<i64>(ids, "ids", "int64")?;
            let ids = Some(ids.as_slice()?).filter(|ids| ids.len() == keys.len()).ok_or_else(differs)?;
            let ids = ids.iter().map(|&id| RawId::Int(id));
            py.detach(|| self.ids.apply(keys.iter().copied().zip(ids), removed))
        };
        Ok(Self { ids: Arc::new(next.map_err(PyValueError::new_err)?) })
    }

    /// The first of some keys that has no id.
    fn lacks(&self, keys: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
        let keys = flat::<u64>(keys, "keys", "uint64")?;
        Ok(keys.as_slice()?.iter().copied().find(|&key| self.ids.get(key).is_none()))
    }
}

/// The features of a version's items.
#[pyclass(frozen, name = "ItemFeatures", module = "streamlearn._native")]
pub struct NativeItemFeatures {
    features: Arc<ItemFeatures>,
}

#[pymethods]
impl NativeItemFeatures {
    /// A form is "one", "many" or "weighted" for a slot, and "dense" with a width.
    #[new]
    fn new(forms: Vec<(String, usize)>) -> PyResult<Self> {
        let form = |(name, width): (String, usize)| match name.as_str() {
            "one" => Ok(ColumnForm::One),
            "many" => Ok(ColumnForm::Many),
            "weighted" => Ok(ColumnForm::Weighted),
            "dense" => Ok(ColumnForm::Dense(width)),
            _ => Err(PyValueError::new_err(format!("unknown form {name:?}"))),
        };
        let forms = forms.into_iter().map(form).collect::<PyResult<_>>()?;
        Ok(Self { features: Arc::new(ItemFeatures::new(forms)) })
    }

    fn __len__(&self) -> usize {
        self.features.len()
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.features.bytes()
    }

    /// A column is the keys of a slot, perhaps offsets, perhaps weights; or the numbers of a dense column.
    fn apply(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        columns: Vec<Vec<Bound<'_, PyAny>>>,
        removed: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let (keys, removed) =
            (flat::<u64>(keys, "keys", "uint64")?, flat::<u64>(removed, "removed", "uint64")?);
        let (keys, removed) = (keys.as_slice()?, removed.as_slice()?);
        if columns.len() != self.features.forms().len() {
            return Err(PyValueError::new_err(format!("the columns are not {:?}", self.features.forms())));
        }
        let values = self.features.forms().iter().zip(&columns).map(|(form, parts)| values_of(*form, parts));
        let values = values.collect::<PyResult<Vec<_>>>()?;
        let next = py.detach(|| self.features.apply(keys, &values, removed));
        Ok(Self { features: Arc::new(next.map_err(PyValueError::new_err)?) })
    }

    /// Gives them to a version of a front, by its handle.
    fn describe(&self, front: &NativeFront, handle: u64) -> PyResult<()> {
        let inputs = front.front.inputs();
        let columns = inputs.library.iter().flat_map(|library| &library.columns);
        let forms: Vec<ColumnForm> = columns.map(|&at| ColumnForm::of(&inputs.item[at])).collect();
        if inputs.library.is_none() || forms != self.features.forms() {
            let text =
                format!("the features are {:?}, not {forms:?} as the front takes", self.features.forms());
            return Err(PyValueError::new_err(text));
        }
        front.front.describe(handle, self.features.clone());
        Ok(())
    }
}

fn values_of(form: ColumnForm, parts: &[Bound<'_, PyAny>]) -> PyResult<Values> {
    let keys = |part| Ok::<_, PyErr>(flat::<u64>(part, "keys", "uint64")?.as_slice()?.to_vec());
    let numbers = |part| Ok::<_, PyErr>(flat::<f32>(part, "numbers", "float32")?.as_slice()?.to_vec());
    let offsets = |part| {
        let offsets = flat::<i64>(part, "offsets", "int64")?;
        let narrow: Result<Vec<i32>, _> =
            offsets.as_slice()?.iter().map(|&offset| offset.try_into()).collect();
        narrow.map_err(|_| PyValueError::new_err("a column has more than 2,147,483,647 values"))
    };
    match (form, parts) {
        (ColumnForm::One, [one]) => Ok(Values::Keys(keys(one)?)),
        (ColumnForm::Dense(_), [one]) => Ok(Values::Numbers(numbers(one)?)),
        (ColumnForm::Many, [many, at]) => {
            Ok(Values::Lists { keys: keys(many)?, offsets: offsets(at)?, weights: None })
        }
        (ColumnForm::Weighted, [many, at, weights]) => {
            let weights = Some(numbers(weights)?);
            Ok(Values::Lists { keys: keys(many)?, offsets: offsets(at)?, weights })
        }
        _ => Err(PyValueError::new_err(format!("{} arrays are not a column of {form:?}", parts.len()))),
    }
}

#[pyfunction]
fn encode_vectors<'py>(py: Python<'py>, vectors: PyReadonlyArray2<'_, f32>) -> PyResult<Encoded<'py>> {
    let (rows, dim) = (vectors.shape()[0], vectors.shape()[1]);
    let (vectors, mut values, mut scales) = (vectors.as_slice()?, vec![0; rows * dim], vec![0.0; rows]);
    let encoded = py.detach(|| {
        let rows = vectors.chunks_exact(dim.max(1)).zip(values.chunks_exact_mut(dim.max(1))).enumerate();
        rows.zip(&mut scales).try_for_each(|((row, (vector, values)), scale)| {
            *scale = encode(vector, values).map_err(|_| ScanError::Value { vector: row })?;
            Ok(())
        })
    });
    encoded.map_err(wrong)?;
    Ok((PyArray1::from_vec(py, values).reshape([rows, dim])?, PyArray1::from_vec(py, scales)))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeBlocks>()?;
    module.add_class::<NativeRawIds>()?;
    module.add_class::<NativeItemFeatures>()?;
    module.add_function(wrap_pyfunction!(encode_vectors, module)?)
}
