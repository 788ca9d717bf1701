//! Asking for memory before it is needed.

/// Bytes of a line of the cache.
const LINE_BYTES: usize = 64;
/// Floats of a line of the cache.
pub(crate) const LINE_FLOATS: usize = 16;
/// Lines of one row that are asked for; the rest of a longer row the processor sees coming.
const LINES_MAX: usize = 8;

/// Ask for one line.
#[inline(always)]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is harmless.
    unsafe {
        std::arch::x86_64::_mm_prefetch(address.cast(), std::arch::x86_64::_MM_HINT_T0);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Ask for a row of `dim` floats, wherever it lies.
#[inline(always)]
pub(crate) fn prefetch_row(address: *const f32, dim: usize) {
    for at in (0..dim.min(LINES_MAX * LINE_FLOATS)).step_by(LINE_FLOATS) {
        prefetch(address.wrapping_add(at));
    }
}

/// Ask for all of something, wherever it lies: what is as long as a line seldom begins where one does.
#[inline(always)]
pub fn prefetch_all<T>(what: &[T]) {
    let bytes = size_of_val(what).min(LINES_MAX * LINE_BYTES);
    let begin = what.as_ptr().cast::<u8>();
    for at in (0..bytes).step_by(LINE_BYTES) {
        prefetch(begin.wrapping_add(at));
    }
    prefetch(begin.wrapping_add(bytes.saturating_sub(1)));
}
