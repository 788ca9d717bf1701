//! Seeded random numbers: SplitMix64, which gives the same numbers on every machine.

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// A sequence of random numbers.
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// Creates a sequence; `stream` separates sequences with the same seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut generator = Self(seed);
        let mixed = generator.next() ^ stream.wrapping_mul(STEP);
        Self(mixed)
    }

    /// Returns 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// Returns a number in (0, 1].
    pub fn share(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number below `count`.
    pub fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.next()) * count as u128) >> 64) as usize
    }
}
