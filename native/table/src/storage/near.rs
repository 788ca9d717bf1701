//! Reads memory while a writer may be at work on it, as fast as possible.
//!
//! A read may be torn, which the line's head shows afterwards. Relaxed atomics express this to the compiler,
//! but it does not merge them. On x86-64, wide instructions read several words at once. They are written as
//! assembly, since a wide read of memory that another thread writes is undefined for the compiler, but for
//! the processor it equals several word reads.

use std::sync::atomic::Ordering;

use crate::storage::sync::AtomicU64;

/// Words per wide read.
const WIDE_WORDS: usize = 2;

/// Copies words into floats, two per word.
#[inline(always)]
pub fn copy_words<const WORDS: usize>(words: &[AtomicU64; WORDS], into: &mut [f32]) {
    assert!(into.len() == 2 * WORDS);
    let wide_words = if cfg!(all(target_arch = "x86_64", not(any(miri, feature = "model")))) {
        WORDS - WORDS % WIDE_WORDS
    } else {
        0
    };
    #[cfg(all(target_arch = "x86_64", not(any(miri, feature = "model"))))]
    for at in (0..wide_words).step_by(WIDE_WORDS) {
        // SAFETY: both have two more words at this index.
        unsafe {
            std::arch::asm!(
                "movups {wide}, [{from}]",
                "movups [{to}], {wide}",
                from = in(reg) words.as_ptr().add(at),
                to = in(reg) into.as_mut_ptr().add(2 * at),
                wide = out(xmm_reg) _,
                options(nostack, preserves_flags)
            );
        }
    }
    for (at, word) in words.iter().enumerate().skip(wide_words) {
        let bits = word.load(Ordering::Relaxed);
        into[2 * at] = f32::from_bits(bits as u32);
        into[2 * at + 1] = f32::from_bits((bits >> 32) as u32);
    }
}

/// The words equal to a number, one bit each.
#[inline(always)]
pub fn find_word(words: &[AtomicU64; 5], number: u64) -> u32 {
    #[cfg(all(target_feature = "sse4.1", not(any(miri, feature = "model"))))]
    {
        let (first, second): (u32, u32);
        // SAFETY: all five words exist, and nothing is written.
        unsafe {
            std::arch::asm!(
                "movq {both}, {number}",
                "punpcklqdq {both}, {both}",
                "movups {a}, [{words}]",
                "movups {b}, [{words} + 16]",
                "pcmpeqq {a}, {both}",
                "pcmpeqq {b}, {both}",
                "movmskpd {first:e}, {a}",
                "movmskpd {second:e}, {b}",
                words = in(reg) words,
                number = in(reg) number,
                both = out(xmm_reg) _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                first = out(reg) first,
                second = out(reg) second,
                options(nostack, readonly, preserves_flags)
            );
        }
        first | second << 2 | u32::from(words[4].load(Ordering::Relaxed) == number) << 4
    }
    #[cfg(not(all(target_feature = "sse4.1", not(any(miri, feature = "model")))))]
    words
        .iter()
        .enumerate()
        .fold(0, |matches, (at, word)| matches | u32::from(word.load(Ordering::Relaxed) == number) << at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_floats_whatever_their_count() {
        fn check<const WORDS: usize>() {
            let numbers: Vec<f32> = (0..2 * WORDS).map(|at| at as f32 + 0.5).collect();
            let pair = |at: usize| {
                u64::from(numbers[2 * at].to_bits()) | u64::from(numbers[2 * at + 1].to_bits()) << 32
            };
            let words: [AtomicU64; WORDS] = std::array::from_fn(|at| AtomicU64::new(pair(at)));
            let mut into = vec![0.0; 2 * WORDS];
            copy_words(&words, &mut into);
            assert_eq!(into, numbers);
        }
        check::<1>();
        check::<4>();
        check::<7>();
        check::<8>();
    }

    #[test]
    fn a_word_is_found_wherever_it_is() {
        let words = [1, u64::MAX, 3, 1 << 63, 1].map(AtomicU64::new);
        let matches = [1, u64::MAX, 3, 1 << 63, 0, u64::MAX >> 1].map(|number| find_word(&words, number));
        assert_eq!(matches, [0b10001, 0b10, 0b100, 0b1000, 0, 0]);
    }
}
