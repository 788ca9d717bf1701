//! Prefetching memory before it is needed.

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// Floats of a cache line.
pub(crate) const LINE_FLOATS: usize = 16;
/// Maximum lines prefetched per row; the hardware prefetcher handles the rest of longer rows.
const LINES_MAX: usize = 8;

/// Prefetches one line.
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

/// Prefetches a row of `dim` floats at any alignment.
#[inline(always)]
pub(crate) fn prefetch_row(address: *const f32, dim: usize) {
    for at in (0..dim.min(LINES_MAX * LINE_FLOATS)).step_by(LINE_FLOATS) {
        prefetch(address.wrapping_add(at));
    }
}

/// Prefetches a whole slice, including the last line: a slice of one line's length is seldom aligned to it.
#[inline(always)]
pub fn prefetch_all<T>(slice: &[T]) {
    let bytes = size_of_val(slice).min(LINES_MAX * LINE_BYTES);
    let begin = slice.as_ptr().cast::<u8>();
    for at in (0..bytes).step_by(LINE_BYTES) {
        prefetch(begin.wrapping_add(at));
    }
    prefetch(begin.wrapping_add(bytes.saturating_sub(1)));
}
