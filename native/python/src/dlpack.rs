//! Tensors of a slab handed to whoever reads DLPack, without a copy.

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

/// What a tensor is made of, for as long as somebody has it.
struct Held {
    managed: Managed,
    shape: Vec<i64>,
    _memory: Arc<dyn Send + Sync>,
}

unsafe extern "C" fn let_go(managed: *mut Managed) {
    // SAFETY: the context is the box this was made of, and a tensor is deleted once.
    drop(unsafe { Box::from_raw((*managed).context.cast::<Held>()) });
}

/// Whoever took the tensor renamed the capsule, and deletes it; one that nobody took is deleted here.
unsafe extern "C" fn forget(capsule: *mut ffi::PyObject) {
    // SAFETY: a capsule that is being freed, whose pointer is the tensor as long as its name is.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            let managed = ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast::<Managed>();
            if !managed.is_null() {
                let_go(managed);
            }
        }
    }
}

/// A capsule of one tensor; it keeps the memory it lies in until whoever takes it lets go.
pub fn capsule<'py, M>(py: Python<'py>, memory: &Arc<M>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>>
where
    M: AsRef<[f32]> + Send + Sync + 'static,
{
    let floats: usize = tensor.shape.iter().product();
    let place = &(**memory).as_ref()[tensor.at..tensor.at + floats];
    let dtype = DataType { code: if tensor.is_int { INT } else { FLOAT }, bits: 32, lanes: 1 };
    let shape: Vec<i64> = tensor.shape.iter().map(|&size| size as i64).collect();
    let mut held = Box::new(Held {
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
            deleter: Some(let_go),
        },
        shape,
        _memory: memory.clone(),
    });
    held.managed.tensor.shape = held.shape.as_mut_ptr();
    let held = Box::into_raw(held);
    // SAFETY: the box was just given up; it is freed by `let_go` alone, which finds it by its context. The capsule
    // owns it until somebody takes it.
    unsafe {
        (*held).managed.context = held.cast();
        let managed = &raw mut (*held).managed;
        let found = ffi::PyCapsule_New(managed.cast(), NAME.as_ptr(), Some(forget));
        if found.is_null() {
            let_go(managed);
            return Err(PyErr::fetch(py));
        }
        Ok(Bound::from_owned_ptr(py, found))
    }
}
