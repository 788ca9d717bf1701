//! Arrays as arguments: NumPy arrays and bytes, checked and borrowed without a copy.

use std::ffi::c_int;

use numpy::npyffi::flags::NPY_ARRAY_ALIGNED;
use numpy::{
    Element, PyArray1, PyArrayDescrMethods, PyArrayMethods, PyReadonlyArray1, PyReadwriteArray1,
    PyUntypedArray, PyUntypedArrayMethods, dtype,
};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// A TypeError that states the expected and the actual argument.
fn refuse<T>(value: &Bound<'_, PyAny>, name: &str, expected: &str) -> PyResult<T> {
    let actual = match value.cast::<PyUntypedArray>() {
        Err(_) => value.get_type().qualname()?.to_string(),
        Ok(array) => {
            let shape = array.getattr("shape")?.repr()?;
            let state = match (array.is_c_contiguous(), aligned(array)) {
                (false, _) => "a non-contiguous ",
                (_, false) => "a misaligned ",
                _ => "",
            };
            format!("{state}{} of shape {shape}", array.dtype())
        }
    };
    Err(PyTypeError::new_err(format!("{name}: expected {expected}, got {actual}")))
}

fn aligned(array: &Bound<'_, PyUntypedArray>) -> bool {
    // SAFETY: the array is alive while it is borrowed, and its flags are a plain integer.
    let flags: c_int = unsafe { (*array.as_array_ptr()).flags };
    flags & NPY_ARRAY_ALIGNED != 0
}

/// Whether the value is a contiguous 1-D array of this type.
pub fn is_flat<T: Element>(value: &Bound<'_, PyAny>) -> bool {
    value.cast::<PyUntypedArray>().is_ok_and(|array| {
        array.ndim() == 1
            && array.is_c_contiguous()
            && aligned(array)
            && array.dtype().is_equiv_to(&dtype::<T>(value.py()))
    })
}

/// Borrows the array for reading. `types` lists the accepted types for the error.
pub fn flat<'py, T: Element>(
    value: &Bound<'py, PyAny>,
    name: &str,
    types: &str,
) -> PyResult<PyReadonlyArray1<'py, T>> {
    if !is_flat::<T>(value) {
        return refuse(value, name, &format!("a C-contiguous 1-D {types} array"));
    }
    let array = value.cast::<PyArray1<T>>()?;
    array.try_readonly().map_err(|_| in_use(name))
}

/// Borrows the array for writing `length` values.
pub fn flat_out<'py, T: Element>(
    value: &Bound<'py, PyAny>,
    (name, types): (&str, &str),
    length: usize,
) -> PyResult<PyReadwriteArray1<'py, T>> {
    if !is_flat::<T>(value) {
        return refuse(value, name, &format!("a C-contiguous 1-D {types} array"));
    }
    let array = value.cast::<PyArray1<T>>()?;
    if array.len() != length {
        let text = format!("{name}: expected {length} values, got {}", array.len());
        return Err(PyValueError::new_err(text));
    }
    array.try_readwrite().map_err(|error| match error {
        numpy::BorrowError::NotWriteable => PyValueError::new_err(format!("{name}: the array is read-only")),
        _ => in_use(name),
    })
}

fn in_use(name: &str) -> PyErr {
    PyValueError::new_err(format!("{name}: the array shares memory with one that is being written"))
}

/// The bytes of any object with a contiguous buffer.
pub struct Bytes(PyBuffer<u8>);

impl Bytes {
    /// Borrows the bytes of `value`.
    pub fn of(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        match PyBuffer::<u8>::get(value) {
            Ok(buffer) if buffer.is_c_contiguous() => Ok(Self(buffer)),
            _ => refuse(value, name, "contiguous bytes (bytes, bytearray, memoryview or uint8 array)"),
        }
    }

    /// The bytes, valid while the buffer is held.
    pub fn as_slice(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous, keeps its bytes alive and in place until it is released, and u8
        // has neither alignment nor invalid values. Concurrent writes are the caller's race, as with any
        // array.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }
}

/// The bytes of stored states; `None` stays what it is.
pub fn buffers_of(stored: &[Bound<'_, PyAny>]) -> PyResult<Vec<Option<Bytes>>> {
    let buffer = |one: &Bound<'_, PyAny>| (!one.is_none()).then(|| Bytes::of(one, "stored")).transpose();
    stored.iter().map(buffer).collect()
}
