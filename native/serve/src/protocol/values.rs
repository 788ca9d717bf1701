//! Values: the tensors and scalars of a request, read in place.

pub(crate) mod elements;
pub(crate) mod fields;
pub(crate) mod keys;
pub(crate) mod scalars;
pub(crate) mod tensor;
