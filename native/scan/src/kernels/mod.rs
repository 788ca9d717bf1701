//! Kernels: the approximate scores of a block's rows for a few users, and which of them reach a floor.
//!
//! A score is the int32 inner product of int8 values, converted to float32 and multiplied by the row's scale. Both
//! steps have one result, so all kernels give the same bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;

use crate::block::{BLOCK_ROWS, Block};
use crate::query::Query;

/// Users of one call of a kernel.
pub const USERS: usize = 4;

/// The rows of a block that reach a user's floor.
#[derive(Debug, Clone, Copy)]
pub struct Hit {
    /// A bit for each such row. Rows that are not in use may have one too.
    pub mask: u64,
    /// The scores. Those of other rows are not defined.
    pub scores: [f32; BLOCK_ROWS],
}

impl Hit {
    /// No rows.
    pub const NONE: Self = Self { mask: 0, scores: [0.0; BLOCK_ROWS] };
}

/// An implementation of the scan for some processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel(Instructions);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instructions {
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    NeonDot,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Scalar,
}

impl Kernel {
    /// The kernels that this processor can run, fastest first.
    pub fn all() -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        let vectors = [
            (
                Instructions::Avx512Vnni,
                is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni"),
            ),
            (Instructions::AvxVnni, is_x86_feature_detected!("avx2") && is_x86_feature_detected!("avxvnni")),
            (Instructions::Avx2, is_x86_feature_detected!("avx2")),
        ];
        #[cfg(target_arch = "aarch64")]
        let vectors = [
            (Instructions::NeonDot, is_aarch64_feature_detected!("dotprod")),
            (Instructions::Neon, is_aarch64_feature_detected!("neon")),
        ];
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let vectors = [];
        let usable =
            vectors.into_iter().filter(|(_, is_usable)| *is_usable).map(|(instructions, _)| instructions);
        usable.chain([Instructions::Scalar]).map(Self).collect()
    }

    /// The fastest kernel of this processor.
    pub fn best() -> Self {
        Self::all()[0]
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512Vnni => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            Instructions::AvxVnni => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => "avx2",
            #[cfg(target_arch = "aarch64")]
            Instructions::NeonDot => "neon-dot",
            #[cfg(target_arch = "aarch64")]
            Instructions::Neon => "neon",
            Instructions::Scalar => "scalar",
        }
    }

    /// Scores the rows of a block for `N` users.
    #[inline]
    pub(crate) fn scan<const N: usize>(
        self,
        block: &Block,
        users: [&Query; N],
        floors: &[f32; N],
        hits: &mut [Hit; N],
    ) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `all` gives a kernel only where the processor has its instructions, and nothing else does.
            Instructions::Avx512Vnni => unsafe { avx512::scan(block, users, floors, hits) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Instructions::AvxVnni => unsafe { avx2::scan_vnni(block, users, floors, hits) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Instructions::Avx2 => unsafe { avx2::scan(block, users, floors, hits) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Instructions::NeonDot => unsafe { neon::scan_dot(block, users, floors, hits) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Instructions::Neon => unsafe { neon::scan(block, users, floors, hits) },
            Instructions::Scalar => scalar::scan(block, users, floors, hits),
        }
    }
}

/// Prefetches the cache line at an address.
#[inline(always)]
pub fn prefetch<T>(address: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is harmless.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
            std::ptr::from_ref(address).cast(),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address; // stable Rust has no prefetch for other processors
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Values that are often extreme.
    fn value() -> impl Strategy<Value = i8> {
        prop_oneof![2 => any::<i8>(), 1 => Just(127_i8), 1 => Just(-127_i8), 1 => Just(-128_i8)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn all_kernels_give_the_same_bits(
            groups in prop_oneof![4 => 1..17_usize, 1 => Just(128_usize)],
            some in prop::collection::vec(value(), 64..700),
            users in prop::collection::vec(prop::collection::vec(-1.0..1.0_f32, 512), USERS),
            is_extreme in any::<bool>(),
            scales in prop::collection::vec(0.0..1.0_f32, BLOCK_ROWS),
            floors in prop::array::uniform4(prop_oneof![Just(f32::NEG_INFINITY), -1e5..1e5_f32]),
        ) {
            let (dim, mut block) = (groups * 4, Block::new(groups * 4, 0, 0));
            for (slot, scale) in scales.into_iter().enumerate() {
                let values: Vec<i8> = some.iter().cycle().skip(slot * 5).take(dim).copied().collect();
                block.put(slot, slot as u64, &values, scale);
            }
            let users: Vec<Query> = users
                .iter()
                .map(|user| user[..dim].iter().map(|number| if is_extreme { number.signum() } else { *number }).collect())
                .map(|user: Vec<f32>| Query::new(&user).unwrap())
                .collect();
            let users: [&Query; USERS] = std::array::from_fn(|user| &users[user]);
            let (mut expected, mut alone) = ([Hit::NONE; USERS], [Hit::NONE]);
            scalar::scan(&block, users, &floors, &mut expected);
            for kernel in Kernel::all() {
                let mut hits = [Hit { mask: 5, ..Hit::NONE }; USERS];
                kernel.scan(&block, users, &floors, &mut hits);
                for (user, expected) in expected.iter().enumerate() {
                    assert_same(&hits[user], expected);
                    kernel.scan(&block, [users[user]], &[floors[user]], &mut alone);
                    assert_same(&alone[0], expected);
                }
            }
        }
    }

    fn assert_same(hit: &Hit, expected: &Hit) {
        assert_eq!(hit.mask, expected.mask);
        for slot in (0..BLOCK_ROWS).filter(|slot| hit.mask >> slot & 1 == 1) {
            assert_eq!(hit.scores[slot].to_bits(), expected.scores[slot].to_bits());
        }
    }

    #[test]
    fn the_plain_kernel_comes_last() {
        let names: Vec<&str> = Kernel::all().into_iter().map(Kernel::name).collect();
        assert_eq!(names.last(), Some(&"scalar"));
        // The emulated processor of `make test-arm` has all instructions.
        #[cfg(all(target_arch = "aarch64", target_env = "musl"))]
        assert_eq!(names, ["neon-dot", "neon", "scalar"]);
        assert_eq!(Kernel::best().name(), names[0]);
    }
}
