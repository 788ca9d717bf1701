//! DLPack: shares tensors of a slab without a copy.

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;
use streamlearn_serve::tensor_batch::Tensor;

const NAME: &CStr = c"dltensor";
const CPU: i32 = 1;
const INT: u8 = 0;
const FLOAT: u8 = 2;

#[repr(C)]
struct Device {
    kind: i32,
    number: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// A shared tensor, until its consumer deletes it.
struct SharedTensor {
    managed: Managed,
    shape: Vec<i64>,
    _memory: Arc<dyn Send + Sync>,
}

unsafe extern "C" fn delete_tensor(managed: *mut Managed) {
    // SAFETY: the context is the box that contains this tensor, and a tensor is deleted once.
    drop(unsafe { Box::from_raw((*managed).context.cast::<SharedTensor>()) });
}

/// A consumer renames the capsule and deletes the tensor itself; a tensor without a consumer is deleted here.
unsafe extern "C" fn delete_unused(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is being freed, and its pointer is the tensor as long as it has this name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            let managed = ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast::<Managed>();
            if !managed.is_null() {
                delete_tensor(managed);
            }
        }
    }
}

/// A capsule of one tensor. It keeps the memory alive until the consumer deletes the tensor.
pub fn capsule<'py, M>(py: Python<'py>, memory: &Arc<M>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>>
where
    M: AsRef<[f32]> + Send + Sync + 'static,
{
    let floats: usize = tensor.shape.iter().product();
    let place = &(**memory).as_ref()[tensor.at..tensor.at + floats];
    let dtype = DataType { code: if tensor.is_int { INT } else { FLOAT }, bits: 32, lanes: 1 };
    let shape: Vec<i64> = tensor.shape.iter().map(|&size| size as i64).collect();
    let mut shared = Box::new(SharedTensor {
        managed: Managed {
            tensor: DlTensor {
                data: place.as_ptr().cast_mut().cast(),
                device: Device { kind: CPU, number: 0 },
                ndim: shape.len() as i32,
                dtype,
                shape: std::ptr::null_mut(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
            },
            context: std::ptr::null_mut(),
            deleter: Some(delete_tensor),
        },
        shape,
        _memory: memory.clone(),
    });
    shared.managed.tensor.shape = shared.shape.as_mut_ptr();
    let shared = Box::into_raw(shared);
    // SAFETY: the box was just leaked; only `delete_tensor` frees it, which finds it by its context. The
    // capsule owns it until a consumer takes it.
    unsafe {
        (*shared).managed.context = shared.cast();
        let managed = &raw mut (*shared).managed;
        let capsule = ffi::PyCapsule_New(managed.cast(), NAME.as_ptr(), Some(delete_unused));
        if capsule.is_null() {
            delete_tensor(managed);
            return Err(PyErr::fetch(py));
        }
        Ok(Bound::from_owned_ptr(py, capsule))
    }
}
